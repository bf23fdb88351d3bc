"""Facts made by hand, so that each rule of the verdict is one small change to a good host."""

from __future__ import annotations

from typing import Any

import msgspec

from ddtree_ops.model import Copy, DistInfo, Facts, GitState, HostInfo, Interpreter, RecordCheck, Resolution, Server
from ddtree_ops.source import releases
from ddtree_ops.source.wanted import SeriesKey

ENV = "/root/ml-env"
SITE = f"{ENV}/lib/python3.12/site-packages"
TABLE = {one.release: one for one in releases.known()}
SERIES = tuple(
    SeriesKey(
        name=f"sglang-{name}",
        release=name,
        spec=spec,
        content_hash=TABLE[name].content_hash,
        before=TABLE[name].anchors,
    )
    for name, spec in (("0.5.13.post1", "v1"), ("0.5.20", "v2"))
)


def interpreter(prefix: str = ENV, *sources: str, **more: Any) -> Interpreter:
    """An environment's interpreter."""
    return Interpreter(
        path=f"{prefix}/bin/python",
        realpath="/usr/bin/python3.12",
        prefix=prefix,
        version="3.12.3",
        sources=sources or ("search",),
        site_packages=(f"{prefix}/lib/python3.12/site-packages",),
        **more,
    )


def copy(release: str = "0.5.13.post1", prefix: str = ENV, **more: Any) -> Copy:
    """A pristine wheel of a release."""
    known = TABLE[release]
    root = f"{prefix}/lib/python3.12/site-packages/sglang"
    base: dict[str, Any] = {
        "id": f"wheel@{prefix}",
        "kind": "wheel",
        "root": root,
        "realpath": more.get("root", root),
        "environment": f"{prefix}/bin/python",
        "version_claimed": release,
        "anchors": {path: known.anchors.get(path) for path in releases.ANCHORS},
        "content_hash": known.content_hash,
        "files": 3131,
        "dflash": {"0.5.10.post1": "none", "0.5.13.post1": "v1"}.get(release, "v2"),
        "dist_infos": (DistInfo(path=f"{root}-{release}.dist-info", version=release, recorded=3131),),
        "record": RecordCheck(recorded=3131),
        "compiled": ("srt/grpc/_core.so",),
    }
    return Copy(**{**base, **more})


def checkout(release: str = "0.5.10.post1", top: str = "/root/sglang", **more: Any) -> Copy:
    """A git checkout of a release."""
    state = GitState(toplevel=top, head="a" * 40, branch="main", tags=(f"v{release}",), **more.pop("git", {}))
    return copy(
        release,
        id=f"checkout@{top}",
        kind="checkout",
        root=f"{top}/python/sglang",
        environment="",
        git=state,
        dist_infos=(),
        record=None,
        compiled=(),
        **more,
    )


def resolution(context: str, folder: str = f"{SITE}/sglang", prefix: str = ENV, **more: Any) -> Resolution:
    """What an interpreter imports in a context: ``folder`` ("" for nothing)."""
    base: dict[str, Any] = {
        "interpreter": f"{prefix}/bin/python",
        "context": context,
        "cwd": "/",
        "origin": f"{folder}/__init__.py" if folder else "",
        "package_dir": folder,
        "locations": (folder,) if folder else (),
        "winning_entry": f"{folder.rsplit('/', 1)[0]} (site-packages)" if folder else "",
    }
    return Resolution(**{**base, **more})


def everywhere(folder: str, prefix: str = ENV) -> tuple[Resolution, ...]:
    """The same answer in the three contexts."""
    return tuple(resolution(context, folder, prefix) for context in ("service", "neutral", "isolated"))


def host(**changed: Any) -> Facts:
    """A good host: one environment with the wheel 0.5.13.post1, named by the inventory."""
    base: dict[str, Any] = {
        "host": HostInfo(
            hostname="pro6000",
            user="root",
            euid=0,
            home="/root",
            os="Ubuntu 24.04",
            kernel="6.8",
            arch="x86_64",
            boot_id="b",
            pid1="systemd",
        ),
        "interpreters": (interpreter(ENV, "inventory"),),
        "copies": (copy(),),
        "resolutions": everywhere(f"{SITE}/sglang"),
        "state_root": "/var/lib/ddtree-ops",
        "searched": ("/root", "/opt"),
    }
    return Facts(**{**base, **changed})


def server(pid: int = 4242, prefix: str = ENV, **more: Any) -> Server:
    """A running server of an environment."""
    base: dict[str, Any] = {"pid": pid, "port": 30000, "interpreter": f"{prefix}/bin/python", "unit": "sglang.service"}
    return Server(**{**base, **more})


def altered(value: Any, **changes: Any) -> Any:
    """A value with some fields changed."""
    return msgspec.structs.replace(value, **changes)
