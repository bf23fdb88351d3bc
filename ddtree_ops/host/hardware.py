"""The machine: who we are on it, GPUs, memory, disks, tools."""

from __future__ import annotations

import os
import platform
import pwd
import socket
import sys
import time
from typing import Dict, List, Tuple

from . import commands
from .look import Fact, Look, read_text

TOOLS = (
    "git",
    "systemctl",
    "systemd-analyze",
    "systemd-run",
    "journalctl",
    "uv",
    "pip",
    "conda",
    "docker",
    "podman",
    "nvidia-smi",
    "sudo",
    "patch",
    "gcc",
    "nvcc",
    "ninja",
    "cargo",
    "curl",
)


def tools() -> Dict[str, str]:
    """Path of each tool that is there."""
    path = commands.search_path()
    found = {name: commands.which(name, path) for name in TOOLS}
    return {name: place for name, place in found.items() if place}


def host(look: Look) -> Fact:
    """model.HostInfo."""
    uname = os.uname()
    pid1 = read_text("/proc/1/comm", 100).strip()
    systemd = pid1 == "systemd" and os.path.isdir("/run/systemd/system")
    state = commands.run(["systemctl", "is-system-running"], timeout=look.left(5.0)) if systemd else None
    return {
        "hostname": socket.gethostname(),
        "user": _user(),
        "euid": os.geteuid(),
        "home": os.path.expanduser("~"),
        "os": _os_name(),
        "kernel": uname.release,
        "arch": uname.machine,
        "boot_id": read_text("/proc/sys/kernel/random/boot_id", 100).strip(),
        "pid1": pid1,
        "systemd_state": state.text().strip() if state is not None else "",
        "python": platform.python_version() + " " + sys.executable,
        "in_container": in_container(),
        "sudo": sudo(look),
        "time": time.time(),
    }


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _os_name() -> str:
    for line in read_text("/etc/os-release", 65536).splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip().strip('"')
    return platform.system()


def in_container() -> bool:
    """This program itself runs in a container, as far as the usual marks tell."""
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    return bool(read_text("/run/systemd/container", 100).strip())


def sudo(look: Look) -> str:
    """ "root", "passwordless", "password" (sudo is there, but asks) or "none"."""
    if os.geteuid() == 0:
        return "root"
    path = commands.which("sudo")
    if not path:
        return "none"
    return "passwordless" if commands.run([path, "-n", "true"], timeout=look.left(5.0)).ok else "password"


_GPU_QUERY = "--query-gpu=index,name,uuid,memory.total,memory.free"


def gpus(look: Look) -> Tuple[List[Fact], str]:
    """model.Gpu of each GPU as ``nvidia-smi`` reports it, and why there are none."""
    path = commands.which("nvidia-smi")
    if not path:
        return [], "nvidia-smi not found"
    ran = commands.run([path, _GPU_QUERY, "--format=csv,noheader,nounits"], timeout=look.left(15.0))
    if not ran.ok:
        text = ran.text().strip()
        return [], ("nvidia-smi: " + (text.splitlines()[0] if text and not ran.error else ran.complaint()))
    found = []
    for line in ran.lines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 5 and fields[0].isdigit():
            found.append(
                {
                    "index": int(fields[0]),
                    "name": ", ".join(fields[1:-3]),
                    "uuid": fields[-3],
                    "memory_total_mib": _mib(fields[-2]),
                    "memory_free_mib": _mib(fields[-1]),
                }
            )
    return found, "" if found else "nvidia-smi reports no GPU"


def _mib(text: str) -> int:
    """MiB; 0 where the driver says ``[N/A]`` (unified memory, MIG parents)."""
    try:
        return int(float(text))
    except ValueError:
        return 0


def memory() -> Tuple[int, int]:
    """Total and available memory in bytes."""
    values = {}
    for line in read_text("/proc/meminfo", 65536).splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[key] = int(words[0]) * 1024
    return values.get("MemTotal", 0), values.get("MemAvailable", values.get("MemFree", 0))


def disk(path: str) -> Fact:
    """model.Disk for the file system that holds ``path`` (or would: its nearest parent that exists)."""
    place = path
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    status = os.statvfs(place)
    return {
        "path": path,
        "free": status.f_bavail * status.f_frsize,
        "total": status.f_blocks * status.f_frsize,
        "filesystem": _filesystem(os.path.realpath(place)),
        "read_only": bool(status.f_flag & os.ST_RDONLY),
        "inodes_free": status.f_favail,
    }


def _filesystem(path: str) -> str:
    """Type of the mount that holds ``path``: the longest mount point, the last one mounted there."""
    best, kind = "", ""
    for line in read_text("/proc/self/mounts", 4 << 20).splitlines():
        fields = line.split(" ")
        if len(fields) > 2:
            point = fields[1].replace("\\040", " ")
            if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                best, kind = point, fields[2]
    return kind
