"""The automatic budget: for every batch size the width and form that give most tokens per second, the chain as floor.

Arms of a batch size: the chain in its own width, and trees of every width worth its cost (``CostTable.worthwhile``). An
arm's worth is (1 + expected accepted drafts) / time of a step. Acceptance comes from ``Acceptance``: one arm's paths
tell exactly about all narrower ones, and about the chain, and a batch's size does not matter to them. Time comes from
the steps themselves where the arm has run, else from the running arm's time plus the difference of verify costs.

The best arm is looked for every ``EVERY`` steps and taken over when it is better by ``MARGIN`` (the chain: by
``CHAIN_MARGIN``, since it is what must never be lost to). What is not known is looked at in short probes: at the start
with the widest affordable tree, whose paths tell about everything narrower (with every arm where costs were not
measured); then a few steps in a thousand. A probe that failed is not repeated soon: intervals double. So the loss
against the best arm is bounded by the probes' share.

No torch, no clock, no randomness: times come in as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .acceptance import Acceptance, Mean
from .choice import Choice
from .costs import CostTable
from .ladder import Ladder

EVERY = 16
"""Steps between two looks at a batch size's arms."""

MARGIN, CHAIN_MARGIN = 0.02, 0.005
DWELL = 64
"""Fewest steps between two changes of the arm."""

START, PROBE = 32, 8
"""Steps of the first probe, and of later ones."""

PROBE_AFTER, PROBE_AT_MOST = 1024, 16384
"""Steps until the first later probe; doubled after each one that changed nothing."""

HOPE = 1.5
"""What a tree may bring over the chain, before any tree was seen: only decides whether a probe is worth while."""

ENOUGH = 64
"""Paths seen elsewhere after which another batch size needs no first probe."""

AFFORDABLE = 2.0
"""The first probe's verify cost is at most so many times the chain's."""

PRIOR = 32
"""Steps that the difference of measured verify costs counts for, beside an arm's own."""

CLIP = 3.0
"""A step that takes more than so many times the usual is an accident (garbage collection, a neighbour)."""

RESULTS_AFTER = 4
"""Steps after a probe until its results have arrived (results of a step come one or two steps later)."""

SETTLED = 32
"""Steps of an arm after which its usual time is trusted to follow a drift that concerns all arms."""

_TIME_KEEP = 0.97


@dataclass(frozen=True)
class Arm:
    """One way to build: a tree of ``width`` nodes, or the chain in that width."""

    width: int
    chain: bool

    def name(self) -> str:
        """Return ``33``, or ``chain``."""
        return "chain" if self.chain else str(self.width)


@dataclass(frozen=True)
class Sample:
    """One request's path: accepted nodes and their ranks, and whether the best candidate after it was in the tree."""

    nodes: Sequence[int]
    ranks: Sequence[int]
    next_was_there: bool


class _Time:
    """Usual time of one arm's steps."""

    def __init__(self) -> None:
        self.count = 0
        self.us = 0.0

    def add(self, us: float) -> float:
        """Add a step; returns by how much the usual time moved."""
        self.count += 1
        if self.count == 1:
            self.us = us
            return 0.0
        weight = max(1.0 / self.count, 1.0 - _TIME_KEEP)
        moved = weight * (min(us, CLIP * self.us) - self.us)
        self.us += moved
        return moved


