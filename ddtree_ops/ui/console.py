"""The two streams of the program: data on stdout, everything for people on stderr.

Colours and live displays are off where nobody watches: no terminal, ``NO_COLOR``, ``TERM=dumb``, ``CI``,
``--no-color``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import DdtreeError
from ..model import SCHEMA_VERSION

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Where a command writes.

    ``json``: one document on stdout and nothing else there. ``verbosity``: -1 quiet, 0 a line per step, 1 commands,
    2 their output, 3 the protocol.
    """

    def __init__(self, *, json: bool = False, verbosity: int = 0, color: bool = True) -> None:
        self.json = json
        self.verbosity = verbosity
        self.color = color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._consoles: dict[bool, Console] = {}

    def _console(self, stderr: bool) -> Console:
        if stderr not in self._consoles:
            from rich.console import Console

            stream = sys.stderr if stderr else sys.stdout
            width = None if stream.isatty() else int(os.environ.get("COLUMNS") or 100)
            self._consoles[stderr] = Console(
                stderr=stderr, no_color=not self.color, highlight=False, width=width, soft_wrap=False
            )
        return self._consoles[stderr]

    @property
    def out(self) -> Console:
        """For what was asked for: tables, diffs, logs. With ``--json`` people's output moves to stderr."""
        return self._console(self.json)

    @property
    def err(self) -> Console:
        """For progress, notes and errors."""
        return self._console(True)

    @property
    def live(self) -> bool:
        """Whether a moving display makes sense."""
        return (
            sys.stderr.isatty()
            and self.verbosity >= 0
            and not os.environ.get("CI")
            and os.environ.get("TERM") != "dumb"
        )

    def document(self, command: str, body: Mapping[str, Any]) -> None:
        """Write the one JSON document of this run to stdout."""
        document = {"schema_version": SCHEMA_VERSION, "command": command, **body}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        sys.stdout.buffer.flush()

    def note(self, text: str, style: str = "") -> None:
        """A line for people, dropped by ``-q``."""
        if self.verbosity >= 0:
            self.err.print(text, style=style or None, markup=False)

    def detail(self, level: int, text: str) -> None:
        """A line that ``-v`` (1), ``-vv`` (2) or ``-vvv`` (3) asks for."""
        if self.verbosity >= level:
            self.err.print(text, style="dim", markup=False)

    def error(self, error: DdtreeError, host: str = "") -> None:
        """What failed, where, why, and the next command; never a traceback."""
        from rich.text import Text

        head = Text.assemble((f"{host}: " if host else "", "bold"), ("error: ", "bold red"), error.what)
        self.err.print(head)
        for label, value in (("where", error.where), ("why", error.why), ("next", error.next_step)):
            if value:
                indented = value.replace("\n", "\n         ")
                self.err.print(Text.assemble((f"  {label + ':':<6} ", "bold" if label == "next" else "dim"), indented))
        for name, value in error.details.items():
            if self.verbosity >= 1 or name in ("log", "conflict", "diff"):
                text = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                self.err.print(Text(f"  {name}:\n    " + text.replace("\n", "\n    "), style="dim"), soft_wrap=True)
