"""Three ways to put the tree into an environment: its own pip, uv, or by hand where it has neither."""

from __future__ import annotations

import json
import os
import shutil
from typing import Callable, Dict, List, NamedTuple

from . import commands, durable, editable_backend, installed, packages, snapshots
from .layouts import Layout
from .ops import Work
from .protocol import HostError

_PIP_SINCE = (21, 3)  # first pip that installs editable from a PEP 660 backend
_SECONDS = 300.0


class Installed(NamedTuple):
    """Who installed (for the report and the journal) and what was run."""

    method: str
    version: str
    argv: List[str]


def choose(layout: Layout, wanted: str, uv: str) -> str:
    """``pip``, ``uv`` or ``self`` for this environment. ``wanted`` is one of them or ``auto``.

    Raises ``externally_managed`` for a system Python that its distribution manages, ``no_installer`` when the wanted
    one is not there.
    """
    if layout.externally_managed:
        raise HostError(
            "externally_managed",
            "this Python belongs to the operating system, which forbids installing into it",
            where=layout.python,
            next="serve from a virtual environment, and name it as `environment` in the inventory",
        )
    has_pip = layout.pip >= _PIP_SINCE
    if wanted not in ("auto", "pip", "uv", "self"):
        raise HostError("bad_params", "no installer is called %r" % wanted, exit=2)
    if (wanted == "pip" and not has_pip) or (wanted == "uv" and not uv):
        raise HostError(
            "no_installer",
            "the environment has no %s" % ("pip 21.3 or newer" if wanted == "pip" else "uv"),
            where=layout.python,
            next="leave the choice to the tool (installer: auto)",
        )
    if wanted != "auto":
        return wanted
    if _needs_care(layout):
        return "self"
    return "pip" if has_pip else "uv" if uv else "self"


def find_uv() -> str:
    """The host's uv, "" when there is none."""
    return commands.which("uv")


def _needs_care(layout: Layout) -> bool:
    """pip follows a package folder that is a link and empties what it points to, and cannot remove what no RECORD
    lists: then the old copy is taken out by name, from our own list."""
    if any(os.path.islink(os.path.join(site, "sglang")) for site in layout.sites):
        return True
    folders = [folder for site in layout.sites for folder in installed.metadata_folders(site)]
    return len(folders) != 1 or not os.path.isfile(os.path.join(folders[0], "RECORD"))


def install(work: Work, layout: Layout, tree: str, method: str, uv: str) -> Installed:
    """Make ``tree`` the environment's SGLang with ``method``. Raises ``install_failed`` with the installer's words."""
    return _METHODS[method](work, layout, tree, uv)


def _pip(work: Work, layout: Layout, tree: str, uv: str) -> Installed:
    argv = [layout.python, "-I", "-B", "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    argv += ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--no-cache-dir", "-e", tree]
    _must(work, argv, layout, {"PIP_CONFIG_FILE": os.devnull, "PIP_ROOT_USER_ACTION": "ignore"})
    return Installed("pip", ".".join(map(str, layout.pip)), argv)


def _uv(work: Work, layout: Layout, tree: str, uv: str) -> Installed:
    argv = [uv, "pip", "install", "--python", layout.python, "--no-config", "--offline", "--no-cache", "--no-deps"]
    argv += [
        "--no-build-isolation",
        "--link-mode",
        "copy",
        "--no-progress",
        "--reinstall-package",
        "sglang",
        "-e",
        tree,
    ]
    _must(work, argv, layout, {})
    version = work.run([uv, "--version"], timeout=10.0).text().split()
    return Installed("uv", version[1] if len(version) > 1 else "", argv)