class Bucket:
    """The arms of one (padded) batch size and what is known about them."""

    def __init__(
        self,
        batch: int,
        ladder: Ladder,
        costs: CostTable,
        block_size: int,
        budget: int,
        acceptance: Acceptance,
        rest_us: float | None = None,
    ) -> None:
        """Begin; ``rest_us`` (a step of another batch size without its verify pass) can save the first probe."""
        self._batch, self._costs, self._block = batch, costs, block_size
        self.acceptance = acceptance
        widths = tuple(width for width in ladder.at(batch) if width <= budget + 1)
        self.chain = Arm(ladder.holds(block_size - 1, batch), True)
        trees = costs.worthwhile(batch, widths) if widths else ()
        self.arms = (self.chain, *(Arm(width, False) for width in trees))
        self._measured = {arm: Mean() for arm in self.arms}
        self._times = {arm: _Time() for arm in self.arms}
        self.steps = self.changes = self.probes = 0
        guess = self._guess(rest_us)
        self.arm = guess or self._widest_affordable()
        self._back: Arm | None = None if guess or self.arm.chain else self.chain
        self._probe_left = START + 1 if self._back is not None else 0
        self._dwelt = 0
        self._probe_at, self._probe_gap = PROBE_AFTER, PROBE_AFTER
        self._judge_at = 0
        self._tour = [arm for arm in self.arms if arm != self.arm and costs.us(batch, arm.width) is None]
        self._turn = 0

    def _guess(self, rest_us: float | None) -> Arm | None:
        """Return the arm that should be best by what other batch sizes have shown, ``None`` without enough."""
        costs = {arm: self._costs.us(self._batch, arm.width) for arm in self.arms}
        if rest_us is None or self.acceptance.seen < ENOUGH or not self.acceptance.knows_trees:
            return None
        worth = {arm: (1.0 + self.accepted(arm)) / (rest_us + us) for arm, us in costs.items() if us is not None}
        return max(worth, key=lambda arm: (worth[arm], arm.chain)) if len(worth) == len(costs) else None

    def rest_us(self) -> float | None:
        """Return a step's time without its verify pass, ``None`` where that is not known."""
        cost, time = self._costs.us(self._batch, self.arm.width), self._times[self.arm]
        return max(time.us - cost, 0.0) if cost is not None and time.count > SETTLED else None

    def _widest_affordable(self) -> Arm:
        """Return the widest arm that may be afforded for a few steps: it tells about all narrower ones."""
        floor = self._costs.us(self._batch, self.chain.width)
        for arm in reversed(self.arms):
            cost = self._costs.us(self._batch, arm.width)
            if floor is None or cost is None or cost <= AFFORDABLE * floor:
                return arm
        return self.chain

    @property
    def is_probing(self) -> bool:
        """Whether the present arm is only looked at."""
        return self._probe_left > 0

    def step(self) -> Arm:
        """Return the arm of the next step."""
        self.steps += 1
        self._dwelt += 1
        if self._probe_left:
            self._probe_left -= 1
            if not self._probe_left:
                self._end_probe()
        elif self.steps == self._judge_at:
            self._judge_probe()
        elif self.steps >= self._probe_at:
            self._begin_probe()
        elif self.steps % EVERY == 0 and self._dwelt >= DWELL:
            self._decide()
        return self.arm

    def took(self, arm: Arm, us: float) -> None:
        """Note the time of one of the arm's steps.

        What moves the usual time of an arm that has settled (longer contexts, a slower clock) moves the others too, or
        those that have not run for long would look better and better.
        """
        if arm not in self._times:
            return
        moved = self._times[arm].add(us)
        if self._times[arm].count > SETTLED:
            for other, time in self._times.items():
                if other != arm and time.count:
                    time.us = max(time.us + moved, 0.1 * time.us)

    def saw(self, arm: Arm, samples: Sequence[Sample]) -> None:
        """Note the paths of one of the arm's steps."""
        for sample in samples:
            if arm.chain:
                self.acceptance.chain(len(sample.nodes), self._block - 1)
            else:
                self.acceptance.tree(arm.width, sample.nodes, sample.ranks, sample.next_was_there)

    def got(self, arm: Arm, accepted: Sequence[int]) -> None:
        """Note the accepted drafts of one of the arm's steps; only shown, beside what is expected."""
        if arm in self._measured and accepted:
            self._measured[arm].add(sum(accepted) / len(accepted), _TIME_KEEP)

    def time_us(self, arm: Arm) -> float:
        """Return the expected time of an arm's step; 0 before any step was timed.

        The arm's own steps against the best known arm's time plus the difference of verify costs, which counts like
        ``PRIOR`` steps: a few steps of a noisy machine must not make an arm look cheap.
        """
        mine = self._times[arm]
        known = [(-time.count, other.width, other) for other, time in self._times.items() if time.count]
        if not known:
            return 0.0
        nearest = min(known)[2]
        cost, other = self._costs.us(self._batch, arm.width), self._costs.us(self._batch, nearest.width)
        base = self._times[nearest].us
        if cost is None or other is None or nearest == arm:
            return mine.us if mine.count >= PROBE // 2 else base
        expected = max(base + cost - other, cost)
        return (expected * PRIOR + mine.us * mine.count) / (PRIOR + mine.count)

    def accepted(self, arm: Arm) -> float:
        """Return the expected accepted drafts of an arm."""
        if arm.chain:
            return self.acceptance.of_chain()
        return self.acceptance.of_tree(arm.width) if self.acceptance.knows_trees else HOPE * self.acceptance.of_chain()

    def worth(self, arm: Arm) -> float:
        """Return the expected tokens of a request per second, 0 while nothing is known."""
        us = self.time_us(arm)
        return (1.0 + self.accepted(arm)) / us * 1e6 if us else 0.0

    def _best(self) -> Arm:
        known = [arm for arm in self.arms if arm.chain or self.acceptance.knows_trees]
        return max(known, key=lambda arm: (self.worth(arm), arm.chain))

    def _decide(self) -> None:
        """Take over the best arm when it is clearly better than the present one."""
        if not self.acceptance.seen or not any(time.count for time in self._times.values()):
            return
        best = self._best()
        margin = CHAIN_MARGIN if best.chain else MARGIN
        if best != self.arm and self.worth(best) > self.worth(self.arm) * (1.0 + margin):
            self._change(best)

    def _change(self, arm: Arm) -> None:
        self.arm = arm
        self._dwelt = 0
        self.changes += 1

    def _begin_probe(self) -> None:
        """Look at another arm for a few steps: the promising ones in turn, the chain among them."""
        now = self.worth(self.arm)
        others = [arm for arm in self.arms if arm != self.arm and self.worth(arm) * 1.25 >= now]
        self._probe_at = self.steps + self._probe_gap
        if not others:
            return
        self._turn += 1
        self.probes += 1
        self._back, self.arm = self.arm, others[self._turn % len(others)]
        self._probe_left = PROBE + 1

    def _end_probe(self) -> None:
        """Return to the arm from before; what the probe has shown is judged when its results are in."""
        assert self._back is not None
        if self._tour:
            self.arm, self._probe_left = self._tour.pop(), PROBE + 1
            return
        self.arm, self._back = self._back, None
        self._judge_at = self.steps + RESULTS_AFTER

    def _judge_probe(self) -> None:
        before = self.arm
        self._decide()
        self._probe_gap = PROBE_AFTER if self.arm != before else min(2 * self._probe_gap, PROBE_AT_MOST)
        self._probe_at = self.steps + self._probe_gap

    def shown(self) -> dict[str, Any]:
        """Return what a beacon shows."""
        return {
            "arm": self.arm.name(),
            "width": self.arm.width,
            "steps": self.steps,
            "changes": self.changes,
            "probes": self.probes,
            "arms": {
                arm.name(): {
                    "width": arm.width,
                    "accepted": round(self.accepted(arm), 3),
                    "accepted_lately": round(self._measured[arm].value, 3),
                    "step_us": round(self.time_us(arm), 1),
                    "measured_steps": self._times[arm].count,
                    "tok_per_s": round(self.worth(arm), 1),
                }
                for arm in self.arms
            },
        }


