"""Model folders: the parts of their configuration that decide whether a target and a drafter fit."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Optional

from .content import file_sha256
from .look import Fact, Look, names_in, read_bytes, read_text, user_path

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|gguf)$")
_REPOSITORY = re.compile(r"^[\w.-]+/[\w.-]+$")


def describe(look: Look, role: str, named: str) -> Fact:
    """model.ModelFolder for a path, or a Hugging Face name that the host's cache holds."""
    path, error = locate(look, named)
    fact: Fact = {
        "role": role,
        "path": path or named,
        "exists": bool(path),
        "config": {},
        "tokenizer_sha256": "",
        "weights_bytes": 0,
        "error": error,
    }
    if not path:
        return fact
    raw = read_bytes(os.path.join(path, "config.json"), 16 << 20)
    try:
        config: Any = json.loads(raw.decode("utf-8")) if raw else None
    except ValueError as trouble:
        config, fact["error"] = None, "config.json cannot be read: %s" % trouble
    if isinstance(config, dict):
        fact["config"] = config
    elif not fact["error"]:
        fact["error"] = "no config.json in %s" % path
    for name in _TOKENIZERS:
        digest = file_sha256(os.path.join(path, name))
        if digest:
            fact["tokenizer_sha256"] = digest
            break
    for name in names_in(path):
        if _WEIGHTS.search(name):
            try:
                fact["weights_bytes"] += os.stat(os.path.join(path, name)).st_size
            except OSError:
                pass
    return fact


def locate(look: Look, named: str) -> "tuple[str, str]":
    """Folder of the model and "", or "" and why there is none."""
    folder = user_path(named) if named.startswith(("/", "~")) else ""
    if folder:
        return (folder, "") if os.path.isdir(folder) else ("", "%s does not exist" % folder)
    if not _REPOSITORY.match(named):
        return "", "%r is neither an absolute path nor a name like org/model" % named
    for cache in _caches(dict(look.params.get("service_environment") or {})):
        snapshot = _snapshot(os.path.join(cache, "models--" + named.replace("/", "--")))
        if snapshot:
            return snapshot, ""
    return "", "%s is not in the host's Hugging Face cache" % named


def _caches(variables: Dict[str, Any]) -> "list[str]":
    def setting(name: str) -> Optional[str]:
        return str(variables.get(name) or os.environ.get(name) or "") or None

    home = setting("HF_HOME") or "~/.cache/huggingface"
    found = [setting("HF_HUB_CACHE"), setting("HUGGINGFACE_HUB_CACHE"), os.path.join(home, "hub")]
    return [user_path(folder) for folder in found if folder]


def _snapshot(folder: str) -> str:
    revision = read_text(os.path.join(folder, "refs/main"), 200).strip()
    names = [revision] if revision else names_in(os.path.join(folder, "snapshots"))
    for name in names:
        path = os.path.join(folder, "snapshots", name)
        if name and os.path.isdir(path):
            return path
    return ""
