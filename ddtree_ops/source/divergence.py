"""How two copies differ, in words."""

from __future__ import annotations

from ..model import Divergence, Facts


def between(facts: Facts, live: str, other: str) -> Divergence | None:
    """The comparison of two copies (by id), turned so that ``a`` is ``live``."""
    for one in facts.divergences:
        if (one.a, one.b) == (live, other):
            return one
        if (one.a, one.b) == (other, live):
            return Divergence(
                a=live,
                b=other,
                only_a=one.only_b,
                only_b=one.only_a,
                different=one.different,
                same=one.same,
                sample_only_a=one.sample_only_b,
                sample_only_b=one.sample_only_a,
                sample_different=one.sample_different,
            )
    return None


def identical(one: Divergence) -> bool:
    """The source files are the same in both."""
    return not (one.only_a or one.only_b or one.different)


def words(one: Divergence) -> str:
    """For example "459 source files only in the live copy, 305 only here, 1,099 differ, 259 are the same"."""
    if identical(one):
        return f"all {one.same:,} source files are the same as in the live copy"
    return (
        f"{one.only_a:,} source files only in the live copy, {one.only_b:,} only here, "
        f"{one.different:,} differ, {one.same:,} are the same"
    )
