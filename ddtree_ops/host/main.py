"""Entry of the host program: import what registers verbs, then serve."""

from __future__ import annotations

import importlib
from typing import BinaryIO

from . import protocol

#: Modules that register verbs (and operations) when imported.
MODULES = ("facts", "tx", "service", "attest", "bench")


def load() -> None:
    """Import the modules of the program, so that their verbs are registered."""
    for name in MODULES:
        full = "%s.%s" % (__package__, name)
        try:
            importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise


def main(stdin: BinaryIO, nonce: str) -> int:
    """Serve on ``stdin`` and the process's stdout; returns the exit status."""
    stdout = protocol.claim_streams()
    load()
    return protocol.serve(stdin, stdout, nonce)
