"""The verdict: which copy is real, on what evidence, and what may be done about it. A pure function of the facts."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import Copy, Facts, Interpreter, NotLive, Refusal, Verdict
from . import base, divergence, environment, live, whatif, words
from .releases import with_versions
from .wanted import SeriesKey, WantedService


def decide(facts: Facts, wanted: WantedService, series: Sequence[SeriesKey] = ()) -> Verdict:
    """The verdict for the wanted service. ``facts`` may come without ``version_content``; it is filled in here."""
    facts = with_versions(facts, series)
    choice = environment.choose(facts, wanted)
    if choice.refusal is not None or choice.interpreter is None:
        return _refused(facts, choice.refusal, others=_all_copies(facts))
    found = live.find(facts, choice.interpreter)
    if found.refusal is not None or found.copy is None:
        return _refused(facts, found.refusal, choice.interpreter, evidence=choice.evidence, others=_all_copies(facts))
    copy = found.copy
    evidence = choice.evidence + found.evidence + _servers(facts, choice.interpreter, copy)
    others = _others(facts, copy)
    objection = base.objection(facts, copy)
    if objection is not None:
        return _refused(facts, objection, choice.interpreter, copy, evidence=evidence, others=others)
    how, why = base.strategy(facts, copy)
    key, note = base.series_for(copy, series)
    return Verdict(
        strategy=how,
        sentence=_sentence(facts, copy, how),
        environment=choice.interpreter.path,
        live=copy.id,
        evidence=(*evidence, _content_line(copy), why, note),
        others=others,
        spec=copy.dflash,
        series=key.name if key is not None else "",
        warnings=_warnings(facts, choice.interpreter, copy),
    )


def _refused(
    facts: Facts,
    refusal: Refusal | None,
    interpreter: Interpreter | None = None,
    copy: Copy | None = None,
    *,
    evidence: tuple[str, ...] = (),
    others: tuple[NotLive, ...] = (),
) -> Verdict:
    refusal = refusal or Refusal(code="bug", reason="no environment was chosen and no reason given")
    return Verdict(
        strategy="refuse",
        sentence=f"Refused: {refusal.reason}.",
        environment=interpreter.path if interpreter is not None else "",
        live=copy.id if copy is not None else "",
        evidence=evidence,
        others=others,
        spec=copy.dflash if copy is not None else "none",
        refusal=refusal,
        warnings=_warnings(facts, interpreter, copy),
    )


def _sentence(facts: Facts, copy: Copy, how: str) -> str:
    place = words.place(facts, copy)
    what = f"SGLang {words.version(copy)}, the {words.kind(copy)} in {place} (DFLASH spec {copy.dflash})"
    head = f"The service imports {what}"
    if copy.ddtree == "ours":
        return f"{head}, and DDTREE build {copy.ddtree_build_id[:12]} of ours is already in it."
    if how == "checkout":
        return f"{head}; DDTREE goes into a tree that borrows that checkout's commit and leaves the checkout as it is."
    rest = _left_alone(facts, copy)
    return f"{head}; DDTREE goes into a tree derived from it{rest}."


def _left_alone(facts: Facts, copy: Copy) -> str:
    others = [one for one in facts.copies if one.kind in ("checkout", "worktree") and one.realpath != copy.realpath]
    if not others:
        return ""
    return f", and {words.listed(words.place(facts, one) for one in others)} stays as it is"


def _content_line(copy: Copy) -> str:
    record = copy.record
    if record is None:
        return f"{copy.files:,} files, content {copy.content_hash[:12]}"
    if record.modified or record.missing or record.unrecorded:
        parts = ((record.modified, "modified"), (record.missing, "missing"), (record.unrecorded, "not recorded"))
        told = "; ".join(f"{len(paths)} {what} ({words.names(paths)})" for paths, what in parts if paths)
        return f"RECORD lists {record.recorded:,} files: {told}"
    return f"all {record.recorded:,} files are as its RECORD says"


def _servers(facts: Facts, interpreter: Interpreter, copy: Copy) -> tuple[str, ...]:
    """What running servers of this environment import, as further evidence."""
    found = []
    for server in environment.servers_of(facts, interpreter):
        name = server.unit or "no unit"
        found.append(f"process {server.pid} ({name}) serves on port {server.port} from this environment")
    for one in facts.resolutions:
        if one.context == "server" and one.interpreter == interpreter.path:
            same = "the same" if one.package_dir in (copy.root, copy.realpath) else one.package_dir or "nothing"
            found.append(f"a server started in {one.cwd} imports {same}")
    return tuple(found)


def _all_copies(facts: Facts) -> tuple[NotLive, ...]:
    return tuple(NotLive(copy=copy.id, why=f"{words.kind(copy)}, {words.version(copy)}") for copy in facts.copies)


def _others(facts: Facts, copy: Copy) -> tuple[NotLive, ...]:
    return tuple(NotLive(copy=one.id, why=_why_not(facts, copy, one)) for one in facts.copies if one.id != copy.id)


def _why_not(facts: Facts, copy: Copy, other: Copy) -> str:
    parts = []
    if other.kind == "skeleton":
        return f"no code: a folder without __init__.py with {words.count(other.files, 'file')}"
    if other.environment and other.environment != copy.environment:
        parts.append("belongs to another environment")
    elif not other.environment:
        parts.append("no environment imports it")
    else:
        parts.append("outranked in the same environment")
    if words.is_older(other, copy):
        parts.append("older")
    if other.dflash == "none":
        parts.append("no DFLASH")
    if other.git is not None and other.git.dirty:
        parts.append(f"dirty ({words.names(other.git.dirty)})")
    if other.git is not None and other.git.error:
        parts.append(other.git.error)
    compared = divergence.between(facts, copy.id, other.id)
    if compared is not None:
        parts.append(divergence.words(compared))
    return "; ".join(parts)


def _warnings(facts: Facts, interpreter: Interpreter | None, copy: Copy | None) -> tuple[str, ...]:
    found = list(facts.warnings)
    if interpreter is not None and interpreter.enclosing_repository:
        found.append(
            f"{interpreter.prefix} lies in the git work tree of {interpreter.enclosing_repository}: "
            "that repository stays as it is, and git is not used to apply anything"
        )
    if interpreter is not None and not interpreter.writable:
        found.append(f"{words.listed(interpreter.site_packages, 1)} is not writable for {facts.host.user}")
    if copy is not None:
        found += _about_live(copy)
        for other in facts.copies:
            if other.kind in ("checkout", "worktree") and other.realpath != copy.realpath:
                found.append(whatif.sentence(facts, copy, other))
        found += _traps(facts, copy)
    for one in facts.copies:
        if one.git is not None and one.git.ownership_trouble:
            found.append(
                f"{one.git.toplevel} belongs to {one.owner or 'another user'}: git calls that dubious ownership"
            )
        if one.git is not None and one.git.superproject:
            found.append(f"{one.git.toplevel} is a submodule of {one.git.superproject}")
    return tuple(dict.fromkeys(text for text in found if text))


def _about_live(copy: Copy) -> list[str]:
    found = []
    if copy.version_claimed and copy.version_content and copy.version_claimed != copy.version_content:
        found.append(f"{copy.id} claims {copy.version_claimed}, but its content is {copy.version_content}")
    if copy.hard_linked:
        found.append(f"{copy.hard_linked:,} files of {copy.id} are hard links into a cache: none is written in place")
    if copy.ddtree == "ours" and copy.foreign_files:
        found.append(f"besides our build there are ddtree files of somebody else: {words.names(copy.foreign_files)}")
    if copy.read_only:
        found.append(f"{copy.root} is on a read-only file system")
    if copy.git is not None and copy.git.dirty and copy.kind.startswith("editable"):
        found.append(f"the live checkout has uncommitted edits ({words.names(copy.git.dirty)}); they are carried over")
    for one in copy.dist_infos:
        if one.note:
            found.append(f"{one.path}: {one.note}")
    return found


def _traps(facts: Facts, copy: Copy) -> list[str]:
    """Folders in which a server would import another copy than the live one."""
    return [
        f"a server started in {one.cwd} would import {one.package_dir}"
        for one in facts.resolutions
        if one.context == "checkout-cwd"
        and one.interpreter == copy.environment
        and one.package_dir not in ("", copy.root, copy.realpath)
    ]
