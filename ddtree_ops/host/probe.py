"""The few lines that run inside a host's interpreter: who it is, and what ``import sglang`` would find there.

Nothing is imported: ``find_spec`` of a top-level name does not execute the package. The finders of ``sys.meta_path``
are asked in order, as ``import`` does; ``.pth`` files and ``sitecustomize`` have run by then, as for the service.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import commands

MARK = "\n@ddtree-probe@"

# Standard library modules must not come from the working directory or from the folder under test, so sys.path is
# narrowed while they are imported. Python 3.6 syntax: it must be able to say that an interpreter is too old.
SCRIPT = r"""
import sys
first, name, mark = sys.argv[1], sys.argv[2], sys.argv[3]
entries = [e for e in sys.path]
if not getattr(sys.flags, "isolated", 0) and not getattr(sys.flags, "safe_path", 0):
    if first == "drop":
        del entries[:1]
    elif first != "keep":
        entries[:1] = [first]
sys.path[:] = [e for e in entries if e and e.startswith((sys.base_prefix, sys.base_exec_prefix))] or entries
import json, os, importlib, importlib.machinery
sys.path[:] = entries
machinery = importlib.machinery

def found():
    for finder in sys.meta_path:
        ask = getattr(finder, "find_spec", None)
        spec = ask(name, None) if ask else None
        if spec is not None:
            return finder, spec
    return None, None

def version():
    for entry in sys.path:
        try:
            names = sorted(os.listdir(entry or "."))
        except OSError:
            continue
        for item in names:
            low = item.lower()
            if low == name + ".egg-info" or (low.startswith(name + "-") and low.endswith((".dist-info", ".egg-info"))):
                where = os.path.join(entry or os.getcwd(), item)
                for inner in ("METADATA", "PKG-INFO", ""):
                    try:
                        with open(os.path.join(where, inner) if inner else where, "rb") as handle:
                            for line in handle.read(65536).split(b"\n"):
                                if line.lower().startswith(b"version:"):
                                    return line.split(b":", 1)[1].strip().decode("ascii", "replace")
                    except OSError:
                        pass
                return ""
    return ""

out = {}
try:
    finder, spec = found()
    out["finder"] = "" if finder is None else (finder.__module__ if finder is not machinery.PathFinder else "path")
    out["origin"] = out["winner"] = ""
    out["locations"] = []
    if spec is not None:
        regular = bool(spec.has_location and spec.origin)
        out["origin"] = os.path.abspath(spec.origin) if regular else ""
        out["locations"] = [os.path.abspath(e) for e in (spec.submodule_search_locations or [])]
        if finder is machinery.PathFinder:
            for entry in sys.path:
                one = finder.find_spec(name, [entry])
                if one is not None and bool(one.has_location and one.origin) == regular:
                    out["winner"] = entry or "''"
                    break
        out["namespace"] = not regular
    out["metadata_version"] = version()
except Exception as error:
    out["error"] = "%s: %s" % (type(error).__name__, error)
site = sys.modules.get("site")
out.update(
    path=sys.path,
    prefix=sys.prefix,
    base_prefix=getattr(sys, "base_prefix", sys.prefix),
    version="%d.%d.%d" % sys.version_info[:3],
    abi=machinery.EXTENSION_SUFFIXES[0].lstrip(".").rsplit(".", 1)[0],
    site_packages=site.getsitepackages() if hasattr(site, "getsitepackages") else [],
    user_site=site.getusersitepackages() if site and getattr(site, "ENABLE_USER_SITE", False) else "",
    stdlib=os.path.dirname(os.__file__),
)
sys.stdout.write(mark + json.dumps(out) + "\n")
sys.stdout.flush()
"""


class Context(NamedTuple):
    """Under what circumstances an interpreter is asked.

    ``first`` is what stands first on ``sys.path``: "keep" (the working directory, as for ``python -m``), "drop"
    (as for ``python -P``), or a folder (that of a console script).
    """

    name: str
    cwd: str = "/"
    environment: Tuple[Tuple[str, str], ...] = ()
    isolated: bool = False
    first: str = "keep"


ISOLATED = Context("isolated", isolated=True)


def ask(interpreter: str, context: Context, name: str = "sglang", timeout: float = 10.0) -> Dict[str, Any]:
    """Run the probe; the answer's ``error`` is set (and little else) when the interpreter cannot give one."""
    flags: List[str] = ["-B"] + (["-I"] if context.isolated else [])
    environment = commands.clean_environment(dict(context.environment))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    ran = commands.run(
        [interpreter, *flags, "-c", SCRIPT, context.first, name, MARK],
        timeout=timeout,
        cwd=context.cwd,
        env=environment,
    )
    answer = _parse(ran.text())
    if answer is None:
        return {"error": ran.complaint() if not ran.ok else "the interpreter did not answer"}
    return answer


def _parse(text: str) -> Optional[Dict[str, Any]]:
    _, mark, body = text.rpartition(MARK)
    if not mark:
        return None
    try:
        answer = json.loads(body.splitlines()[0])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None
