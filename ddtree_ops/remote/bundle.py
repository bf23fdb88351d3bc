"""The program for the host: a small core that is sent first, and modules that follow when a verb needs them.

The core holds an importer, so that on the host the modules are the package ``ddtree_host``: relative imports work,
modules are compiled when first imported, and a traceback shows their lines. All bytes are deterministic; ``sha256``
names the whole program.
"""

from __future__ import annotations

import functools
import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..host.main import MODULES

PACKAGE = "ddtree_host"
CORE = ("__init__", "frames", "protocol", "main")
#: A module that imports this one may run any operation, so its verbs need the whole program.
REGISTRY = "ops"
_HOST = Path(__file__).resolve().parent.parent / "host"
_IMPORT = re.compile(r"^\s*from \.(\w*) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
_VERB = re.compile(r'^@(?:protocol\.)?verb\("(\w+)"\)', re.MULTILINE)
_COMMENT = re.compile(r"#.*")

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
status = importlib.import_module(PACKAGE + ".main").main(s, k.decode(), SOURCES)
sys.stderr.flush()
os._exit(status)
'''


@dataclass(frozen=True)
class Bundle:
    """The program: ``modules`` by name in sorted order, the packed core, the name of the whole content."""

    modules: dict[str, str]
    core: str
    packed: bytes
    sha256: str
    _imports: dict[str, frozenset[str]] = field(repr=False)
    _verbs: dict[str, str] = field(repr=False)

    def needed(self, verb: str) -> tuple[tuple[str, ...], frozenset[str]]:
        """For ``verb``: the modules to import, and all that these import in turn; nothing for an unknown verb."""
        home = self._verbs.get(verb)
        if home is None:
            return (), frozenset()
        names: tuple[str, ...] = (home,)
        if REGISTRY in self.closure(names):
            names = tuple(name for name in MODULES if name in self.modules)
        return names, self.closure(names)

    def closure(self, names: Iterable[str]) -> frozenset[str]:
        """``names`` and every module that they import, at whatever depth."""
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in self.modules and name not in seen:
                seen.add(name)
                waiting += self._imports[name]
        return frozenset(seen)


def imports_of(text: str) -> frozenset[str]:
    """The sibling modules that a module of the program imports, by name."""
    found: set[str] = set()
    for module, several, line in _IMPORT.findall(text):
        words = _COMMENT.sub("", several or line).split(",")
        found |= {module} if module else {word.split(" as ")[0].strip() for word in words}
    return frozenset(found - {""})


def build(folder: Path = _HOST) -> Bundle:
    """Bundle the modules of ``folder``."""
    modules = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}
    names = {name: PACKAGE if name == "__init__" else f"{PACKAGE}.{name}" for name in CORE}
    sources = "".join(f"    {names[name]!r}: {modules[name]!r},\n" for name in CORE)
    core = f"PACKAGE = {PACKAGE!r}\nSOURCES = {{\n{sources}}}\n{_IMPORTER}"
    digest = hashlib.sha256(core.encode("utf-8"))
    for name, text in modules.items():
        digest.update(f"{name}\0{text}\0".encode())
    return Bundle(
        modules=modules,
        core=core,
        packed=zlib.compress(core.encode("utf-8"), 9),
        sha256=digest.hexdigest(),
        _imports={name: imports_of(text) for name, text in modules.items()},
        _verbs={verb: name for name, text in modules.items() for verb in _VERB.findall(text)},
    )


@functools.lru_cache(maxsize=1)
def bundle() -> Bundle:
    """The bundle of this installation, built once per process."""
    return build()
