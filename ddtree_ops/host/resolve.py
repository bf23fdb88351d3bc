"""Which ``sglang`` an interpreter would import where it matters: as the service, neutrally, as a running server."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Tuple

from . import packages, probe
from .interpreters import Candidate
from .look import Fact, Look

#: One question: the candidate, the context to ask in, and the name under which it is reported.
Question = Tuple[Candidate, probe.Context]


def service_context(look: Look) -> probe.Context:
    """The context in which our unit will start: its working directory and environment, ``python -m``."""
    variables = {str(key): str(value) for key, value in (look.params.get("service_environment") or {}).items()}
    return probe.Context("service", look.text("working_directory") or "/", tuple(sorted(variables.items())))


NEUTRAL = probe.Context("neutral", first="drop")


def answer(look: Look, question: Question) -> Fact:
    """Ask and report (model.Resolution); safe to run in a thread."""
    candidate, context = question
    if not os.path.isdir(context.cwd):
        return _report(candidate, context, {"error": "the working directory %s does not exist" % context.cwd})
    return _report(candidate, context, probe.ask(candidate.path, context, timeout=look.left(10.0)))


def isolated(candidate: Candidate) -> Fact:
    """The answer that the interpreter already gave when it was interrogated."""
    return _report(candidate, probe.ISOLATED, candidate.answer)


def _report(candidate: Candidate, context: probe.Context, found: Dict[str, Any]) -> Fact:
    origin = str(found.get("origin") or "")
    locations = [str(place) for place in found.get("locations") or ()]
    return {
        "interpreter": candidate.path,
        "context": context.name,
        "cwd": context.cwd,
        "pythonpath": dict(context.environment).get("PYTHONPATH", ""),
        "origin": origin,
        "package_dir": os.path.dirname(origin) if origin else (locations[0] if locations else ""),
        "namespace": bool(found.get("namespace")),
        "locations": locations,
        "winning_entry": explain_entry(candidate, context, found) if locations or origin else "",
        "metadata_version": str(found.get("metadata_version") or ""),
        "error": str(found.get("error") or ""),
    }


def explain_entry(candidate: Candidate, context: probe.Context, found: Dict[str, Any]) -> str:
    """The ``sys.path`` entry or finder that answered, with who put it there."""
    finder = str(found.get("finder") or "")
    if finder != "path":
        return "import hook %s" % finder
    winner = str(found.get("winner") or "")
    if winner == "''" or (context.first == "keep" and not context.isolated and winner == context.cwd):
        return "%s (the working directory)" % context.cwd
    if context.first not in ("keep", "drop") and winner == context.first:
        return "%s (the folder of the started script)" % winner
    for part in dict(context.environment).get("PYTHONPATH", "").split(os.pathsep):
        if part and os.path.normpath(part) == os.path.normpath(winner):
            return "%s (PYTHONPATH)" % winner
    for folder in candidate.site_packages:
        if winner == folder:
            return "%s (site-packages)" % winner
        source = packages.path_entries(folder).get(os.path.normpath(winner))
        if source:
            return "%s (by %s)" % (winner, os.path.basename(source))
    return winner


def places(resolutions: Iterable[Fact]) -> List[str]:
    """Every package folder that some resolution led to."""
    found: List[str] = []
    for resolution in resolutions:
        for place in resolution["locations"] or [resolution["package_dir"]]:
            if place and place not in found:
                found.append(str(place))
    return found
