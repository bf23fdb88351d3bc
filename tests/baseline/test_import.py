"""Result files of other implementations: read as they are, refused where they are not understood, never run."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_ops.baseline import compare, imports, torchfile, traces
from ddtree_ops.errors import Refused
from tests.baseline import torchlike
from tests.baseline.command import run_cli
from tests.baseline.material import PROMPTS, World
from tests.baseline.torchlike import Ints

WORLD = World(budget=6, depth_limit=False)


def _response(world: World, number: int, method: str, *, trees: bool) -> SimpleNamespace:
    """A decoded prompt in the reference's layout, from the toy world."""
    prompt = PROMPTS[number]
    found = world.rounds("r", prompt)
    output = [found[0].bonus_in, *(token for one in found for token in one.emitted)][: world.tokens]
    recorded = [
        {
            "accepted_indices": one.accepted,
            "tree": {"node_token_ids": one.token[1:], "node_depths": one.depth[1:], "parents": [-1, *one.parent[1:]]},
        }
        for one in found
    ]
    plain = method == "baseline"
    return SimpleNamespace(
        output_ids=Ints([*prompt, *output]),
        num_input_tokens=len(prompt),
        num_output_tokens=len(output),
        time_to_first_token=0.5,
        time_per_output_token=0.03 if plain else 0.01,
        acceptance_lengths=[1] * len(output) if plain else [len(one.accepted) for one in found],
        decode_rounds=len(output) if plain else len(found),
        stage_times={"draft": 1.0},
        round_trees=recorded if trees else None,
    )


def _results(*, trees: bool = True) -> dict[str, Any]:
    responses = [
        {
            "baseline": _response(WORLD, number, "baseline", trees=False),
            "dflash": _response(WORLD.but(mode="linear"), number, "dflash", trees=False),
            "ddtree_tb6": _response(WORLD, number, "ddtree_tb6", trees=trees),
        }
        for number in range(3)
    ]
    args = {"model_name_or_path": "m", "draft_name_or_path": "d", "dataset": "toy", "temperature": 0.0}
    return {"responses": responses, "block_size": 5, "target_attn_implementation": "sdpa", "args": args}


def test_reference_results_become_figures_and_traces(tmp_path: Path) -> None:
    """Accept lengths per prompt, speed-up as the reference defines it, rounds as ddtree-trace/1."""
    file = torchlike.save(tmp_path / "results.pt", _results())
    found = imports.read(file)
    body = imports.summary(found)
    plain, linear, tree = body["methods"]
    assert [one["method"] for one in body["methods"]] == ["baseline", "dflash", "ddtree_tb6"]
    assert (tree["budget"], tree["prompts"], plain["tokens_per_verify"]) == (6, 3, 1.0)
    assert tree["tokens_per_verify"] > linear["tokens_per_verify"] > 1
    assert tree["speedup"] == pytest.approx(3.0)
    assert body["ignored"] == ["stage_times", "time_to_first_token"]
    written = imports.write(found, tmp_path / "out")
    assert [path.name for path in written] == ["summary.json", "ddtree_tb6.jsonl"]
    assert json.loads(written[0].read_text("utf-8"))["methods"] == body["methods"]

    ours = traces.load(WORLD.write(tmp_path / "ours.jsonl"))
    compared = compare.compare(ours, traces.load(written[1]))
    assert compared.ok, [one.differences for one in compared.levels]
    assert compared.prompts == 3
    by_name = {one.level: one for one in compared.levels}
    assert by_name["L0"].skipped == {"no candidates are recorded": sum(len(one.rounds) for one in _loaded(written[1]))}
    assert by_name["L1"].figures["overlap"] == 1.0
    assert by_name["L3"].figures["equal_tokens"] > 40


def _loaded(path: Path) -> tuple[traces.Request, ...]:
    return traces.load(path).requests


def test_an_imported_tree_of_another_drafter_differs(tmp_path: Path) -> None:
    """The comparison with imported rounds can fail: scores come from our side alone then."""
    file = torchlike.save(tmp_path / "results.pt", _results())
    imported = imports.write(imports.read(file), tmp_path / "out")[1]
    ours = WORLD.but(draft_seed=1).write(tmp_path / "ours.jsonl")
    found = compare.compare(traces.load(ours), traces.load(imported))
    assert next(one for one in found.levels if one.level == "L1").failures > 0


def test_results_without_trees_give_only_the_summary(tmp_path: Path) -> None:
    file = torchlike.save(tmp_path / "results.pt", _results(trees=False))
    assert [path.name for path in imports.write(imports.read(file), tmp_path / "out")] == ["summary.json"]


def _set(found: dict[str, Any], **fields: Any) -> dict[str, Any]:
    for name, value in fields.items():
        setattr(found["responses"][1]["ddtree_tb6"], name, value)
    return found


def _wrong_tree(found: dict[str, Any]) -> dict[str, Any]:
    one = found["responses"][1]["ddtree_tb6"].round_trees[0]
    one["tree"]["parents"][0] = 0
    return found


def _wrong_path(found: dict[str, Any]) -> dict[str, Any]:
    trees = found["responses"][1]["ddtree_tb6"].round_trees
    one = next(one for one in trees if len(one["accepted_indices"]) > 1)
    one["tree"]["node_token_ids"] = [99] * len(one["tree"]["node_token_ids"])
    return found


