"""systemd units that start SGLang, and ours: their files are read, one ``systemctl show`` adds the states."""

from __future__ import annotations

import os
import re
import shlex
from typing import Dict, List, Optional, Set, Tuple

from . import commands, procs
from .look import Fact, Look, names_in, read_text

FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,FragmentPath"


def find(look: Look) -> List[Fact]:
    """model.Unit of every unit that mentions SGLang in what it starts, of the named one, and of our own."""
    ours = look.text("our_unit")
    named = look.text("unit")
    wanted = {name for name in (ours, named) if name.endswith(".service")}
    files = _unit_files(wanted)
    units = [_from_files(name, path, texts, ours) for name, (path, texts) in sorted(files.items())]
    _add_states(look, units, wanted - set(files), ours)
    return units


def _unit_files(wanted: Set[str]) -> Dict[str, Tuple[str, List[str]]]:
    """Path and texts (unit, then drop-ins) by unit name; the first folder that has the unit wins, as for systemd."""
    found: Dict[str, Tuple[str, List[str]]] = {}
    seen: Set[str] = set()
    user = os.path.join(os.path.expanduser("~"), ".config/systemd/user")
    for folder in (*FOLDERS, user):
        for name in names_in(folder):
            path = os.path.join(folder, name)
            if not name.endswith(".service") or name in seen or not os.path.isfile(path):
                continue
            seen.add(name)
            texts = [read_text(path), *_drop_ins(name)]
            if name in wanted or any("sglang" in line for text in texts for line in _starts(text)):
                found[name] = (path, texts)
    return found


def _drop_ins(name: str) -> List[str]:
    texts = []
    for folder in reversed(FOLDERS):
        inner = os.path.join(folder, name + ".d")
        texts += [read_text(os.path.join(inner, item)) for item in names_in(inner) if item.endswith(".conf")]
    return texts


def _lines(text: str) -> List[str]:
    """Lines of a unit file with continuations joined and comments dropped."""
    joined = re.sub(r"\\\n", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and line.strip()[0] not in "#;"]


def _starts(text: str) -> List[str]:
    return [line for line in _lines(text) if line.startswith("ExecStart=")]


def _words(value: str) -> List[str]:
    try:
        return shlex.split(value.lstrip("@-:+!"))
    except ValueError:
        return value.lstrip("@-:+!").split()


def _from_files(name: str, path: str, texts: List[str], ours: str) -> Fact:
    start: List[str] = []
    folder = ""
    variables: Dict[str, str] = {}
    for line in (line for text in texts for line in _lines(text)):
        key, _, value = line.partition("=")
        if key == "ExecStart":
            start = _words(value)  # an empty assignment resets, a later one replaces
        elif key == "WorkingDirectory":
            folder = value.lstrip("-")
        elif key == "Environment":
            pairs = (item.partition("=") for item in _words(value))
            variables.update({left: right for left, sign, right in pairs if sign})
        elif key == "EnvironmentFile":
            variables.update(_environment_file(value.lstrip("-")))
    return {
        "name": name,
        "path": path,
        "active": "",
        "enabled": "",
        "exec_start": procs.redact(start),
        "working_directory": os.path.expanduser(folder) if folder.startswith("~") else folder,
        "environment": procs.safe_environment(variables),
        "ours": name == ours,
    }


def _environment_file(path: str) -> Dict[str, str]:
    found = {}
    for line in read_text(path, 1 << 20).splitlines():
        key, sign, value = line.partition("=")
        if sign and re.match(r"^\s*[A-Za-z_]\w*$", key):
            words = _words(value)
            found[key.strip()] = words[0] if words else ""
    return found


def _add_states(look: Look, units: List[Fact], unfiled: Set[str], ours: str) -> None:
    """Ask systemd once for all units; units without a file here (templates, generators) are added if it knows them."""
    names = [str(unit["name"]) for unit in units] + sorted(unfiled)
    if not names or not os.path.isdir("/run/systemd/system"):
        return
    argv = ["systemctl", "show", "--property=" + _PROPERTIES, "--no-pager", "--", *names]
    ran = commands.run(argv, timeout=look.left(5.0))
    if not ran.ok:
        look.warn("systemctl did not tell the state of units: %s" % ran.complaint())
        return
    by_name = {str(unit["name"]): unit for unit in units}
    for block in ran.text().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        unit = by_name.get(values.get("Id", ""))
        if unit is None and values.get("LoadState") == "loaded":
            path = values.get("FragmentPath", "")
            unit = _from_files(values["Id"], path, [read_text(path), *_drop_ins(values["Id"])], ours)
            units.append(unit)
        if unit is not None:
            unit["active"] = values.get("ActiveState", "")
            unit["enabled"] = values.get("UnitFileState", "")


def pick(units: List[Fact], name: str) -> Optional[Fact]:
    """The unit called ``name`` (with or without ``.service``)."""
    wanted = name if name.endswith(".service") else name + ".service"
    return next((unit for unit in units if unit["name"] == wanted), None)
