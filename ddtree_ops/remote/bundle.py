"""The program for the host, as one source: every module of ``ddtree_ops/host`` and a small importer for them.

The text is deterministic, so its hash names the program. On the host the modules are the package ``ddtree_host``:
relative imports work, modules are compiled when first imported, and a traceback shows their lines.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "ddtree_host"
_HOST = Path(__file__).resolve().parent.parent / "host"

#: Runs on the host, after ``SOURCES`` and with ``s`` (stdin, past this program) and ``k`` (the nonce) in its globals.
_IMPORTER = '''
import importlib.util
import os
import sys


class Bundle:
    """Finder and loader of the package; ``get_source`` is what tracebacks read."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in SOURCES:
            return None
        package = name == PACKAGE
        spec = importlib.util.spec_from_loader(name, Bundle, origin=Bundle.filename(name), is_package=package)
        spec.has_location = True
        return spec

    @staticmethod
    def filename(name):
        return name.replace(".", "/") + ("/__init__.py" if name == PACKAGE else ".py")

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        name = module.__name__
        exec(compile(SOURCES[name], Bundle.filename(name), "exec", dont_inherit=True), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES[name]


sys.meta_path.insert(0, Bundle)
status = importlib.import_module(PACKAGE + ".main").main(s, k.decode())
sys.stderr.flush()
os._exit(status)
'''


@dataclass(frozen=True)
class Bundle:
    """The program: its text, the name of its content, and the bytes that travel."""

    text: str
    sha256: str
    packed: bytes


def host_modules(folder: Path = _HOST) -> dict[str, str]:
    """Source text of each module of the host program, by its name on the host, in sorted order."""
    modules = {}
    for path in sorted(folder.glob("*.py")):
        name = PACKAGE if path.stem == "__init__" else f"{PACKAGE}.{path.stem}"
        modules[name] = path.read_text("utf-8")
    return modules


def build(folder: Path = _HOST) -> Bundle:
    """Bundle the modules of ``folder``."""
    sources = "".join(f"    {name!r}: {text!r},\n" for name, text in host_modules(folder).items())
    text = f"PACKAGE = {PACKAGE!r}\nSOURCES = {{\n{sources}}}\n{_IMPORTER}"
    data = text.encode("utf-8")
    return Bundle(text, hashlib.sha256(data).hexdigest(), zlib.compress(data, 9))


@functools.lru_cache(maxsize=1)
def bundle() -> Bundle:
    """The bundle of this installation, built once per process."""
    return build()
