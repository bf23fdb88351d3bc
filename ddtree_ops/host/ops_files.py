"""Operations ``write_files``, ``remove_files``, ``purge_bytecode``, ``compile_bytecode``."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from typing import Any, Dict, List, NamedTuple, Optional

from . import bytecode, durable, hashing, releases, snapshots
from .ops import Params, Tx, Work, absolute, need, op, undoer
from .protocol import HostError

_WORKERS = 4


class Write(NamedTuple):
    """One file to be written: ``before`` is its hash now ("" for absent, None: whatever it is)."""

    path: str
    data: bytes
    after: str
    before: Optional[str]
    mode: Optional[int]


@op("write_files")
def write_files(tx: Tx, params: Params) -> Params:
    """Write files by compare-and-swap; all are compared before the first is written.

    Params: ``root`` (folder that no write may leave, links resolved); ``files``: list of ``{path, sha256, before,
    data | text, mode}``. ``path`` is absolute or relative to ``root``; ``data`` is base64; ``sha256`` is that of the
    new bytes; ``before`` the hash that the file must have now, "" for "must not exist", left out for "do not care".
    A file that has its new content already is not touched. Mode and owner stay unless ``mode`` is given.

    Result: ``written``, ``unchanged`` (paths). Raises ``changed_meanwhile`` (exit 5), ``damaged``, ``outside``.
    """
    root = absolute(params, "root")
    writes = [_write(root, dict(item)) for item in params.get("files") or ()]
    todo = [write for write in writes if _compare(write)]
    done = {write.path for write in todo}
    for folder in sorted({os.path.dirname(path) for path in done}):
        _make_parents(tx, folder)
    _promise(tx, sorted(done), "write")
    for write in todo:
        here = _status(write.path)
        mode = write.mode if write.mode is not None else (stat.S_IMODE(here.st_mode) if here else 0o644)
        _compare(write)  # again: the first look may be seconds old
        durable.replace_bytes(write.path, write.data, mode, owner=here)
    bytecode.drop(sorted(done))
    _verify(todo)
    return {"written": sorted(done), "unchanged": sorted(w.path for w in writes if w.path not in done)}


@op("remove_files")
def remove_files(tx: Tx, params: Params) -> Params:
    """Remove files by compare-and-swap. Params: ``root``, ``files``: list of ``{path, before}`` (before as above).

    Result: ``removed``, ``absent`` (were not there).
    """
    root = absolute(params, "root")
    wanted = [(_inside(root, str(need(dict(item), "path"))), dict(item).get("before")) for item in params["files"]]
    removed = [path for path, _ in wanted if _status(path) is not None]
    for path, before in wanted:
        if path in removed and before not in (None, hashing.of_file(path)):
            raise _changed(path, str(before), hashing.of_file(path))
    _promise(tx, removed, "remove")
    for path in removed:
        os.unlink(path)
    bytecode.drop(removed)
    return {"removed": removed, "absent": [path for path, _ in wanted if path not in removed]}


@op("purge_bytecode")
def purge_bytecode(tx: Tx, params: Params) -> Params:
    """Remove the bytecode of ``files`` (absolute paths), and of no other, where ``python`` keeps it under ``env`` and
    ``cwd``, and beside the sources. Result: ``removed``. Nothing to undo: Python writes it again."""
    paths = [str(path) for path in params.get("files") or () if str(path).endswith(".py")]
    gone = bytecode.drop(paths)
    if params.get("python"):
        env, cwd = dict(params.get("env") or {}), str(params.get("cwd") or "/")
        for cache in bytecode.elsewhere(tx, absolute(params, "python"), paths, env, cwd):
            if os.path.lexists(cache):
                durable.discard(cache)
                gone.append(cache)
    return {"removed": gone}


@op("compile_bytecode")
def compile_bytecode(tx: Tx, params: Params) -> Params:
    """Compile ``package_dir`` with ``python``, checked by source hash, so that the first start is fast and never stale.

    Result: ``compiled`` (all sources compiled) and ``complaint``. Lies in ``__pycache__`` of our own tree only.
    """
    package = absolute(params, "package_dir")
    if not package.startswith(tx.releases + "/"):
        raise HostError("outside", "only our own trees are compiled", where=package, exit=1)
    argv = [absolute(params, "python"), "-I", "-m", "compileall", "-q", "-j", str(_WORKERS)]
    argv += ["--invalidation-mode", "checked-hash", package]
    ran = tx.run(argv, timeout=600.0, step="compile")
    return {"compiled": ran.ok, "complaint": "" if ran.ok else ran.complaint()}


@undoer("restore_files")
def restore_files(work: Work, data: Params) -> None:
    """Each file as it was, or no file."""
    snapshots.restore(str(data["store"]), [str(path) for path in data["paths"]], lambda p: releases.keeps(work, p))


@undoer("drop_bytecode")
def drop_bytecode(work: Work, data: Params) -> None:
    """Bytecode of sources that came back may look valid for them though it is not."""
    bytecode.drop([str(path) for path in data["paths"]])


@undoer("remove_folder")
def remove_folder(work: Work, data: Params) -> None:
    """A folder that we made, once it is empty."""
    if not releases.keeps(work, str(data["path"])):
        durable.discard_folder(str(data["path"]))


def _write(root: str, item: Dict[str, Any]) -> Write:
    path = _inside(root, str(need(item, "path")))
    if "text" in item:
        data = str(item["text"]).encode("utf-8", "surrogateescape")
    else:
        try:
            data = base64.b64decode(str(item.get("data") or ""), validate=True)
        except (binascii.Error, ValueError):
            raise HostError("damaged", "the bytes for this file are no base64", where=path, exit=3) from None
    after = str(need(item, "sha256"))
    if hashing.of_bytes(data) != after:
        raise HostError("damaged", "the bytes for this file do not have their hash", where=path, exit=3)
    mode = item.get("mode")
    before = item.get("before")
    return Write(path, data, after, None if before is None else str(before), None if mode is None else int(mode))


def _inside(root: str, path: str) -> str:
    """``path`` with its folder's links resolved; it must stay below ``root``, and be no link itself."""
    full = os.path.normpath(os.path.join(root, path))
    real = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
    top = os.path.realpath(root)
    if not real.startswith(top.rstrip("/") + "/"):
        raise HostError("outside", "this path leads out of %s" % root, where=full, next="look at the links on the way")
    if os.path.islink(real) or os.path.isdir(real):
        raise HostError("bad_kind", "a link or a folder is where a file must be written", where=real)
    return real


