"""The two streams of the program: data on stdout, everything for people on stderr.

Colours and live displays are off where nobody watches: no terminal, ``NO_COLOR``, ``TERM=dumb``, ``CI``,
``--no-color``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import DdtreeError
from ..jsontext import json_bytes
from ..model import SCHEMA_VERSION
from .stream import Stream

if TYPE_CHECKING:
    from rich.console import Console


class Output:
    """Where a command writes.

    ``json``: one document on stdout and nothing else there. ``verbosity``: -1 quiet, 0 a line per step, 1 what the host
    reports and the details of errors, 2 each operation with its time, 3 each event as it is.
    """

    def __init__(self, *, json: bool = False, verbosity: int = 0, color: bool = True) -> None:
        self.json = json
        self.verbosity = verbosity
        self.color = color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._stdout = Stream(sys.stdout, vital=True)
        self._stderr = Stream(sys.stderr, vital=False)
        self._consoles: dict[bool, Console] = {}

    def _console(self, stderr: bool) -> Console:
        if stderr not in self._consoles:
            from rich.console import Console

            stream = self._stderr if stderr else self._stdout
            self._consoles[stderr] = Console(
                file=stream,  # type: ignore[arg-type]
                no_color=not self.color,
                width=None if stream.isatty() else _columns(),
                # What is printed is data: paths, log lines and host names with brackets are not markup.
                markup=False,
                emoji=False,
                highlight=False,
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
        self._stdout.write_bytes(json_bytes(document, indent=2))

    def line(self, text: str) -> None:
        """A line of data on stdout, as it is: no wrapping, no colours."""
        self._stdout.write(text + "\n")
        self._stdout.flush()

    def note(self, text: str, style: str = "") -> None:
        """A line for people, dropped by ``-q``."""
        if self.verbosity >= 0:
            self.say(text, style)

    def say(self, text: str, style: str = "") -> None:
        """A line for people that ``-q`` does not drop either."""
        self.err.print(text, style=style or None, soft_wrap=True)

    def detail(self, level: int, text: str) -> None:
        """A line that ``-v`` (1), ``-vv`` (2) or ``-vvv`` (3) asks for."""
        if self.verbosity >= level:
            self.say(text, "dim")

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


def _columns() -> int:
    """Width where there is no terminal: ``COLUMNS``, else 100."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdigit() and int(given) > 0 else 100
