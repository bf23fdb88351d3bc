"""Containers and images that hold SGLang, asked of docker and podman within a few seconds."""

from __future__ import annotations

import json
from typing import List

from . import commands
from .look import Fact, Look

ANSWER_SECONDS = 3.0


def find(look: Look) -> List[Fact]:
    """model.Container of each container whose image, name or command mentions SGLang; unused images have no name."""
    found: List[Fact] = []
    for runtime in ("docker", "podman"):
        path = commands.which(runtime)
        if path:
            found += _ask(look, runtime, path)
    return found


def _ask(look: Look, runtime: str, path: str) -> List[Fact]:
    wait = look.left(ANSWER_SECONDS)
    listed = commands.run([path, "ps", "--all", "--no-trunc", "--format", "{{json .}}"], timeout=wait)
    if not listed.ok:
        if "daemon" not in listed.complaint() and "No such file" not in listed.complaint():
            look.warn("%s did not list its containers: %s" % (runtime, listed.complaint()))
        return []
    found: List[Fact] = []
    for row in _rows(listed):
        image = str(row.get("Image") or "")
        name = row.get("Names")
        name = str(name[0] if isinstance(name, list) and name else name or "")
        if "sglang" in " ".join((image, name, str(row.get("Command") or ""))).lower():
            running = str(row.get("State") or row.get("Status") or "").lower().startswith(("running", "up"))
            found.append({"runtime": runtime, "name": name, "image": image, "running": running})
    images = commands.run([path, "images", "--format", "{{.Repository}}:{{.Tag}}"], timeout=wait)
    used = {str(one["image"]) for one in found}
    for image in images.lines() if images.ok else []:
        if "sglang" in image.lower() and image not in used:
            found.append({"runtime": runtime, "name": "", "image": image, "running": False})
    return found


def _rows(ran: commands.Ran) -> "list[dict[str, object]]":
    rows = []
    for line in ran.lines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows
