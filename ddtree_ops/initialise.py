"""``ddtree-ops init``: an inventory entry from a running server, and adding it to a file without touching the rest."""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError, Refused, UsageError
from .inventory import Host, Service
from .inventory_reader import read
from .inventory_schema import OWN_FLAGS, looks_secret
from .model import Facts, Server

_BLOCK_ALGORITHMS = ("DFLASH", "DDTREE")  # their drafter is a DFlash drafter, which DDTREE can use
_SKIPPED_ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "SGLANG_DDTREE_API_KEY")
_WIDTH = 100


@dataclass(frozen=True)
class Entry:
    """One host of an inventory as text.

    ``text`` is a whole document (``hosts:`` and the entry below it); ``notes`` say what was left out or needs a look.
    """

    name: str
    text: str
    notes: tuple[str, ...] = ()

    @property
    def body(self) -> list[str]:
        """The lines below ``hosts:``."""
        return self.text.splitlines()[1:]


@dataclass
class _Draft:
    """Values for the entry while the arguments are taken apart."""

    service: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def entry_from(host: Host, facts: Facts, name: str = "") -> Entry:
    """The entry for ``host`` from its running server.

    Args:
        host: How the host was reached (address, user, port, ssh options).
        name: The entry's name; default: the host's own name.

    Raises:
        Refused: no server runs, or several and none on ``host.service.port``.
    """
    server = choose(host, facts)
    draft = _Draft()
    _arguments(draft, server.args)
    if server.port and server.port != draft.service.get("port", Service().port):
        draft.service["port"] = server.port
    _environment(draft, server)
    if server.user and server.user != facts.host.user:
        draft.service["user"] = server.user
    if server.cwd not in ("", "/"):
        draft.service["working_directory"] = server.cwd
    if draft.flags:
        draft.service["extra_flags"] = draft.flags
    chosen = name or _plain_name(facts.host.hostname) or _plain_name(host.name) or "host"
    text = _render(chosen, _host_values(host, facts, server), draft.service, server)
    read(text, f"entry for {chosen}")  # what we write must pass our own check
    return Entry(chosen, text, tuple(draft.notes))


def choose(host: Host, facts: Facts) -> Server:
    """The server that the entry is made from."""
    own = [server for server in facts.servers if not server.foreign_namespace]
    where = host.address or host.name
    if not own:
        inside = [server for server in facts.servers if server.foreign_namespace]
        raise Refused(
            "the only SGLang server runs inside a container" if inside else "no SGLang server runs",
            where=where,
            why="; ".join(f"pid {server.pid}, port {server.port}" for server in inside)
            or "looked at every process and listening socket",
            next_step="start the server that DDTREE shall replace, or write the entry by hand (docs/inventory.md)",
            code="no_server",
        )
    if len(own) == 1:
        return own[0]
    on_port = [server for server in own if server.port == host.service.port]
    if len(on_port) == 1:
        return on_port[0]
    found = ", ".join(f"{server.unit or f'pid {server.pid}'} on port {server.port}" for server in own)
    raise Refused(
        f"{len(own)} SGLang servers run",
        where=where,
        why=found,
        next_step="name one by its port: DDTREE_OPS_SERVICE_PORT=PORT ddtree-ops init …",
        code="several_servers",
        details={"ports": [server.port for server in own]},
    )


def add_entry(path: Path, entry: Entry) -> None:
    """Add ``entry`` below ``hosts:`` of the inventory ``path``; all other bytes stay, comments too.

    The file is made when it does not exist, and replaced atomically.

    Raises:
        UsageError: a host of that name is there.
        ConfigError: the file has mistakes, or ``hosts:`` is not in block style.
    """
    old = path.read_text("utf-8") if path.exists() else ""
    known = read(old, str(path)).hosts
    if entry.name in known:
        raise UsageError(
            f"the inventory has a host {entry.name} already",
            where=str(path),
            next_step="give another name with --name, or remove that entry first",
        )
    new = _inserted(old, entry, path)
    found = read(new, str(path)).hosts
    kept = {name: {key: value for key, (value, _) in found[name].items()} for name in known}
    before = {name: {key: value for key, (value, _) in known[name].items()} for name in known}
    if kept != before or list(found) != [*known, entry.name]:
        diff = "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm=""))
        raise ConfigError("the entry could not be added without changing others", where=str(path), why=diff)
    _replace(path, new)


