"""The command line in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from ddtree_ops import cli


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_cli(*words: str | Path) -> Done:
    """Run ``ddtree-ops`` with these words."""
    ran = CliRunner().invoke(cli.cli, [str(word) for word in words])
    return Done(ran.exit_code, ran.stdout, ran.stderr)
