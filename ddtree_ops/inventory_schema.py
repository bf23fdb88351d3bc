"""The keys of ``inventory.yaml``: their types, and what is allowed for each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """One key: ``kind`` names a reader of :class:`Reader`, ``doc`` what is allowed, for messages."""

    kind: str
    doc: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = float("inf")
    pattern: str = ""


def _path(doc: str) -> Field:
    return Field("path", f"{doc}, an absolute path on the host")


_SSH: dict[str, Field] = {
    "config": Field("string", "an ssh_config file on this machine, read instead of ~/.ssh/config"),
    "identity_files": Field("strings", "a list of private key files on this machine"),
    "known_hosts": Field("strings", "a list of known_hosts files on this machine, read instead of the user's"),
    "proxy_jump": Field("string", "[user@]host[:port], several separated by commas"),
    "agent": Field("boolean", "true or false"),
    "connect_timeout": Field("number", "seconds, from 1 to 600", low=1, high=600),
}
_SERVICE: dict[str, Field] = {
    "unit": Field("string", "a unit name that ends with .service", pattern=r"[A-Za-z0-9:_.@-]+\.service"),
    "target_model": Field("string", "a folder on the host or a model name"),
    "drafter": Field("string", "a folder on the host or a model name"),
    "host": Field("string", "the address to bind, for example 127.0.0.1"),
    "port": Field("integer", "a port from 1 to 65535", low=1, high=65535),
    "budget": Field("integer", "draft nodes per step without the root, from 1 to 1023", low=1, high=1023),
    "auto_budget": Field("boolean", "true: the server chooses each width by cost, up to `budget`; false: `budget`"),
    "gpus": Field("integers", "a list of GPU indices, for example [0, 1]"),
    "extra_flags": Field("flags", 'a list of words for sglang.launch_server, for example [--tp-size, "2"]'),
    "environment": Field("map", "names and plain values (no secrets)"),
    "secrets": Field("secrets", "names and sources: env:NAME or file:PATH here, host-file:PATH on the host"),
    "working_directory": _path("a folder"),
    "user": Field("string", "the account that the service runs under", pattern=r"[a-z_][a-z0-9_-]*\$?"),
    "readiness_timeout": Field("number", "seconds, from 1 to 86400", low=1, high=86400),
    "stop_timeout": Field("number", "seconds, from 1 to 3600", low=1, high=3600),
}
#: Keys of ``defaults`` and of a group; a host has ``groups`` besides.
HOST_FIELDS: dict[str, Field | dict[str, Field]] = {
    "address": Field("string", "a name or an address", pattern=r"[^\s/@]+"),
    "port": Field("integer", "a port from 1 to 65535", low=1, high=65535),
    "user": Field("string", "the account to log in to"),
    "transport": Field("choice", "ssh or local", choices=("ssh", "local")),
    "init": Field("choice", "systemd or process", choices=("systemd", "process")),
    "become": Field("boolean", "true or false"),
    "python": _path("the interpreter for the program on the host"),
    "environment": _path("the virtual environment that the service uses"),
    "checkouts": Field("paths", "a list of absolute paths on the host"),
    "state_root": _path("where ddtree-ops keeps its state"),
    "takeover": Field("string", "the unit that may be taken over"),
    "ssh": _SSH,
    "service": _SERVICE,
}
#: Keys of the file itself.
TOP = ("default_host", "defaults", "groups", "hosts")
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_?KEY)($|_)", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"^(hf_|sk-|ghp_|github_pat_|glpat-|xox[bp]-|AKIA)[A-Za-z0-9_-]{8,}")
REJECTION_SAMPLING = "--speculative-use-rejection-sampling"
_BY_KEY = "has a key of its own: "
_ON_ARGV = "would be readable by everybody on the host; "
#: Flags of the server that may not stand in ``extra_flags``, and why (after the flag's name in a message).
OWN_FLAGS = {
    "--model-path": _BY_KEY + "service.target_model",
    "--model": _BY_KEY + "service.target_model",
    "--host": _BY_KEY + "service.host",
    "--port": _BY_KEY + "service.port",
    "--speculative-draft-model-path": _BY_KEY + "service.drafter",
    "--speculative-draft-model": _BY_KEY + "service.drafter",
    "--speculative-num-draft-tokens": _BY_KEY + "service.budget (draft nodes; the width is one more)",
    "--speculative-algorithm": "is set by ddtree-ops",
    "--speculative-algo": "is set by ddtree-ops",
    "--api-key": _ON_ARGV + "write `secrets: {SGLANG_DDTREE_API_KEY: env:SGLANG_DDTREE_API_KEY}`",
    "--admin-api-key": _ON_ARGV + "it cannot be set here",
    REJECTION_SAMPLING: "is for chains; DDTREE verifies a tree",
}


def field_of(key: str) -> Field | None:
    """The field of a dotted key, None when there is none."""
    head, _, rest = key.partition(".")
    found = HOST_FIELDS.get(head)
    if isinstance(found, dict):
        return found.get(rest)
    return found if not rest else None


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable looks like one that must not be written down: by its name, or by the form of its value."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.match(value))


def nearest(word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """``" (did you mean x?)"`` for the closest of ``known``, or nothing."""
    found = difflib.get_close_matches(word, list(known), 1, 0.6)
    return f" (did you mean {found[0]}?)" if found else ""
