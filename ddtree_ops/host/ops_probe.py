"""Operation ``import_probe``: what the service would import, under its own interpreter, folder and environment."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from . import commands, probe
from .look import PACKAGE
from .ops import Params, Tx, absolute, need, op
from .protocol import HostError

_MARK = "@ddtree-import@"
_SHOWN = 20

# Runs in the service's interpreter. The finder's answer is taken without importing the package; then the bytes of the
# expected files are hashed where import would read them, their bytecode is looked at as import would, and light
# modules of ours are executed from there, through the loader that import uses. PYTHONDONTWRITEBYTECODE is set, so this
# writes nothing.
_SCRIPT = r"""
import hashlib, importlib.machinery, importlib.util, json, os, struct, sys
want = json.loads(sys.stdin.read())
out = {"files": {}, "stale": [], "constants": {}}
spec = importlib.util.find_spec("sglang")
root = list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else ""
for path in want["files"]:
    full = os.path.join(root, path)
    try:
        with open(full, "rb") as handle:
            out["files"][path] = hashlib.sha256(handle.read()).hexdigest()
        status = os.stat(full)
        cache = importlib.util.cache_from_source(full) if path.endswith(".py") else ""
        if cache and os.path.exists(cache):
            with open(cache, "rb") as handle:
                magic, flags, mtime, size = struct.unpack("<4sIII", handle.read(16))
            fits = mtime == int(status.st_mtime) & 0xFFFFFFFF and size == status.st_size & 0xFFFFFFFF
            if magic == importlib.util.MAGIC_NUMBER and flags == 0 and fits:
                code = importlib.machinery.SourcelessFileLoader("m", cache).get_code("m")
                with open(full, "rb") as handle:
                    same = compile(handle.read(), full, "exec", dont_inherit=True) == code
                if not same:
                    out["stale"].append(path)
    except Exception as error:
        out["files"][path] = "%s: %s" % (type(error).__name__, error)
for path, name in want["constants"]:
    key = path + ":" + name
    try:
        loader = importlib.machinery.SourceFileLoader("ddtree_probe", os.path.join(root, path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("ddtree_probe", loader))
        sys.modules["ddtree_probe"] = module
        loader.exec_module(module)
        out["constants"][key] = getattr(module, name)
    except Exception as error:
        out["constants"][key] = "%s: %s" % (type(error).__name__, error)
if want["full"]:
    try:
        module = importlib.import_module(want["full"])
        out["full"] = {"file": module.__file__, "error": ""}
    except BaseException as error:
        out["full"] = {"file": "", "error": "%s: %s" % (type(error).__name__, error)}
sys.stdout.write(sys.argv[1] + json.dumps(out) + "\n")
sys.stdout.flush()
os._exit(0)
"""


@op("import_probe")
def import_probe(tx: Tx, params: Params) -> Params:
    """Prove that ``import sglang`` of the service finds ``package_dir`` with the expected bytes. Writes nothing.

    Params: ``python``, ``package_dir``; the service's ``cwd`` and ``env``; ``version`` (of the metadata); ``files``
    (relative path -> sha256); ``constants`` (list of ``{"path", "name", "equals"}``: a module without relative imports
    is executed from its place); ``full``: a module to import for real (``true``: that of the algorithms' registry),
    within ``timeout_s``. Result: ``origin``, ``winner`` (the ``sys.path`` entry that answered), ``version``, ``files``
    (count), ``constants``, ``full``. Raises ``wrong_import`` with ``details.findings`` and what was seen.
    """
    python, package = absolute(params, "python"), absolute(params, "package_dir")
    cwd = str(params.get("cwd") or "/")
    env = {str(key): str(value) for key, value in dict(params.get("env") or {}).items()}
    seen = probe.ask(python, probe.Context("service", cwd, tuple(sorted(env.items()))), timeout=30.0)
    inside = _look_inside(tx, params, python, cwd, env)
    findings = _findings(params, package, seen, inside)
    if findings:
        raise HostError(
            "wrong_import",
            "the service would not import what was installed: %s" % findings[0],
            where=str(seen.get("origin") or package),
            next="see details.findings; PYTHONPATH, the working directory and .pth files decide what is found first",
            details={"findings": findings[:_SHOWN], "seen": {key: seen.get(key) for key in _SEEN}, "python": python},
        )
    return {
        "origin": seen["origin"],
        "winner": seen.get("winner", ""),
        "version": seen.get("metadata_version", ""),
        "files": len(dict(params.get("files") or {})),
        "constants": inside["constants"],
        "full": inside.get("full"),
    }


_SEEN = ("origin", "locations", "winner", "namespace", "metadata_version", "finder", "error")


def _findings(params: Params, package: str, seen: Dict[str, Any], inside: Dict[str, Any]) -> List[str]:
    found: List[str] = []
    origin = str(seen.get("origin") or "")
    if seen.get("error"):
        return ["the interpreter cannot be asked: %s" % seen["error"]]
    if not seen.get("locations"):
        return ["no %s is found at all" % PACKAGE]
    if seen.get("namespace"):
        found.append("it is a namespace package at %s" % ", ".join(seen["locations"]))
    elif os.path.realpath(os.path.dirname(origin)) != os.path.realpath(package):
        found.append("%s comes first, through %s" % (origin, seen.get("winner") or seen.get("finder")))
    if params.get("version") and seen.get("metadata_version") != params["version"]:
        found.append("metadata says version %r, not %r" % (seen.get("metadata_version"), params["version"]))
    if inside.get("error"):
        return [*found, "the interpreter cannot be asked: %s" % inside["error"]]
    for path, digest in sorted(dict(params.get("files") or {}).items()):
        if inside["files"].get(path) != digest:
            found.append("%s has other bytes: %s" % (path, inside["files"].get(path)))
    found += ["the bytecode of %s is stale" % path for path in inside["stale"]]
    for item in params.get("constants") or ():
        value = inside["constants"].get("%s:%s" % (item["path"], item["name"]))
        if value != item.get("equals"):
            found.append("%s says %s = %r, not %r" % (item["path"], item["name"], value, item.get("equals")))
    full: Optional[Dict[str, Any]] = inside.get("full")
    if full and full["error"]:
        found.append("importing it fails: %s" % full["error"])
    elif full and not os.path.realpath(full["file"]).startswith(os.path.realpath(package) + "/"):
        found.append("the real import came from %s" % full["file"])
    return found


def _look_inside(tx: Tx, params: Params, python: str, cwd: str, env: Dict[str, str]) -> Dict[str, Any]:
    full = params.get("full") or ""
    wanted = {
        "files": sorted(dict(params.get("files") or {})),
        "constants": [[need(item, "path"), need(item, "name")] for item in params.get("constants") or ()],
        "full": "sglang.srt.speculative.spec_info" if full is True else str(full),
    }
    environment = commands.clean_environment(env)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    ran = tx.run(
        [python, "-B", "-c", _SCRIPT, _MARK],
        env=environment,
        cwd=cwd,
        timeout=float(params.get("timeout_s") or (300.0 if full else 60.0)),
        stdin=json.dumps(wanted).encode("ascii"),
        step="import",
    )
    _, mark, body = ran.text().rpartition(_MARK)
    if not mark:
        return {"error": ran.complaint(), "files": {}, "stale": [], "constants": {}}
    answer: Dict[str, Any] = json.loads(body.splitlines()[0])
    return answer