def _compare(write: Write) -> bool:
    """True when the file must be written; raises when it is neither what it was nor what it shall be."""
    now = hashing.of_file_or_absent(write.path)
    if now == write.after:
        status = _status(write.path)
        return status is not None and write.mode is not None and stat.S_IMODE(status.st_mode) != write.mode
    if write.before is not None and now != write.before:
        raise _changed(write.path, write.before, now)
    return True


def _changed(path: str, wanted: str, now: str) -> HostError:
    words = {"": "absent"}
    return HostError(
        "changed_meanwhile",
        "the file is not what the plan was made for: planned %s, now %s"
        % (words.get(wanted, wanted[:12]), words.get(now, now[:12])),
        where=path,
        next="plan again",
        exit=5,
        details={"planned": wanted, "now": now},
    )


def _verify(writes: List[Write]) -> None:
    for write in writes:
        if hashing.of_file_or_absent(write.path) != write.after:
            raise HostError("write_failed", "the file does not hold what was written", where=write.path)


def _make_parents(tx: Tx, folder: str) -> None:
    missing: List[str] = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for path in reversed(missing):
        tx.will("remove_folder", {"path": path}, "create %s" % path)
        os.mkdir(path, 0o755)


def _promise(tx: Tx, paths: List[str], verb: str) -> None:
    """Keep ``paths`` as they are now, and record how they come back."""
    if paths:
        tx.will("drop_bytecode", {"paths": paths}, "")
        store = snapshots.take(tx, "files-%d" % len(tx.journal.records), paths)
        text = "%s %s" % (verb, paths[0] if len(paths) == 1 else "%d files" % len(paths))
        tx.will("restore_files", {"paths": paths, "store": store}, text)


def _status(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
