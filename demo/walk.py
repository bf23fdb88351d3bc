"""The commands of the demo, run as a user would type them, and what they left to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.rule import Rule

COMMAND = Path(sys.executable).with_name("ddtree-ops")


@dataclass
class Step:
    """One finished command: what was typed, how long it took, its exit code."""

    words: tuple[str, ...]
    seconds: float
    code: int


class StepStopped(Exception):
    """A command ended with another exit code than the demo expects."""

    def __init__(self, step: Step) -> None:
        super().__init__(f"`ddtree-ops {' '.join(step.words)}` ended with exit {step.code}")
        self.step = step


@dataclass
class Walk:
    """Runs commands in ``folder``, where the inventory lies; keeps their times."""

    console: Console
    folder: Path
    steps: list[Step] = field(default_factory=list)

    def run(self, *words: str, note: str = "") -> None:
        """Show the command line, run it with its own output on this terminal, and note its time."""
        self.console.print()
        self.console.print(Rule(f"[bold]$ ddtree-ops {' '.join(words)}", align="left", style="cyan"))
        if note:
            self.console.print(f"[dim]{note}[/]")
        sys.stdout.flush()
        start = time.monotonic()
        done = subprocess.run([COMMAND, *words], cwd=self.folder, env=self._environment(), check=False)
        step = Step(words, time.monotonic() - start, done.returncode)
        self.steps.append(step)
        if done.returncode:
            raise StepStopped(step)

    def ask(self, *words: str) -> dict[str, Any]:
        """The JSON document of a command that only looks; empty when it failed."""
        done = subprocess.run(
            [COMMAND, *words, "--json"],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        return found

    @property
    def seconds(self) -> float:
        """Time of all commands."""
        return sum(step.seconds for step in self.steps)

    def _environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("DDTREE_OPS_") and k != "SSH_AUTH_SOCK"}
        return env | {"COLUMNS": str(self.console.width), "PYTHONUNBUFFERED": "1"}
