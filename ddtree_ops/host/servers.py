"""Running SGLang servers: from the processes and their sockets to the interpreter, unit and arguments of each."""

from __future__ import annotations

import os
import pwd
import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import commands, procs
from .look import Fact, Look

_PYTHON_NAME = re.compile(r"^(python|pypy)[0-9.]*$")


class Running(NamedTuple):
    """A server as reported (model.Server) with what only this host needs: import context of its main process."""

    fact: Fact
    python_environment: Tuple[Tuple[str, str], ...]
    first: str  # what stands first on its sys.path, see probe.Context


def is_server(args: Sequence[str]) -> bool:
    """A command line of SGLang: ``-m sglang.launch_server``, ``bin/sglang serve``, or a retitled ``sglang::...``."""
    if not args:
        return False
    if args[0].startswith("sglang::"):
        return True
    if not _PYTHON_NAME.match(os.path.basename(args[0])):
        return os.path.basename(args[0]) == "sglang" and "serve" in args[1:3]
    for position, word in enumerate(args[1:], 1):
        if word == "-m" and args[position + 1 : position + 2] == ("sglang.launch_server",):
            return True
        if word == "-m" and args[position + 1 : position + 3] == ("sglang", "serve"):
            return True
        if os.path.basename(word) == "sglang" and "serve" in args[position + 1 : position + 3]:
            return True
        if word.endswith("sglang/launch_server.py"):
            return True
    return False


def find(look: Look) -> Tuple[List[Running], List[Fact]]:
    """All servers, and the owners (model.PortOwner) of the ports that the request asks about."""
    table = procs.all_processes()
    table.pop(os.getpid(), None)
    members = {pid for pid, one in table.items() if is_server(one.args)}
    groups = _by_root(table, members)
    sockets = procs.listeners()
    wanted_ports = {int(port) for port in [look.params.get("port"), *(look.params.get("ports") or ())] if port}
    inodes = {one.inode for one in sockets if one.port in wanted_ports} if wanted_ports else set()
    owners = procs.socket_owners(inodes, table)
    mine = procs.socket_owners({one.inode for one in sockets}, members | set(groups)) if members else {}
    running = [_describe(look, table, root, group, sockets, mine) for root, group in sorted(groups.items())]
    return running, [_port_owner(one, owners, table) for one in sockets if one.port in wanted_ports]


def _by_root(table: Dict[int, procs.Process], members: Set[int]) -> Dict[int, Set[int]]:
    """Members by their topmost ancestor that is a server, or a Python whose retitled children they are."""
    groups: Dict[int, Set[int]] = {}
    for pid in members:
        root = pid
        while True:
            parent = table.get(table[root].parent)
            if parent is None or parent.pid <= 1:
                break
            retitled = table[root].args[:1] and table[root].args[0].startswith("sglang::")
            is_python = bool(_PYTHON_NAME.match(os.path.basename(parent.args[0]))) if parent.args else False
            if parent.pid not in members and not (retitled and is_python and parent.session == table[root].session):
                break
            root = parent.pid
        groups.setdefault(root, set()).update((root, pid))
    return groups


def _describe(
    look: Look,
    table: Dict[int, procs.Process],
    root: int,
    group: Set[int],
    sockets: List[procs.Listener],
    owners: Dict[str, List[int]],
) -> Running:
    main = table[root]
    variables = procs.environment_of(root)
    cgroup = procs.cgroup_of(root)
    foreign = procs.in_foreign_namespace(root, cgroup)
    if foreign and procs.link(root, "ns/net") != procs.link(os.getpid(), "ns/net"):
        sockets = procs.listeners("/proc/%d/net" % root)
        owners = procs.socket_owners({one.inode for one in sockets}, group)
    held = [one for one in sockets if root in owners.get(one.inode, ())]
    held = held or [one for one in sockets if group & set(owners.get(one.inode, ()))]
    listener = _http_listener(held, option(main.args, "--port"))
    exe = procs.link(root, "exe")
    interpreter = "" if foreign else interpreter_of(root, main.args, exe, variables)
    if not exe and not foreign:
        look.warn(
            "process %d looks like an SGLang server, but belongs to %s: its interpreter cannot be read"
            % (root, _user(main.uid))
        )
    fact: Fact = {
        "pid": root,
        "port": listener.port if listener else 0,
        "address": listener.address if listener else "",
        "interpreter": interpreter,
        "exe": exe,
        "cwd": procs.link(root, "cwd"),
        "args": procs.redact(main.args),
        "environment": procs.safe_environment(variables),
        "unit": "" if foreign else procs.unit_of(cgroup),
        "cgroup": cgroup,
        "start_time": main.start_time,
        "user": _user(main.uid),
        "foreign_namespace": foreign,
        "algorithm": option(main.args, "--speculative-algorithm") or option(main.args, "--speculative-algo"),
        "model_path": option(main.args, "--model-path") or option(main.args, "--model"),
        "processes": sorted(group),
    }
    python = tuple((key, value) for key, value in sorted(variables.items()) if key.startswith("PYTHON"))
    return Running(fact, python, _first_entry(main.args))


