"""Which release a copy's content is, whatever its version string says.

The table ``releases.json`` holds, per release, the content hash and the hashes of anchor files that change often;
``python -m ddtree_ops.source.releases TREE...`` makes it from unpacked releases. The series of ``patches/`` add theirs.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ..model import Copy, Facts, Value
from .wanted import SeriesKey

#: Files (relative to the package) that tell releases apart.
ANCHORS = (
    "srt/speculative/spec_info.py",
    "srt/speculative/dflash_worker.py",
    "srt/speculative/dflash_worker_v2.py",
    "srt/speculative/dflash_info.py",
    "srt/speculative/dflash_utils.py",
    "srt/speculative/spec_registry.py",
    "srt/speculative/eagle_worker_v2.py",
    "srt/speculative/spec_utils.py",
    "srt/managers/scheduler.py",
    "srt/managers/schedule_batch.py",
    "srt/model_executor/model_runner.py",
    "srt/server_args.py",
)
#: A copy with local edits is still recognised while at least this share of a release's anchors is unchanged.
ENOUGH = 0.6
_TABLE = Path(__file__).with_name("releases.json")


class Release(Value, frozen=True, kw_only=True):
    """One release: SHA-256 of those anchors that it has, and its content hash."""

    release: str
    content_hash: str
    anchors: dict[str, str]


@functools.cache
def known() -> tuple[Release, ...]:
    """The releases of the table."""
    return msgspec.json.decode(_TABLE.read_bytes(), type=tuple[Release, ...])


def anchor_paths(series: Iterable[SeriesKey] = ()) -> tuple[str, ...]:
    """The files whose hashes the host is asked for: :data:`ANCHORS` and every file that a series knows."""
    paths = dict.fromkeys(ANCHORS)
    for one in series:
        paths.update(dict.fromkeys(one.before))
    return tuple(paths)


def identify(copy: Copy, series: Sequence[SeriesKey] = ()) -> tuple[str, bool]:
    """Release that the copy's content is ("" when unknown), and whether all of its source is exactly that."""
    releases = {one.release: one for one in known()}
    for key in series:
        anchors = {**(releases[key.release].anchors if key.release in releases else {}), **key.before}
        releases[key.release] = Release(release=key.release, content_hash=key.content_hash, anchors=anchors)
    for one in releases.values():
        if copy.content_hash and copy.content_hash == one.content_hash:
            return one.release, True
    scores = sorted(((_score(copy, one), one.release) for one in releases.values()), reverse=True)
    if not scores or scores[0][0] < ENOUGH or (len(scores) > 1 and scores[0][0] == scores[1][0]):
        return "", False
    return scores[0][1], False


def _score(copy: Copy, release: Release) -> float:
    asked = {path: digest for path, digest in release.anchors.items() if path in copy.anchors}
    same = sum(copy.anchors[path] == digest for path, digest in asked.items())
    return same / len(asked) if asked else 0.0


def with_versions(facts: Facts, series: Sequence[SeriesKey] = ()) -> Facts:
    """``facts`` with ``version_content`` of every copy filled in."""
    copies = tuple(msgspec.structs.replace(copy, version_content=identify(copy, series)[0]) for copy in facts.copies)
    return msgspec.structs.replace(facts, copies=copies)


def make(trees: Iterable[Path]) -> list[Release]:
    """The table for unpacked releases: folders that hold ``sglang/`` with its metadata."""
    from ..host import content, look

    made = []
    for tree in trees:
        listed = content.walk(str(tree / "sglang"))
        hashes = content.Hashes(look.Look({"timeout_s": 600})).of(listed, content.source_paths(listed))
        anchors = {path: hashes[path] for path in ANCHORS if path in hashes}
        release = content.version_in_source(listed.root)
        made.append(Release(release=release, content_hash=content.content_hash(hashes), anchors=anchors))
    return sorted(made, key=lambda one: one.content_hash)


def _main() -> None:
    table = msgspec.to_builtins(make(map(Path, sys.argv[1:])))
    _TABLE.write_text(json.dumps(sorted(table, key=lambda one: str(one["release"])), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    _main()
