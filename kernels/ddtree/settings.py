"""The few numbers that shape a DDTREE server, from flags, environment and drafter. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .control.ladder import Ladder, default_widths, parse
from .tree.definition import CODE_BITS, MAX_DEPTH, code_bits_needed

ENV_BUDGET = "DDTREE_BUDGET"
"""A number of nodes, or ``auto``."""
ENV_LADDER = "DDTREE_LADDER"
"""Widths to verify in, see ``control.ladder.parse``."""
ENV_RESOLVED = "DDTREE_RESOLVED_BUDGET"
"""Set by the launching process for its children, which see resolved flags only."""
ENV_ALLOW_CPU = "DDTREE_ALLOW_CPU"
ENV_API_KEY = "SGLANG_DDTREE_API_KEY"
ENV_TIME_EVERY = "DDTREE_TIME_EVERY"
TIME_EVERY = 64
"""One step in so many is timed (``adapters.timing``) where the environment says nothing else; 0: none."""
FLAG_WIDTH = "--speculative-num-draft-tokens"
FLAG_BLOCK = "--speculative-dflash-block-size"
AUTO = "auto"
DEFAULT_BUDGET = 32
AUTO_BUDGET = 64
"""The largest budget that ``auto`` may choose, where no width flag says otherwise."""
MAX_BUDGET = 1024


@dataclass(frozen=True)
class Settings:
    """budget = draft nodes without the root; width = nodes verified per request; block_size = the drafter's block.

    ``width`` is ``budget + 1``, or the block size where that is larger (draft block and tree share one window of KV
    slots); the extra nodes are unreachable padding then. The deepest path has ``min(block_size, budget + 1)`` nodes.
    With ``auto`` the budget is the largest that may be chosen. ``ladder`` is what ``DDTREE_LADDER`` says.
    """

    budget: int
    width: int
    block_size: int
    auto: bool = False
    ladder: str = ""

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return self.block_size - 1

    @property
    def ranks(self) -> int:
        """Candidates per depth that a tree of this budget can use, vocabulary permitting."""
        return max(self.budget, 1)

    def widths(self) -> Ladder:
        """Return the widths to verify in; raises ``ValueError`` where ``ladder`` is none."""
        if self.ladder:
            limits = parse(self.ladder, self.budget, self.block_size)
            return Ladder.of(limits, limits)
        return Ladder.of(default_widths(self.budget, self.block_size))

    def as_dict(self) -> dict[str, Any]:
        """Return what a beacon shows."""
        shown = {"budget": self.budget, "width": self.width, "block_size": self.block_size, "auto": self.auto}
        return {**shown, "ladder": list(self.widths().widths)}


def resolve(
    width_flag: int | None,
    block_flag: int | None,
    drafter_block: int | None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve the settings; raises ``ValueError`` that names both sources when two of them contradict each other.

    ``width_flag`` and ``block_flag`` are the values of the command-line flags, ``drafter_block`` what the drafter's own
    config says (``None`` where it says nothing).
    """
    environ = os.environ if environ is None else environ
    budget = _budget(width_flag, environ.get(ENV_BUDGET))
    block = _block_size(block_flag, drafter_block)
    if budget > MAX_BUDGET:
        raise ValueError(f"DDTREE: a budget of {budget} is above the limit of {MAX_BUDGET} nodes.")
    needed = code_bits_needed(budget, block - 1)
    if block - 1 > MAX_DEPTH or needed > CODE_BITS:
        raise ValueError(
            f"DDTREE: budget {budget} with block size {block} needs {needed} bits of order code, "
            f"{CODE_BITS} are available; use a smaller budget."
        )
    found = Settings(
        budget=budget,
        width=max(budget + 1, block),
        block_size=block,
        auto=environ.get(ENV_BUDGET) == AUTO,
        ladder=environ.get(ENV_LADDER, ""),
    )
    found.widths()  # refuses a bad ladder
    return found


def _budget(width_flag: int | None, env: str | None) -> int:
    """Return the budget from the environment or the width flag, the default where neither is given."""
    from_flag = None if width_flag is None else int(width_flag) - 1
    if from_flag is not None and from_flag < 1:
        raise ValueError(f"DDTREE: {FLAG_WIDTH}={width_flag} leaves no draft node; it is budget + 1, so at least 2.")
    if not env or env == AUTO:
        default = AUTO_BUDGET if env else DEFAULT_BUDGET
        return default if from_flag is None else from_flag
    try:
        budget = int(env)
    except ValueError:
        raise ValueError(f"DDTREE: {ENV_BUDGET}={env!r} is neither a number of nodes nor {AUTO!r}.") from None
    if budget < 1:
        raise ValueError(f"DDTREE: {ENV_BUDGET}={env} leaves no draft node; use at least 1.")
    if from_flag is not None and from_flag != budget:
        raise ValueError(
            f"DDTREE: {ENV_BUDGET}={budget} and {FLAG_WIDTH}={width_flag} contradict each other: the flag is "
            f"budget + 1, so {budget + 1}. Give one of them."
        )
    return budget


def _block_size(flag: int | None, drafter: int | None) -> int:
    """Return the drafter's block size; a flag must agree with what the drafter was trained with."""
    if flag is not None and drafter is not None and int(flag) != int(drafter):
        raise ValueError(
            f"DDTREE: {FLAG_BLOCK}={flag} and block_size={drafter} of the drafter's config contradict each other."
        )
    block = flag if flag is not None else drafter
    if block is None:
        raise ValueError(f"DDTREE: the drafter's config names no block_size; give it with {FLAG_BLOCK}.")
    if int(block) < 2:
        raise ValueError(f"DDTREE: block size {block} drafts nothing; it counts the anchor, so at least 2.")
    return int(block)


def inherit(width: int, block_size: int, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in a child process, from resolved flags and what the launching process left behind."""
    environ = os.environ if environ is None else environ
    auto = environ.get(ENV_BUDGET) == AUTO
    budget = environ.get(ENV_RESOLVED) or (not auto and environ.get(ENV_BUDGET)) or width - 1
    return Settings(
        budget=int(budget),
        width=int(width),
        block_size=int(block_size),
        auto=auto,
        ladder=environ.get(ENV_LADDER, ""),
    )


def time_every(environ: Mapping[str, str] | None = None) -> int:
    """Return how often a step is timed, 0 for never; raises ``ValueError`` for a value that is no number of steps."""
    environ = os.environ if environ is None else environ
    text = environ.get(ENV_TIME_EVERY) or str(TIME_EVERY)
    if not text.isdigit():
        raise ValueError(f"DDTREE: {ENV_TIME_EVERY}={text!r} is not a number of steps; 0 switches the time split off.")
    return int(text)


_current: Settings | None = None


def remember(settings: Settings) -> None:
    """Keep the settings of this process."""
    global _current
    _current = settings


def current() -> Settings:
    """Return the settings of this process; raises ``RuntimeError`` before they are known."""
    if _current is None:
        raise RuntimeError("DDTREE settings are not resolved in this process")
    return _current
