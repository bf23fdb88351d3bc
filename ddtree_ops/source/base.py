"""Whether the live copy can be built on, and by which strategy."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Copy, DistInfo, Facts, Refusal, Strategy
from . import words
from .wanted import SeriesKey


def objection(facts: Facts, copy: Copy) -> Refusal | None:
    """The first reason not to build on ``copy``: its content, then its ownership, then its place."""
    return _content(facts, copy) or _ownership(copy) or _place(facts, copy)


def _content(facts: Facts, copy: Copy) -> Refusal | None:
    if copy.ddtree == "native":
        return Refusal(
            code="native_ddtree",
            reason=f"this SGLang ({words.version(copy)}) has a DDTREE of its own; ddtree-ops would only be in its way",
            looked_at=(f"{copy.root}/srt/speculative/spec_info.py",),
            next_step="serve it with --speculative-algorithm DDTREE as SGLang's documentation says",
        )
    if copy.ddtree in ("foreign", "partial"):
        return _not_ours(copy)
    if copy.ddtree == "ours" and facts.deployment is None:
        return Refusal(
            code="unknown_deployment",
            reason=f"DDTREE build {copy.ddtree_build_id[:12]} is in {copy.root}, "
            f"but {facts.state_root} knows of no deployment",
            looked_at=(copy.root, f"{facts.state_root}/deployment.json"),
            next_step="set `state_root` to the one it was deployed with, or reinstall sglang in that environment",
        )
    if copy.dflash == "none":
        return Refusal(
            code="no_dflash",
            reason=f"SGLang {words.version(copy)} in {words.place(facts, copy)} has no DFLASH, which DDTREE builds on",
            looked_at=tuple(
                f"{copy.root}/srt/speculative/{name}" for name in ("dflash_worker.py", "dflash_worker_v2.py")
            ),
            next_step="upgrade that environment to sglang 0.5.11 or newer, then locate-source again",
        )
    return None


def _not_ours(copy: Copy) -> Refusal:
    files = tuple(
        f"{copy.root}/{path}  sha256 {(copy.anchors.get(path) or '?')[:16]}" for path in copy.foreign_files[:20]
    )
    if copy.ddtree == "partial":
        return Refusal(
            code="partial_ddtree",
            reason=f"{copy.root} has half of a DDTREE patch: payload and registration do not belong together",
            looked_at=files or (f"{copy.root}/srt/speculative/spec_info.py", f"{copy.root}/srt/speculative/ddtree/"),
            next_step="reinstall sglang in that environment (pip install --force-reinstall --no-deps), then deploy",
        )
    return Refusal(
        code="foreign_ddtree",
        reason=f"{words.count(len(copy.foreign_files), 'ddtree file')} in {copy.root}, neither SGLang's nor ours",
        looked_at=files,
        next_step="move those files away if they are not needed, or use another environment",
    )


def owners(copy: Copy) -> tuple[DistInfo, ...]:
    """The metadata folders that really claim the package: not empty ones, not pip's ``~`` leftovers."""
    return tuple(one for one in copy.dist_infos if one.version and not one.note.startswith("leftover"))


def _ownership(copy: Copy) -> Refusal | None:
    claiming = owners(copy)
    if len(claiming) > 1:
        return Refusal(
            code="ambiguous_owner",
            reason=f"{len(claiming)} metadata folders claim the same sglang: a reinstall could remove the wrong files",
            looked_at=tuple(f"{one.path}: {one.version}, RECORD lists {one.recorded}" for one in claiming),
            next_step="move the stale .dist-info folder out of site-packages, then locate-source again",
        )
    if copy.kind == "unknown":
        return Refusal(
            code="no_record",
            reason=f"no RECORD says which files of {copy.root} belong to SGLang; no installer could remove it",
            looked_at=tuple(one.path for one in copy.dist_infos) or (copy.root,),
            next_step="reinstall sglang in that environment with pip or uv, then locate-source again",
        )
    if copy.kind == "path":
        return Refusal(
            code="unmanaged_path",
            reason=f"{copy.root} is on the import path, but no distribution installed it",
            looked_at=(copy.root,),
            next_step="install it (pip install -e), or name an environment that has SGLang installed",
        )
    return None