# -- from the server's command line --


def _arguments(draft: _Draft, args: tuple[str, ...]) -> None:
    """Split ``python -m sglang.launch_server ...`` into settings, flags that stay, and what is not taken over."""
    options = _options(args)
    algorithm = next((values[-1] for flag, values in options if flag.startswith("--speculative-algo") and values), "")
    dropped = []
    for flag, values in options:
        value = values[-1] if values else ""
        if flag in ("--model-path", "--model"):
            draft.service["target_model"] = value
        elif flag == "--host":
            draft.service["host"] = value
        elif flag == "--port" and value.isdigit():
            draft.service["port"] = int(value)
        elif flag.startswith("--speculative-draft-model") and algorithm in _BLOCK_ALGORITHMS:
            draft.service["drafter"] = value
        elif flag == "--speculative-num-draft-tokens" and algorithm == "DDTREE" and value.isdigit():
            draft.service["budget"] = int(value) - 1
        elif flag == "--api-key":
            draft.service["secrets"] = {"SGLANG_DDTREE_API_KEY": "env:SGLANG_DDTREE_API_KEY"}
            draft.notes.append("the server wants an API key: export SGLANG_DDTREE_API_KEY before a deploy")
        elif flag.startswith("--speculative-") or flag in OWN_FLAGS or "***" in values:
            dropped.append(flag)
        else:
            draft.flags += [flag, *values]
    if algorithm:
        draft.notes.append(f"the server runs {algorithm}; DDTREE takes its place")
    if not draft.service.get("drafter"):
        draft.notes.append("no DFlash drafter is known: set service.drafter")
    dropped = [flag for flag in dropped if not flag.startswith("--speculative-algo")]
    if dropped:
        draft.notes.append("not taken over: " + ", ".join(dropped))


def _options(args: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """``--flag value value`` and ``--flag=value`` after the program, in order; positional words belong to no flag."""
    start = next((at for at, word in enumerate(args) if "launch_server" in word or word == "serve"), 0)
    options: list[tuple[str, list[str]]] = []
    for word in args[start + 1 :]:
        if word.startswith("--"):
            flag, sign, value = word.partition("=")
            options.append((flag, [value] if sign else []))
        elif options:
            options[-1][1].append(word)
    return options


def _environment(draft: _Draft, server: Server) -> None:
    visible = server.environment.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)*", visible):
        draft.service["gpus"] = [int(index) for index in visible.split(",")]
    elif visible:
        draft.notes.append(f"CUDA_VISIBLE_DEVICES={visible} is not a list of indices: set service.gpus")
    kept = {
        name: value
        for name, value in sorted(server.environment.items())
        if name not in _SKIPPED_ENVIRONMENT and value and not looks_secret(name, value)
    }
    if kept:
        draft.service["environment"] = kept
    if "PYTHONPATH" in kept:
        draft.notes.append(f"PYTHONPATH={kept['PYTHONPATH']} goes before the environment's own packages: is it wanted?")


# -- the entry's text --


def _host_values(host: Host, facts: Facts, server: Server) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if host.transport == "local":
        values["transport"] = "local"
    for key in ("address", "port", "user"):
        if getattr(host, key):
            values[key] = getattr(host, key)
    if host.become:
        values["become"] = True
    if facts.host.pid1 and facts.host.pid1 != "systemd":
        values["init"] = "process"
    values["environment"] = _prefix(facts, server.interpreter)
    checkouts = []
    for copy in facts.copies:
        if copy.kind in ("checkout", "worktree") and copy.git is not None:
            checkouts.append(copy.git.toplevel)
    if checkouts:
        values["checkouts"] = list(dict.fromkeys(checkouts))
    if host.state_root:
        values["state_root"] = host.state_root
    if host.ssh.proxy_jump:
        values["ssh"] = {"proxy_jump": host.ssh.proxy_jump}
    return {key: value for key, value in values.items() if value}


