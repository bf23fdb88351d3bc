"""From the chosen environment to the copy that its service imports, or the reason why that is no base to build on."""

from __future__ import annotations

from dataclasses import dataclass

from ..model import Copy, Facts, Interpreter, Refusal, Resolution
from . import words


@dataclass(frozen=True)
class Live:
    """The live copy with the evidence, or a refusal."""

    copy: Copy | None = None
    evidence: tuple[str, ...] = ()
    refusal: Refusal | None = None


def resolution(facts: Facts, interpreter: Interpreter, context: str) -> Resolution | None:
    """What that interpreter finds in that context."""
    matching = (one for one in facts.resolutions if one.interpreter == interpreter.path and one.context == context)
    return next(matching, None)


def find(facts: Facts, interpreter: Interpreter) -> Live:
    """The copy that the service would import from this environment."""
    service = resolution(facts, interpreter, "service")
    alone = resolution(facts, interpreter, "isolated")
    if service is None or alone is None or service.error or alone.error:
        problem = next((one.error for one in (service, alone) if one is not None and one.error), "no answer")
        return Live(refusal=_probe_failed(interpreter, problem))
    neutral = resolution(facts, interpreter, "neutral")
    refusal = _nothing(facts, interpreter, service, alone) or _misled(facts, interpreter, service, alone, neutral)
    if refusal is not None:
        return Live(refusal=refusal)
    copy = copy_at(facts, service.package_dir, interpreter.path)
    if copy is None:
        return Live(refusal=_probe_failed(interpreter, f"{service.package_dir} is not among the copies"))
    answer = f"the service (cwd {service.cwd}) imports {service.package_dir}, found by {service.winning_entry}"
    return Live(copy, (answer, _agreement(service, alone)))


def copy_at(facts: Facts, folder: str, interpreter: str) -> Copy | None:
    """The copy whose package folder that is, the one of this environment before others."""
    matching = [copy for copy in facts.copies if folder in (copy.root, copy.realpath)]
    return next((copy for copy in matching if copy.environment == interpreter), matching[0] if matching else None)


def _agreement(service: Resolution, alone: Resolution) -> str:
    claim = f", whose metadata say {alone.metadata_version}" if alone.metadata_version else ""
    if service.package_dir == alone.package_dir:
        return f"the isolated interpreter (-I) imports the same{claim}"
    return f"the isolated interpreter (-I) imports {alone.package_dir or 'nothing'}{claim}"


def _probe_failed(interpreter: Interpreter, problem: str) -> Refusal:
    return Refusal(
        code="probe_failed",
        reason=f"{interpreter.path} did not tell what it imports: {problem}",
        looked_at=(interpreter.path,),
        next_step=f"run {interpreter.path} -c 'import sglang' on the host and repair what it complains about",
    )


def _nothing(facts: Facts, interpreter: Interpreter, service: Resolution, alone: Resolution) -> Refusal | None:
    if service.package_dir or alone.package_dir:
        return None
    elsewhere = [words.place(facts, copy) for copy in facts.copies if copy.environment != interpreter.path]
    return Refusal(
        code="no_sglang",
        reason=f"{interpreter.prefix} has no SGLang",
        looked_at=(*interpreter.site_packages, *facts.searched, *(f"elsewhere: {one}" for one in elsewhere)),
        next_step=f"install sglang 0.5.11 or newer with {interpreter.path}, or name another `environment`",
    )


def _misled(
    facts: Facts, interpreter: Interpreter, service: Resolution, alone: Resolution, neutral: Resolution | None
) -> Refusal | None:
    """Whatever makes the service import something else than its own environment's SGLang."""
    skeleton = next((place for place in service.locations if _inside(place, interpreter.site_packages)), "")
    if service.namespace and skeleton:
        return _skeleton(facts, interpreter, skeleton)
    if service.package_dir == alone.package_dir:
        return None
    where = alone.package_dir or "nothing"
    looked = (
        f"as the service: {service.package_dir or 'nothing'}, by {service.winning_entry or '-'}",
        f"isolated: {where}",
    )
    if "(PYTHONPATH)" in service.winning_entry:
        return Refusal(
            code="pythonpath_shadow",
            reason=f"PYTHONPATH makes the service import {service.package_dir} instead of {where}",
            looked_at=looked,
            next_step="remove PYTHONPATH from the service's environment in the inventory",
        )
    if "(the working directory)" in service.winning_entry:
        return Refusal(
            code="cwd_shadow",
            reason=f"from its working directory {service.cwd} the service imports {service.package_dir}, not {where}",
            looked_at=looked,
            next_step="set `working_directory` of the service to a folder without an entry `sglang`, for example /",
        )
    if neutral is not None and neutral.package_dir == service.package_dir:
        return Refusal(
            code="user_site",
            reason=f"{service.package_dir} is outside of {interpreter.prefix}: a per-user installation outranks it",
            looked_at=looked,
            next_step="remove the per-user installation, or set PYTHONNOUSERSITE=1 in the service's environment",
        )
    return Refusal(
        code="shadowed",
        reason=f"the service imports {service.package_dir or 'nothing'}, the bare interpreter {where}",
        looked_at=looked,
        next_step="make both the same: look at the service's working directory and environment in the inventory",
    )


def _inside(path: str, folders: tuple[str, ...]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _skeleton(facts: Facts, interpreter: Interpreter, folder: str) -> Refusal:
    copy = copy_at(facts, folder, interpreter.path)
    files = copy.foreign_files if copy is not None else ()
    hidden = [one for one in facts.copies if one.environment == interpreter.path and one.kind.startswith("editable")]
    what = f" and hides {words.kind(hidden[0])} {hidden[0].root}" if hidden else ""
    return Refusal(
        code="skeleton",
        reason=f"{folder} is a leftover without __init__.py ({words.count(len(files), 'file')}): "
        f"Python takes it for SGLang{what}",
        looked_at=tuple(f"{folder}/{name}" for name in files[:20]) or (f"{folder} is empty",),
        next_step=f"on the host: mv {folder} {folder}.leftover   (nothing is deleted), then locate-source again",
    )