def _place(facts: Facts, copy: Copy) -> Refusal | None:
    if copy.symlink:
        sharing = [one.root for one in facts.copies if one.realpath == copy.realpath and one.root != copy.root]
        others = f", shared with {words.listed(sharing)}" if sharing else ""
        return Refusal(
            code="shared_package",
            reason=f"{copy.root} is a link to {copy.realpath}{others}: who else depends on it is unknown",
            looked_at=(copy.root, copy.realpath, *sharing),
            next_step="install sglang into that environment itself, then locate-source again",
        )
    if copy.git is not None and copy.git.error.startswith("gitdir"):
        return Refusal(
            code="broken_worktree",
            reason=f"{copy.git.toplevel} is a git {copy.git.kind} whose repository is gone: {copy.git.error}",
            looked_at=(f"{copy.git.toplevel}/.git",),
            next_step=f"bring the main repository back, or run `git worktree repair {copy.git.toplevel}` in it",
        )
    return None


def strategy(facts: Facts, copy: Copy) -> tuple[Strategy, str]:
    """How DDTREE gets into this copy, and why so."""
    if copy.ddtree == "ours" and facts.deployment is not None:
        used = facts.deployment.strategy
        return ("checkout" if used == "checkout" else "derive"), f"run {facts.deployment.run_id} deployed it that way"
    if copy.kind.startswith("editable") and copy.git is not None and copy.git.head:
        return "checkout", f"the live copy is an editable install of {copy.git.toplevel}"
    twin = _twin(facts, copy)
    if twin is not None and twin.git is not None:
        return "checkout", f"{twin.git.toplevel} holds exactly the live content"
    if copy.kind == "wheel":
        return "derive", "the live copy is a wheel: RECORD says what belongs to it, and a new tree is derived from it"
    return "derive", "the live copy is in no repository: a new tree is derived from its files"


def _twin(facts: Facts, copy: Copy) -> Copy | None:
    """A clean checkout with the same source and every compiled module of the live copy."""
    for other in facts.copies:
        same = other.content_hash and other.content_hash == copy.content_hash
        clean = other.git is not None and other.git.head and not other.git.dirty and not other.git.error
        whole = set(copy.compiled) <= set(other.compiled)
        if other.kind in ("checkout", "worktree") and other.id != copy.id and same and clean and whole:
            return other
    return None


def series_for(copy: Copy, series: Sequence[SeriesKey]) -> tuple[SeriesKey | None, str]:
    """The series to apply and a note: the exact content, else the same release, else the nearest one to merge from."""
    for key in series:
        if copy.content_hash and key.content_hash == copy.content_hash:
            return key, f"its content is exactly the base of {key.name}"
    for key in series:
        if key.after and all(copy.anchors.get(path) == digest for path, digest in key.after.items()):
            return key, f"{key.name} is already applied to it"
    for key in series:
        if copy.version_content and key.release == copy.version_content:
            changed = [path for path, digest in key.before.items() if copy.anchors.get(path, digest) != digest]
            where = (
                f", {words.names(changed)} among the files of the patch"
                if changed
                else ", in files that the patch leaves alone"
            )
            return key, f"its content is {key.release} with local changes{where}"
    fitting = [key for key in series if key.spec == copy.dflash]
    nearest = min(fitting, key=lambda key: (_distance(copy, key), key.name), default=None)
    if nearest is None:
        return None, f"no series for spec {copy.dflash}"
    return nearest, f"no series for this content; {nearest.name} is nearest, to be merged and only if it merges cleanly"


def _distance(copy: Copy, key: SeriesKey) -> int:
    return sum(copy.anchors.get(path) != digest for path, digest in key.before.items())