def option(args: Sequence[str], name: str) -> str:
    """The value of ``--name value`` or ``--name=value`` on a command line, "" when absent; the last one wins."""
    value = ""
    for position, word in enumerate(args):
        if word == name and position + 1 < len(args):
            value = args[position + 1]
        elif word.startswith(name + "="):
            value = word[len(name) + 1 :]
    return value


def _http_listener(held: List[procs.Listener], wanted: str) -> Optional[procs.Listener]:
    if not held:
        return None
    preferred = int(wanted) if wanted.isdigit() else 30000
    return next((one for one in held if one.port == preferred), min(held, key=lambda one: one.port))


def _first_entry(args: Sequence[str]) -> str:
    """``python -m`` puts the working directory first; a console script puts its own folder there."""
    for position, word in enumerate(args):
        if position and word == "-m":
            return "keep"
        if os.path.basename(word) == "sglang" and os.path.isabs(word):
            return os.path.dirname(word)
        if position and word.endswith(".py"):
            return os.path.dirname(word) or "keep"
    return "keep"


def interpreter_of(pid: int, args: Sequence[str], exe: str, variables: Dict[str, str]) -> str:
    """The interpreter as it was called: a venv's ``python`` is a link to ``exe``, and only its path tells which venv.

    Asked in this order: the command line (unless retitled), the libraries that the process has mapped, its
    environment; ``exe`` itself is the last resort.
    """
    for word in args[:2]:
        if os.path.isabs(word) and _same_file(word, exe):
            return os.path.normpath(word)
    if args and "/" not in args[0] and not args[0].startswith("sglang::"):
        found = commands.which(args[0], variables.get("PATH") or None)
        if found and _same_file(found, exe):
            return found
    if args and "/" in args[0] and not os.path.isabs(args[0]):
        candidate = os.path.normpath(os.path.join(procs.link(pid, "cwd"), args[0]))
        if _same_file(candidate, exe):
            return candidate
    folder = procs.site_packages_of(pid)
    prefixes = [folder.rsplit("/lib", 1)[0]] if folder else []
    prefixes.append(variables.get("VIRTUAL_ENV", ""))
    prefixes.append(variables.get("CONDA_PREFIX", ""))
    for prefix in filter(None, prefixes):
        for name in ("python", "python3"):
            candidate = os.path.join(prefix, "bin", name)
            if _same_file(candidate, exe):
                return candidate
    called = variables.get("_", "")
    return called if os.path.isabs(called) and _same_file(called, exe) else exe


def _same_file(path: str, exe: str) -> bool:
    return bool(exe) and os.path.exists(path) and os.path.realpath(path) == os.path.realpath(exe)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _port_owner(listener: procs.Listener, owners: Dict[str, List[int]], table: Dict[int, procs.Process]) -> Fact:
    pids = owners.get(listener.inode, [])
    one = table.get(min(pids)) if pids else None
    return {
        "port": listener.port,
        "pid": one.pid if one else 0,
        "command": " ".join(procs.redact(one.args))[:300] if one else "",
        "unit": procs.unit_of(procs.cgroup_of(one.pid)) if one else "",
        "address": listener.address,
    }
