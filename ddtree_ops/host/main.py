"""Entry of the host program.

The controller sends modules when a request first needs them: what only looks at a host travels without what writes.
"""

from __future__ import annotations

import importlib
from typing import Any, BinaryIO, Dict, Iterable

from . import protocol
from .frames import Message

#: Modules that, with what they import, register every verb and every operation of a transaction.
MODULES = ("facts", "blobs", "tx", "ops_run", "service", "attest", "bench", "load", "texts", "arms", "offline")


def load(names: Iterable[str] = MODULES) -> None:
    """Import modules of the program, so that their verbs and operations are registered."""
    for name in names:
        importlib.import_module("%s.%s" % (__package__, name))


class Program:
    """The modules that have arrived so far; ``sources`` is what the importer of the bundle reads."""

    def __init__(self, sources: Dict[str, str]) -> None:
        self.sources = sources

    def prepare(self, request: Message) -> None:
        """Take the modules that travel with a request, and import those that it names."""
        arrived: Dict[str, Any] = request.get("modules") or {}
        for name, text in arrived.items():
            self.sources["%s.%s" % (__package__, name)] = text
        load(request.get("load") or ())


def main(stdin: BinaryIO, nonce: str, sources: Dict[str, str]) -> int:
    """Serve on ``stdin`` and the process's stdout; returns the exit status."""
    stdout = protocol.claim_streams()
    return protocol.serve(stdin, stdout, nonce, Program(sources).prepare)