class Auto:
    """The automatic controller of a server: a bucket per captured batch size."""

    def __init__(self, ladder: Ladder, costs: CostTable, block_size: int, budget: int) -> None:
        self._ladder, self._costs, self._block, self._budget = ladder, costs, block_size, budget
        self.acceptance = Acceptance(ladder.widths, block_size - 1)
        self._buckets: dict[int, Bucket] = {}
        self._of_batch: dict[int, Bucket] = {}

    def bucket(self, batch: int) -> Bucket:
        """Return the bucket of a batch size."""
        found = self._of_batch.get(batch)
        if found is None:
            size = self._costs.bucket(batch)
            if size not in self._buckets:
                rest = [(-other.steps, us) for other in self._buckets.values() if (us := other.rest_us()) is not None]
                self._buckets[size] = Bucket(
                    size, self._ladder, self._costs, self._block, self._budget, self.acceptance,
                    min(rest)[1] if rest else None,
                )  # fmt: skip
            found = self._of_batch[batch] = self._buckets[size]
        return found

    def choose(self, batch: int) -> Choice:
        """Return what the next step of a batch builds; call it once per step."""
        bucket = self.bucket(batch)
        arm = bucket.step()
        budget = self._block - 1 if arm.chain else arm.width - 1
        reason = "probe" if bucket.is_probing else "cost"
        return Choice(arm.width, min(budget, self._budget), arm.chain, reason)

    def took(self, batch: int, choice: Choice, us: float) -> None:
        """Note how long a step took that ran undisturbed between two others of the same choice."""
        self.bucket(batch).took(Arm(choice.width, choice.chain), us)

    def saw(self, batch: int, choice: Choice, samples: Sequence[Sample]) -> None:
        """Note the paths of a step."""
        self.bucket(batch).saw(Arm(choice.width, choice.chain), samples)

    def got(self, batch: int, choice: Choice, accepted: Sequence[int]) -> None:
        """Note the accepted drafts of a step, per request."""
        self.bucket(batch).got(Arm(choice.width, choice.chain), accepted)

    @property
    def sizes(self) -> int:
        """How many batch sizes have been seen."""
        return len(self._buckets)

    def shown(self) -> dict[str, Any]:
        """Return what a beacon shows, by batch size."""
        return {str(size): bucket.shown() for size, bucket in sorted(self._buckets.items())}
