"""Run the kernels under NVIDIA's compute-sanitizer on a GPU, small sizes, and say what that proves.

    python benchmarks/kernels/sanitize.py OUT.json [NAME ...]

Each check of ``triton_checks.py``, ``merge_checks.py`` (the gather between processes left out) and ``static_checks.py``
in ``tests/kernels`` runs under ``memcheck`` (accesses outside of allocations), ``racecheck`` (races in *shared* memory)
and ``synccheck`` (barriers that not all threads reach). Exit status 1 when a tool reports an error or a check fails, 2
without the tool.

What racecheck cannot show: it watches shared memory only. The kernels exchange data between threads through global
memory in a few places, each within one program with a barrier between writing and reading; and the KV compaction writes
slots that it also reads. The latter is free of races by construction: a program owns a range of bytes of one request,
reads the whole path before the barrier, writes behind it, and no other program touches these bytes. What can be tested
of that is tested: ``check_compaction_equals_a_copy_between_two_buffers`` compares with a copy that cannot race, on
paths chosen so that as many destinations as possible are sources of other positions.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKS = Path(__file__).resolve().parents[2] / "tests" / "kernels"
FILES = ("triton_checks.py", "merge_checks.py", "static_checks.py")
LEFT_OUT = ("check_processes_that_gather_agree",)
TOOLS = ("memcheck", "racecheck", "synccheck")
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def find_tool() -> str | None:
    """Return compute-sanitizer from PATH or CUDA's usual folder."""
    found = shutil.which("compute-sanitizer")
    return found or next((str(path) for place in PLACES if (path := Path(place) / "compute-sanitizer").exists()), None)


def checks_of(file: str) -> list[str]:
    """Return the names of a file's checks."""
    text = (CHECKS / file).read_text("utf-8")
    return [name for name in re.findall(r"^def (check_\w+)\(", text, re.MULTILINE) if name not in LEFT_OUT]


def run(sanitizer: str, tool: str, file: str, names: list[str]) -> dict[str, Any]:
    """Run some checks of one file under one tool."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", "99", "--target-processes", "application-only"]
    command += [sys.executable, str(CHECKS / file), "--cuda", *names]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout + done.stderr)
    failed = [name for name, error in json.loads(answers[-1]).items() if error] if answers else names
    return {
        "tool": tool,
        "file": file,
        "checks": names,
        "failed": failed,
        "summary": summary[-1] if summary else None,
        "clean": done.returncode == 0 and not failed,
        "seconds": round(time.monotonic() - start, 1),
        "tail": [] if done.returncode == 0 and not failed else (done.stdout + done.stderr).splitlines()[-40:],
    }


def main(out: Path, wanted: list[str]) -> int:
    """Run everything, write the JSON, return the exit status."""
    sanitizer = find_tool()
    if sanitizer is None:
        print("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin", file=sys.stderr)
        return 2
    version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")
    rows = []
    for file in FILES:
        names = [name for name in checks_of(file) if not wanted or name in wanted]
        for tool in TOOLS if names else ():
            row = run(sanitizer, tool, file, names)
            rows.append(row)
            print(json.dumps({key: row[key] for key in ("tool", "file", "clean", "summary", "seconds")}), flush=True)
    limits = " ".join((__doc__ or "").split("\n\n")[-1].split())
    tool = next((line for line in version if "ersion" in line), "")
    out.write_text(json.dumps({"schema_version": 1, "tool": tool, "limits": limits, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["clean"] for row in rows) else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
