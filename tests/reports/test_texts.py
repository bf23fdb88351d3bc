"""What traced tokens say: asked of the server while it runs, so that a report's tree can be read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.bench.render import trees
from ddtree_ops.host.texts import load_texts
from tests.reports.synthetic import Maker


class Server(ThreadingHTTPServer):
    """Answers /detokenize as SGLang does; ``wrong`` makes it answer something else."""

    daemon_threads = True
    wrong: str = ""
    asked: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    """One answer."""

    server: Server

    def do_POST(self) -> None:
        """``{"tokens": [[1], [2]]}`` to ``{"text": ["…", "…"]}``."""
        self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [f"<{token}>" for [token] in self.server.asked["tokens"]]
        body = {"short": {"text": texts[1:]}, "shape": [1], "none": {}}.get(self.server.wrong, {"text": texts})
        data = b"not json" if self.server.wrong == "json" else json.dumps(body).encode()
        self.send_response(500 if self.server.wrong == "status" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server on a port of its own."""
    found = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(server: Server, ids: list[int]) -> list[str]:
    """The verb's answer."""
    found: list[str] = load_texts({"server": {"port": server.server_address[1]}, "ids": ids}, lambda _: None)["texts"]
    return found


def test_each_token_by_itself(server: Server) -> None:
    """Defect: one text for all tokens, or special tokens dropped so that texts and ids no longer match."""
    assert ask(server, [5, 7]) == ["<5>", "<7>"]
    assert server.asked == {"tokens": [[5], [7]], "skip_special_tokens": False}
    assert ask(server, []) == []


@pytest.mark.parametrize("wrong", ["short", "shape", "none", "json", "status"])
def test_a_server_that_cannot_tell_costs_nothing(server: Server, wrong: str) -> None:
    """Defect: a bench that fails at its end because of a drawing."""
    server.wrong = wrong
    assert ask(server, [5, 7]) == []


def test_no_server_costs_nothing() -> None:
    """Defect: the same, when the arm has just died."""
    assert load_texts({"server": {"port": 1}, "ids": [5]}, lambda _: None) == {"texts": []}


def test_the_drawn_tree_says_its_tokens(tmp_path: Path) -> None:
    """Defect: ids in a drawing although their texts are known; or texts of some nodes beside ids of others."""
    folder = Maker(budgets=(8,), concurrency=(1,), regimes=("chat",)).write(tmp_path / "result", spoil=False)
    path = folder.path / "traces" / "ddtree.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    bare = [{name: value for name, value in line.items() if name != "extra"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in bare), "utf-8")
    plain = trees.sample([path])
    assert plain is not None
    assert plain.round.label(1) == str(plain.round.token[1])
    ids = trees.tokens_of(folder.path)
    assert {*plain.round.token, plain.round.bonus_out} <= ids
    folder.write(f"traces/{trees.TEXTS}", json.dumps({str(one): f"w{one}" for one in ids}).encode())
    told = trees.sample([path])
    assert told is not None
    assert told.round.label(1) == f"w{plain.round.token[1]}"
    folder.write(f"traces/{trees.TEXTS}", json.dumps({str(plain.round.token[1]): "x"}).encode())
    assert trees.sample([path]) == plain
