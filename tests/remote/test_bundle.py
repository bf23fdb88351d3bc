"""The program for the host: one text, the same bytes each time, standard library only, old Python too."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.errors import DdtreeError
from ddtree_ops.host.main import MODULES as MAIN_MODULES
from ddtree_ops.remote import bundle as bundling
from ddtree_ops.remote import startup

HOST = Path(bundling.__file__).parents[1] / "host"
MODULES = sorted(HOST.glob("*.py"))
#: Read as files by others (a backend for pip, an entry point), never imported by the program.
UNSENT: set[str] = set()


def _interpreters() -> list[str]:
    """Every Python 3.8+ of this machine, the one of the tests first."""
    names = ["python3", *(f"python3.{minor}" for minor in range(8, 15))]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    found = [sys.executable, *filter(None, map(shutil.which, names)), "/usr/bin/python3", *map(str, pyenv)]
    usable: dict[str, str] = {}
    for path in found:
        code = "import sys; print(sys.version_info >= (3, 8), sys.version)"
        done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith("True"):
            usable.setdefault(done.stdout, path)
    return list(usable.values())


def test_deterministic_bytes() -> None:
    one, two = bundling.build(), bundling.build()
    assert (one.core, one.sha256, one.packed, one.modules) == (two.core, two.sha256, two.packed, two.modules)


def test_a_changed_module_changes_the_name_of_the_bundle(tmp_path: Path) -> None:
    copy = shutil.copytree(HOST, tmp_path / "host")
    before = bundling.build(copy).sha256
    for name in ("protocol.py", "facts.py"):
        (copy / name).write_text((copy / name).read_text() + "\n# changed\n")
        after = bundling.build(copy).sha256
        assert after != before
        before = after


@pytest.mark.parametrize("python", _interpreters())
def test_runs_under_every_python_of_this_machine(python: str) -> None:
    """The whole program (a verb that needs the registry of operations needs all), started exactly as on a host."""
    from ddtree_ops.inventory import Host
    from ddtree_ops.remote.connection import connect

    with connect(Host(name="here", transport="local", python=python)) as link:
        assert link.call("ping", timeout=60)["pid"] > 0
        assert link.hello["executable"] == python
        with pytest.raises(DdtreeError) as caught:
            link.call("tx_do", {"op": "no such operation"}, timeout=60)
        assert caught.value.reason != "unknown_verb"
        assert link._sent >= set(bundling.bundle().modules) - UNSENT


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_imports_the_standard_library_only(path: Path) -> None:
    """The host has nothing but python3; an import that happens to exist here would fail there."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"), feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").partition(".")[0])
    allowed = set(sys.stdlib_module_names) - {"distutils", "imp", "tomllib", "zoneinfo", "graphlib"}
    assert names <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_relative_imports_stay_inside_the_program(path: Path) -> None:
    """`from ..errors import x` works on the controller, where host/ is a subpackage, and fails on the host."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert not (isinstance(node, ast.ImportFrom) and node.level > 1), ast.unparse(node)


def _imported(path: Path) -> set[str]:
    """The sibling modules that a module imports, by its syntax tree."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_are_found_as_python_finds_them(path: Path) -> None:
    """The bundle reads imports by a pattern (parsing takes too long for every run); a missed one fails on the host."""
    assert bundling.imports_of(path.read_text("utf-8")) == _imported(path)


def _registered(path: Path, kind: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).rpartition(".")[2] == kind:
                    found.add(ast.literal_eval(mark.args[0]))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_verb_and_operation_is_reachable(path: Path) -> None:
    """A module that registers something but is never imported would be "no such verb" on the host alone."""
    program = bundling.bundle()
    reachable = program.closure(MAIN_MODULES) | set(bundling.CORE)
    if any(_registered(path, kind) for kind in ("verb", "op", "undoer")):
        assert path.stem in reachable
    for verb in _registered(path, "verb"):
        assert path.stem in program.needed(verb)[1]


def test_looking_at_a_host_does_not_need_what_writes() -> None:
    """`locate-source` over a slow line should not wait for the code of transactions."""
    program = bundling.bundle()
    assert program.needed("facts")[0] == ("facts",)
    assert not program.needed("facts")[1] & {"ops", "tx", "undo", "service"}
    assert program.needed("no such verb") == ((), frozenset())


def test_command_line_has_one_pair_of_quotes_and_nothing_that_a_shell_would_expand() -> None:
    """csh expands `!` even in single quotes, fish reads backslashes there, and csh wants no newline in them."""
    for command in (startup.COMMAND, startup.SUDO_COMMAND):
        assert command.count("'") == 2
        assert command.endswith("'")
        assert not set("!\\\n") & set(command)
        assert not set('$`"<>|&;(){}*?[]~') & set(command.partition("'")[0])