def _prefix(facts: Facts, interpreter: str) -> str:
    for known in facts.interpreters:
        if interpreter and interpreter in (known.path, known.realpath) and known.prefix:
            return known.prefix
    folder = Path(interpreter).parent
    return str(folder.parent) if interpreter and folder.name == "bin" else ""


def _render(name: str, values: dict[str, Any], service: dict[str, Any], server: Server) -> str:
    lines = ["hosts:", f"  {name}:"]
    for key, value in values.items():
        lines += _lines(key, value, 4)
    if server.unit.endswith(".service") and server.unit != Service().unit:
        lines.append(f"    # takeover: {server.unit} # remove the first # to let `deploy` stop and replace it")
    lines.append("    service:")
    order = list(Service.__struct_fields__)
    for key in sorted(service, key=order.index):
        lines += _lines(key, service[key], 6)
    if not service.get("drafter"):
        lines.append("      # drafter: the folder of the DFlash drafter for this target")
    if not service:
        lines[-2] = "    service: {}"
    return "\n".join(lines) + "\n"


def _lines(key: str, value: Any, indent: int) -> list[str]:
    pad = " " * indent
    flow = f"{pad}{key}: {_flow(value)}"
    if not isinstance(value, (dict, list)) or (isinstance(value, list) and len(flow) <= _WIDTH):
        return [flow]
    if isinstance(value, dict):
        return [f"{pad}{key}:", *(f"{pad}  {name}: {_flow(item)}" for name, item in value.items())]
    return [f"{pad}{key}:", *(f"{pad}  - {_flow(item)}" for item in value)]


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True)
    return text.strip().removesuffix("\n...").strip()


def _plain_name(text: str) -> str:
    short = text.partition(".")[0] if not re.fullmatch(r"[0-9.]+", text) else ""
    return short if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", short) else ""


# -- into the file --


def _inserted(old: str, entry: Entry, path: Path) -> str:
    root = yaml.compose(old, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    hosts = next((value for key, value in pairs if key.value == "hosts"), None)
    lines = old.splitlines()
    if hosts is None:
        return "\n".join([*lines, *([""] if lines else []), *entry.text.splitlines()]) + "\n"
    if isinstance(hosts, yaml.MappingNode) and hosts.value and not hosts.flow_style:
        first = hosts.value[0][0].start_mark
        at = _last_line(hosts) + 1
        while at < len(lines) and re.match(rf" {{{first.column + 1},}}#", lines[at]):
            at += 1  # a comment indented deeper than a host's name belongs to the host before it
        body = [
            " " * (first.column - 2) + line if first.column >= 2 else line[2 - first.column :] for line in entry.body
        ]
        return "\n".join([*lines[:at], "", *body, *lines[at:]]) + "\n"
    if isinstance(hosts, yaml.ScalarNode) or not hosts.value:  # `hosts:` or `hosts: {}`
        at = next(number for number, line in enumerate(lines) if line.startswith("hosts:"))
        lines[at] = "hosts:" + lines[at].removeprefix("hosts:").replace("{}", "").rstrip()
        return "\n".join([*lines[: at + 1], *entry.body, *lines[at + 1 :]]) + "\n"
    raise ConfigError(
        "`hosts:` is written in braces, so nothing can be added below it",
        where=f"{path}:{hosts.start_mark.line + 1}",
        next_step="write one host per line, or add this entry by hand:\n" + entry.text,
    )


def _last_line(node: yaml.Node) -> int:
    """Number of the last line that holds content of ``node`` (a block's own end mark lies after trailing comments)."""
    if isinstance(node, yaml.ScalarNode) or getattr(node, "flow_style", False):
        end = node.end_mark
        return int(end.line - 1 if end.column == 0 and end.line > node.start_mark.line else end.line)
    children = [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]
    return max((_last_line(child) for child in children), default=int(node.start_mark.line))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path.resolve())
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
