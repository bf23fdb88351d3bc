"""The verb ``read_blobs``: files as the operator's HEAD has them, for a three-way merge. Reads without a trace."""

from __future__ import annotations

import base64
from typing import Any, Dict

from . import commands, gitinfo, hashing
from .protocol import Emit, verb


@verb("read_blobs")
def read_blobs(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """The bytes of ``paths`` (relative to ``toplevel``) at HEAD: ``{"files": [{path, sha256, content}]}``.

    ``content`` is base64; a path that HEAD does not have, or a host without git, gives ``error`` instead.
    """
    top, git = str(params.get("toplevel") or ""), commands.which("git")
    found = []
    for path in params.get("paths") or ():
        ran = commands.run([git, "-C", top, "cat-file", "blob", "HEAD:%s" % path], env=gitinfo.environment())
        if git and ran.ok:
            content = base64.b64encode(ran.out).decode("ascii")
            found.append({"path": str(path), "sha256": hashing.of_bytes(ran.out), "content": content})
        else:
            found.append({"path": str(path), "error": ran.complaint() if git else "no git on the host"})
    return {"files": found}
