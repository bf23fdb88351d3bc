"""The offline decoder on a host: what is sent, how it is run, and the trace that comes back.

The modules keep their places (``ddtree_ops/...``, ``kernels/ddtree/tree``), so that on the host they import each other
as they do here. torch and transformers are the host's; this side needs neither.
"""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..bench.records import Prompt
from ..errors import ConfigError, GateFailed, Refused
from ..remote.channel import Link
from ..resources import packaged_dir

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent
_MODULES = ("__init__", "errors", "resources", "baseline/__init__", "baseline/trees", "baseline/tolerance")
OnEvent = Callable[[dict[str, Any]], None]
STATUS_CONTROL = 8


def program() -> dict[str, str]:
    """The decoder as files by relative path, everything that it imports of this project."""
    paths = [_ROOT / f"{name}.py" for name in _MODULES] + sorted((_PACKAGE / "offline").glob("*.py"))
    found = {f"ddtree_ops/{path.relative_to(_ROOT).as_posix()}": path.read_text("utf-8") for path in paths}
    kernels = packaged_dir("kernels")
    tree = sorted((kernels / "ddtree" / "tree").glob("*.py"))
    return found | {f"kernels/{path.relative_to(kernels).as_posix()}": path.read_text("utf-8") for path in tree}


def prompt_lines(prompts: Sequence[Prompt], *, raw: bool) -> str:
    """Prompts as the decoder reads them: ids if known, else the chat (through the target's template), else text."""
    rows = []
    for one in prompts:
        content = (one.raw() if raw else one).request(0)
        rows.append({**content, "id": one.id, "regime": one.regime})
        rows[-1].pop("index")
    return "".join(json.dumps(row) + "\n" for row in rows)


@contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """Write a file that appears under its name only when it is whole; what failed stays as ``.part`` until then."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        with (
            gzip.open(draft, "wt", encoding="utf-8")
            if path.suffix == ".gz"
            else draft.open("w", encoding="utf-8") as file
        ):
            yield file
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"the result cannot be written: {error.strerror}", where=str(path))


def record(
    link: Link,
    out: IO[str],
    *,
    python: str,
    prompts: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    on_event: OnEvent | None = None,
) -> int:
    """Record on the host of ``link`` and write the trace to ``out``; returns the exit code of this run.

    Raises:
        Refused: the interpreter has no torch, or models or arguments are not understood.
    """

    def listen(event: dict[str, Any]) -> None:
        for line in event.get("lines", ()) if event.get("kind") == "lines" else ():
            progress = _progress(line)
            if progress is None:
                out.write(line + "\n")
            elif on_event is not None:
                on_event(progress)

    request = {"python": python, "files": program(), "prompts": prompts, "argv": list(argv), "env": dict(env)}
    done = link.call("offline_record", request, timeout=None, on_event=listen)
    status, said = int(done["status"]), [line for line in done["stderr"] if line.strip()]
    if status in (0, STATUS_CONTROL):
        return GateFailed.exit_code if status else 0
    reason = _reason(said)
    raise Refused(
        reason or f"the offline decoder ended with status {status}",
        where=python,
        why="" if reason else "\n".join(said[-4:]),
        next_step="nothing was changed; --python names another interpreter, --target and --drafter other models",
        code="offline_failed",
    )


def _progress(line: str) -> dict[str, Any] | None:
    """The progress in a line, None for a record of the trace (which is passed on as it is)."""
    if not line.startswith('{"kind": "progress"'):
        return None
    found: dict[str, Any] = json.loads(line)
    return found


def _reason(said: Sequence[str]) -> str:
    errors = [line for line in said if line.startswith(("error: ", "ModuleNotFoundError: "))]
    missing = [line for line in errors if line.startswith("ModuleNotFoundError")]
    if missing:
        return f"the interpreter lacks what the offline decoder needs: {missing[-1].split(': ', 1)[1]}"
    return errors[-1].removeprefix("error: ") if errors else ""


def fetch_trace(link: Link, path: str, out: IO[str], *, most_bytes: int = 256 << 20) -> dict[str, Any]:
    """Fetch the trace that a server wrote to ``path`` on the host, its older part first; bounded to the newest bytes.

    Returns ``size`` and ``skipped``. A file that was rotated has a second header in the middle, which readers skip; a
    cut beginning (``skipped``) is dropped up to the next line.

    Raises:
        Refused: there is no such file.
    """
    chunks: list[bytes] = []

    def listen(event: dict[str, Any]) -> None:
        if event.get("kind") == "chunk":
            chunks.append(zlib.decompress(b64decode(event["data"])))

    done = link.call("trace_read", {"path": path, "most_bytes": most_bytes}, timeout=600.0, on_event=listen)
    data = b"".join(chunks)
    data = data[data.find(b"\n") + 1 :] if done["skipped"] else data
    out.write(data.decode("utf-8", "replace"))
    return done
