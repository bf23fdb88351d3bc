"""What ``pip install -e`` over a checkout would have done: the mistake that this tool exists to prevent, in words."""

from __future__ import annotations

from ..model import Copy, Facts
from . import words


def editable_install(live: Copy, checkout: Copy) -> tuple[str, ...]:
    """Consequences of ``pip install -e`` of ``checkout`` into the environment of ``live``; empty for none."""
    found = []
    old, new = words.version(live), words.version(checkout)
    if words.is_older(checkout, live):
        found.append(f"replaced {old} by the older {new}")
    elif (checkout.version_content or new) != (live.version_content or old):
        found.append(f"replaced {old} by {new}")
    if live.dflash != "none" and checkout.dflash == "none":
        found.append("removed DFLASH, without which there is no DDTREE")
    elif live.dflash != checkout.dflash:
        found.append(f"changed the DFLASH worker from spec {live.dflash} to {checkout.dflash}")
    if live.compiled and not set(live.compiled) <= set(checkout.compiled):
        lost = len(set(live.compiled) - set(checkout.compiled))
        found.append(f"left out or rebuilt {words.count(lost, 'compiled module')}")
    if checkout.git is not None and checkout.git.dirty:
        found.append(f"put uncommitted edits into service ({words.names(checkout.git.dirty)})")
    if found and (checkout.git is None or not checkout.git.tags):
        found.append("perhaps called the result 0.0.0, for lack of a tag")
    return tuple(found)


def sentence(facts: Facts, live: Copy, checkout: Copy) -> str:
    """One sentence, "" when an editable install of the checkout would change nothing."""
    consequences = editable_install(live, checkout)
    if not consequences:
        return ""
    body = "; ".join(consequences)
    return f"`pip install -e` over {words.place(facts, checkout)} would have {body}"