def _by_hand(work: Work, layout: Layout, tree: str, uv: str) -> Installed:
    """Take the old copy out by name (the snapshot has all of it), then write what an installer would write."""
    for site in layout.sites:
        _drop_develop_install(site)
    for path in sorted(installed.names(layout), reverse=True):
        if os.path.isdir(path) and not os.path.islink(path):
            durable.discard_folder(path)
        else:
            durable.discard(path)
    files = dict(editable_backend.wheel_files(tree))
    own = next(path for path in files if path.endswith(".dist-info/RECORD"))
    dist_info = os.path.dirname(own)
    del files[own]
    url = "file://" + _quote(tree)
    files[dist_info + "/INSTALLER"] = b"ddtree-ops\n"
    files[dist_info + "/REQUESTED"] = b""
    files[dist_info + "/direct_url.json"] = json.dumps({"url": url, "dir_info": {"editable": True}}).encode("ascii")
    site = layout.sites[0]
    scripts = _scripts(layout, tree)
    for name, data in scripts.items():
        files[os.path.relpath(os.path.join(layout.scripts, name), site)] = data
    files[own] = editable_backend.record(files, own)
    for path, data in files.items():
        full = os.path.normpath(os.path.join(site, path))
        os.makedirs(os.path.dirname(full), 0o755, exist_ok=True)
        executable = os.path.dirname(full) == layout.scripts and os.path.basename(full) in scripts
        durable.replace_bytes(full, data, 0o755 if executable else 0o644)
    return Installed("self", "", [])


def _drop_develop_install(site: str) -> None:
    """Take SGLang's line out of ``easy-install.pth``; the other lines are other packages'."""
    linked, path = packages.egg_link(site), os.path.join(site, "easy-install.pth")
    if not linked or not os.path.isfile(path):
        return
    with open(path, "rb") as handle:
        lines = handle.read().splitlines(keepends=True)
    kept = [line for line in lines if os.path.normpath(os.path.join(site, os.fsdecode(line.strip()))) != linked]
    status = os.stat(path)
    durable.replace_bytes(path, b"".join(kept), status.st_mode, owner=status)


_METHODS: Dict[str, Callable[[Work, Layout, str, str], Installed]] = {"pip": _pip, "uv": _uv, "self": _by_hand}


def _must(work: Work, argv: List[str], layout: Layout, extra: Dict[str, str]) -> None:
    temporary = os.path.join(work.snapshots, "tmp")
    os.makedirs(temporary, 0o700, exist_ok=True)
    env = commands.clean_environment({**extra, "TMPDIR": temporary, "VIRTUAL_ENV": layout.prefix})
    ran = work.run(argv, env=env, cwd=temporary, timeout=_SECONDS, step="install")
    shutil.rmtree(temporary, ignore_errors=True)
    if not ran.ok:
        output = (ran.err + b"\n" + ran.out).decode("utf-8", "replace").strip()
        raise HostError(
            "install_failed",
            "%s: %s" % (os.path.basename(argv[0]), _last_error(output) or ran.complaint()),
            where=layout.prefix,
            next="look at details.output; the environment is put back as it was",
            details={"output": output[-4000:], "argv": argv},
        )


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "× ", "x "))]
    return (errors or lines or [""])[-1][:300]


def _scripts(layout: Layout, tree: str) -> Dict[str, bytes]:
    found: Dict[str, bytes] = {}
    for name, target in installed.console_scripts(tree).items():
        module, _, function = target.partition(":")
        function = function.split("[")[0].strip()
        body = (
            "%s# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom %s import %s\nif __name__ == '__main__':\n"
            "    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(%s())\n"
        )
        text = body % (_shebang(layout.python), module.strip(), function.split(".")[0], function)
        found[name] = text.encode("utf-8", "surrogateescape")
    return found


def _shebang(python: str) -> str:
    """First line(s) of a script; the kernel takes neither blanks nor more than 127 bytes, a shell does."""
    if len(os.fsencode(python)) < 120 and not any(char.isspace() for char in python):
        return "#!%s\n" % python
    quoted = "'%s'" % python.replace("'", "'\"'\"'")
    return "#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % quoted


def _quote(path: str) -> str:
    from urllib.parse import quote

    return quote(os.fsencode(path))


def leftovers(layout: Layout) -> List[str]:
    """Names that hide or confuse the editable install: a package folder in site-packages, a second metadata folder of
    another installer, what pip did not finish deleting."""
    found: List[str] = []
    for site in layout.sites:
        folders = installed.metadata_folders(site)
        for name in sorted(os.listdir(site)):
            path = os.path.join(site, name)
            stale = path in folders and not os.path.isfile(os.path.join(path, "direct_url.json"))
            if name == "sglang" or installed.is_leftover(name) or stale:
                found.append(path)
    return found


def remove(paths: List[str]) -> None:
    """Remove names (a link itself, not what it points to) with all that is in them."""
    for path in paths:
        for inner in sorted(snapshots.tree(path), reverse=True):
            if os.path.isdir(inner) and not os.path.islink(inner):
                os.rmdir(inner)
            else:
                durable.discard(inner)