@pytest.mark.parametrize(
    ("results", "why"),
    [
        (lambda: [1, 2], "not DDTree's results"),
        (lambda: {"state_dict": {}}, "not DDTree's results"),
        (lambda: {**_results(), "block_size": "16"}, "block_size"),
        (lambda: {**_results(), "responses": []}, "no responses"),
        (lambda: {**_results(), "responses": [{"eagle": SimpleNamespace()}]}, "unknown method 'eagle'"),
        (lambda: _set(_results(), acceptance_lengths=[1, 9]), "do not fit"),
        (lambda: _set(_results(), acceptance_lengths=[1, 1.5]), "another form"),
        (lambda: _set(_results(), output_ids="text"), "another form"),
        (lambda: _set(_results(), acceptance_lengths=[1]), "new tokens in rounds that give 2"),
        (lambda: _set(_results(), num_input_tokens=10_000), "do not fit"),
        (lambda: _set(_results(), round_trees=[{}]), "trees for"),
        (lambda: _wrong_tree(_results()), "arrays of its tree"),
        (lambda: _wrong_path(_results()), "not the output's tokens"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, results: Any, why: str) -> None:
    """Nothing is guessed: another layout may mean something else."""
    file = torchlike.save(tmp_path / "results.pt", results())
    with pytest.raises(Refused) as caught:
        imports.write(imports.read(file), tmp_path / "out")
    assert why in caught.value.why
    assert caught.value.exit_code == 4


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_hostile_file_is_refused_and_nothing_of_it_runs(tmp_path: Path) -> None:
    """A pickle can call anything; this one would make a folder."""
    mark = tmp_path / "ran"
    file = torchlike.save(tmp_path / "results.pt", {"responses": [_Hostile(mark)], "block_size": 5, "args": {}})
    with pytest.raises(Refused) as caught:
        imports.read(file)
    assert "more than plain values: it names posix.mkdir" in caught.value.why
    assert not mark.exists()
    bare = tmp_path / "bare.pt"
    bare.write_bytes(pickle.dumps(_Hostile(mark), protocol=2))
    with pytest.raises(Refused, match="not understood"):
        imports.read(bare)
    assert not mark.exists()


def test_a_zip_of_something_else_and_a_cut_file_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(Refused) as caught:
        torchfile.load(other)
    assert "no single data.pkl" in caught.value.why
    whole = torchlike.save(tmp_path / "results.pt", _results())
    cut = tmp_path / "cut.pt"
    cut.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(Refused) as caught:
        imports.read(cut)
    assert "damaged" in caught.value.why


OFFLINE = """Baseline throughput: 52.30 tok/s
DFlash throughput:  210.11 tok/s
Decoding speedup: 4.02
Average Acceptance length: 6.41
Acceptance length histogram: ['0.0%', '10.0%', '20.5%', '69.5%']
"""
SERVER = """
==================================================
Backend:          sglang
Dataset:          gsm8k
Num prompts:      128
Concurrency:      8
Latency:          61.2s
Output tokens:    70123
Throughput:       1,145.80 tok/s
Accept length:    6.312
Spec verify ct:   11110
==================================================
"""


def test_printed_summaries_of_zlab_are_read(tmp_path: Path) -> None:
    """z-lab's benchmark writes no file; its saved output has the figures, colours and progress bars around them."""
    file = tmp_path / "out.txt"
    file.write_text("Benchmarking: 100%|####| 128/128\n\x1b[1m" + OFFLINE + "\x1b[0m", "utf-8")
    plain, dflash = imports.summary(imports.read(file))["methods"]
    assert plain["tok_per_s"] == 52.30
    assert (dflash["tokens_per_verify"], dflash["speedup"], dflash["histogram"]) == (
        6.41,
        4.02,
        [0.0, 0.1, 0.205, 0.695],
    )
    file.write_text(SERVER, "utf-8")
    body = imports.summary(imports.read(file))
    assert body["conditions"] == {"backend": "sglang", "dataset": "gsm8k", "num_prompts": 128, "concurrency": 8}
    assert body["methods"][0]["tok_per_s"] == 1145.80
    assert body["methods"][0]["tokens_per_verify"] == 6.312


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "neither"),
        ("", "neither"),
        (OFFLINE.split("Decoding")[0], "cut off"),
        (SERVER.split("Throughput")[0], "cut off"),
        (OFFLINE + SERVER, "two runs"),
        (b"\xff\xfe\x00", "neither"),
    ],
)
def test_other_texts_are_refused(tmp_path: Path, text: str | bytes, why: str) -> None:
    file = tmp_path / "out.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(Refused) as caught:
        imports.read(file)
    assert why in caught.value.why


def test_command(tmp_path: Path) -> None:
    file = torchlike.save(tmp_path / "results.pt", _results())
    done = run_cli("baseline", "import", file, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "ddtree_tb6" in done.out
    assert "3.00x" in done.out
    body = json.loads(run_cli("baseline", "import", file, "--json").out)
    assert body["schema"] == "ddtree-import/1"
    refused = run_cli("baseline", "import", file.with_name("none"))
    assert refused.code == 2
