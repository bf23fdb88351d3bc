"""The ladder, the memory plan and the automatic budget, simulated: trees by the heap, targets drawn at random.

The simulated server has true costs and a true law of tokens that the controller does not know; results arrive two steps
late, as under overlap scheduling. What is compared is the time that its tokens took with the time they would have taken
on the best arm, and on the chain.
"""

from __future__ import annotations

import importlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kernels.payload import definition, heap, settings

control = importlib.import_module("ddtree.control")
acceptance = importlib.import_module("ddtree.control.acceptance")
auto = importlib.import_module("ddtree.control.auto")
choice = importlib.import_module("ddtree.control.choice")
costs = importlib.import_module("ddtree.control.costs")
ladder = importlib.import_module("ddtree.control.ladder")
memory = importlib.import_module("ddtree.control.memory")

BLOCK = 16
WIDTHS = (8, 16, 24, 33, 49, 65)
Law = list[list[float]]  # per depth the probability of each rank; the rest is outside


def _law(first: float, decay: float, ranks: int = 24, depth: int = BLOCK - 1) -> Law:
    """Candidates whose best one is right with ``first`` (less at each depth), the others with a falling share."""
    rows = []
    for level in range(depth):
        best = first * decay**level
        rows.append([best, *((1 - best) * 0.5 ** (rank + 1) * 0.8 for rank in range(ranks - 1))])
    return rows


def _tree(law: Law, width: int) -> Any:
    """The tree of the true law: the drafter is well calibrated here."""
    key = (id(law), width)
    if key not in _TREES:
        scores = [[definition.quantise(_log(p)) for p in row] for row in law]
        ids = [list(range(len(row))) for row in law]
        _TREES[key] = definition.tree_from_tuples(0, ids, heap.best_first(scores, width - 1))
    return _TREES[key]


_TREES: dict[tuple[int, int], Any] = {}


def _log(p: float) -> float:
    from math import log

    return log(p) if p > 0 else float("-inf")


def _walk(tree: Any, law: Law, chance: random.Random) -> Any:
    """Draw a target along the tree: the path, its ranks, whether the best candidate was there at its end."""
    children: dict[int, dict[int, int]] = {}
    for node in range(1, len(tree)):
        children.setdefault(tree.parent[node], {})[tree.rank[node]] = node
    here, nodes, ranks = 0, [], []
    while len(nodes) < len(law):
        row = law[len(nodes)]
        draw = chance.random()
        rank = next((r for r in range(len(row)) if (draw := draw - row[r]) < 0), -1)
        if rank not in children.get(here, {}):
            break
        here = children[here][rank]
        nodes.append(here)
        ranks.append(rank)
    return auto.Sample(nodes, ranks, 0 in children.get(here, {}))


def _expected(law: Law, width: int, chain: bool) -> float:
    """The true expected accepted drafts."""
    from math import exp

    if chain:
        total, reached = 0.0, 1.0
        for row in law:
            reached *= row[0]
            total += reached
        return total
    return sum(exp(score / 2**32) for score in _tree(law, width).score[1:])


@dataclass
class World:
    """A simulated server: true law and times, which may change."""

    law: Law
    verify_us: Callable[[int], float]
    rest_us: float = 1000.0
    batch: int = 1
    known: dict[int, float] = field(default_factory=dict)

    def table(self) -> Any:
        """What the start measured: verify costs."""
        self.known = {width: self.verify_us(width) for width in (*WIDTHS, BLOCK)}
        return costs.CostTable({(self.batch, width): us for width, us in self.known.items()})

    def rate(self, width: int, chain: bool) -> float:
        """True tokens per microsecond of one request."""
        return (1 + _expected(self.law, width, chain)) / (self.rest_us + self.verify_us(width))

    def best(self) -> float:
        """The best arm's rate."""
        return max(self.rate(BLOCK, True), *(self.rate(width, False) for width in WIDTHS))


def _run(controller: Any, world: World, steps: int, seed: int = 1, noise: float = 0.05) -> tuple[float, list[Any]]:
    """Serve; returns tokens per microsecond (true times) and the choices."""
    chance = random.Random(seed)
    waiting: deque[tuple[Any, list[Any]]] = deque()
    tokens = us = 0.0
    taken = []
    last = None
    chain = _tree([row[:1] for row in world.law], BLOCK)
    for _ in range(steps):
        chosen = controller.choose(world.batch)
        taken.append(chosen)
        tree = chain if chosen.chain else _tree(world.law, chosen.width)
        samples = [_walk(tree, world.law, chance) for _ in range(world.batch)]
        time = world.rest_us + world.verify_us(chosen.width)
        tokens += sum(1 + len(sample.nodes) for sample in samples) / world.batch
        us += time
        if chosen == last:
            controller.took(world.batch, chosen, time * (1 + noise * chance.gauss(0, 1)))
        last = chosen
        waiting.append((chosen, samples))
        if len(waiting) > 2:
            done, paths = waiting.popleft()
            controller.saw(world.batch, done, paths)
    return tokens / us, taken


def _controller(world: World, widths: tuple[int, ...] = WIDTHS) -> Any:
    rungs = ladder.Ladder.of({*widths, BLOCK})
    return auto.Auto(rungs, world.table(), BLOCK, 64)


def _flat(width: int) -> float:
    return 500.0


def _steep(width: int) -> float:
    return 100.0 * width


def _cliffs(width: int) -> float:
    return 500.0 + 400.0 * (width > 16) + 900.0 * (width > 33)


GOOD, POOR = _law(0.85, 0.97), _law(0.35, 0.9)


@pytest.mark.parametrize("verify", [_flat, _steep, _cliffs])
@pytest.mark.parametrize("law", [GOOD, POOR], ids=["good drafts", "poor drafts"])
def test_finds_the_best_arm(verify: Callable[[int], float], law: Law) -> None:
    """In the long run no more than two parts in a hundred are lost against the best arm, whatever width costs."""
    world = World(law, verify)
    _, taken = _run(_controller(world), world, 12000)
    late = [world.rate(one.width, one.chain) for one in taken[4000:]]
    assert sum(late) / len(late) >= 0.98 * world.best()


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("slope", [60.0, 150.0, 400.0])
def test_never_below_the_chain(slope: float, batch: int) -> None:
    """Where no tree pays the chain runs: not one part in a hundred is lost to it in the long run, probes included."""
    world = World(_law(0.9, 0.99), lambda width: 200.0 + slope * max(width, 16), batch=batch)
    _, taken = _run(_controller(world), world, 8000 // batch + 4000)
    true = [world.rate(one.width, one.chain) for one in taken]
    assert sum(true[1000:]) / len(true[1000:]) >= 0.99 * world.rate(BLOCK, True)


def test_no_flapping_between_equal_arms() -> None:
    """Two arms of the same worth: the arm may change now and then, not all the time."""
    law = GOOD
    gain = {width: 1 + _expected(law, width, False) for width in WIDTHS}
    world = World(law, lambda width: 1000.0 * gain[width] - 1000.0 if width in gain else 1e6)
    controller = _controller(world)
    _run(controller, world, 20000)
    bucket = controller.bucket(1)
    assert bucket.changes <= 20000 / auto.DWELL / 10
    assert bucket.probes <= 20


def test_follows_a_change_of_the_text() -> None:
    """Drafts that get better or worse (another kind of text) must change the arm within a few thousand steps."""
    world = World(GOOD, lambda width: 300.0 + 30.0 * width)
    controller = _controller(world)
    for seed, law in enumerate((GOOD, POOR, GOOD)):
        world.law = law
        _run(controller, world, 6000, seed)
        _, taken = _run(controller, world, 2000, seed + 10)
        true = [world.rate(one.width, one.chain) for one in taken]
        assert sum(true) / len(true) >= 0.97 * world.best(), seed


def test_follows_a_slower_machine() -> None:
    """Steps that take longer for every arm (longer contexts) must not make arms of the past look better."""
    world = World(GOOD, lambda width: 300.0 + 20.0 * width)
    controller = _controller(world)
    _run(controller, world, 4000)
    changes = controller.bucket(1).changes
    for rest in range(1000, 4000, 100):
        world.rest_us = float(rest)
        _run(controller, world, 300, rest)
    assert controller.bucket(1).changes - changes <= 12
    _, taken = _run(controller, world, 3000, 5)
    true = [world.rate(one.width, one.chain) for one in taken]
    assert sum(true) / len(true) >= 0.97 * world.best()


def test_a_noisy_machine_does_not_lead_astray() -> None:
    """Steps that scatter by a third, as on a shared host: few changes, little lost."""
    world = World(GOOD, lambda width: 300.0 + 30.0 * width)
    controller = _controller(world)
    _, taken = _run(controller, world, 16000, noise=0.33)
    true = [world.rate(one.width, one.chain) for one in taken[4000:]]
    assert sum(true) / len(true) >= 0.97 * world.best()
    assert controller.bucket(1).changes <= 25


def test_costs_that_were_never_measured_are_learnt() -> None:
    """Without graphs there is no table: steps themselves must tell."""
    world = World(GOOD, lambda width: 300.0 + 90.0 * width)
    controller = auto.Auto(ladder.Ladder.of(WIDTHS), costs.CostTable({}), BLOCK, 64)
    _, taken = _run(controller, world, 12000)
    true = [world.rate(one.width, one.chain) for one in taken[4000:]]
    assert sum(true) / len(true) >= 0.97 * world.best()


def test_trees_too_dear_to_begin_with_are_still_tried() -> None:
    """When the verify pass is a small part of the step even its double is worth looking at."""
    world = World(POOR, lambda width: 100.0 if width <= 16 else 250.0, rest_us=3000.0)
    controller = _controller(world, (33, 65))
    assert controller.bucket(1).arm.width == 16
    _, taken = _run(controller, world, 6000)
    assert taken[-1].width == 65


def test_each_batch_has_its_own_arm() -> None:
    """Width is free for one request and dear for many: a choice for one batch must not be used for another."""
    table = costs.CostTable(
        {(batch, width): 500.0 + 20.0 * batch * width for batch in (1, 2, 8, 32) for width in WIDTHS}
    )
    controller = auto.Auto(ladder.Ladder.of(WIDTHS), table, BLOCK, 64)
    chosen, first = {}, {}
    for batch in (1, 7, 32):
        size = table.bucket(batch)
        world = World(POOR, lambda width, size=size: 500.0 + 20.0 * size * width, batch=batch)
        _, taken = _run(controller, world, 1500)
        chosen[batch], first[batch] = taken[-1].width, taken[0]
    assert chosen[1] > chosen[7] >= chosen[32]
    assert first[1].reason == "probe"
    assert first[32].reason == "cost", "paths of other batches and the table tell enough to begin with"
    assert first[32].width == chosen[32]
    assert set(controller.shown()) == {"1", "8", "32"}


def test_nested_counterfactuals_are_exact() -> None:
    """What a narrower tree would have accepted is known from the wider one's path, not estimated."""
    chance = random.Random(3)
    law = GOOD
    seen = acceptance.Acceptance(WIDTHS, BLOCK - 1, half_life=1e9)
    narrow = [0] * len(WIDTHS)
    draws = 400
    for _ in range(draws):
        state = chance.getstate()
        path = _walk(_tree(law, 65), law, chance)
        seen.tree(65, path.nodes, path.ranks, path.next_was_there)
        for place, width in enumerate(WIDTHS):
            chance.setstate(state)  # the same target
            narrow[place] += len(_walk(_tree(law, width), law, chance).nodes)
        chance.setstate(state)
        chance.random()
    for place, width in enumerate(WIDTHS):
        assert seen.of_tree(width) == pytest.approx(narrow[place] / draws, abs=1e-6)


def test_the_chain_is_known_from_trees() -> None:
    """Paths of trees tell what the chain would have accepted, though trees cut it: within sampling error."""
    chance = random.Random(4)
    law = _law(0.8, 0.98)
    seen = acceptance.Acceptance(WIDTHS, BLOCK - 1, half_life=1e9)
    for _ in range(6000):
        path = _walk(_tree(law, 33), law, chance)
        seen.tree(33, path.nodes, path.ranks, path.next_was_there)
    assert seen.of_chain() == pytest.approx(_expected(law, BLOCK, True), rel=0.05)


def test_unseen_widths_are_extrapolated_upwards() -> None:
    """Without optimism a wider tree would never be tried; without a bound it would be tried for ever."""
    seen = acceptance.Acceptance((8, 16, 33, 65), 15)
    for _ in range(50):
        seen.tree(16, (1, 9), (0, 1), True)
    assert seen.of_tree(16) == pytest.approx(2.0)
    assert 2.0 < seen.of_tree(33) < 3.2
    assert seen.of_tree(33) < seen.of_tree(65) < 4.4


def test_free_width_is_filled_up() -> None:
    """When a wider pass costs the same, the narrower one only loses nodes: it is no arm."""
    table = costs.CostTable({(1, 8): 500.0, (1, 16): 501.0, (1, 33): 502.0, (1, 65): 700.0})
    assert table.worthwhile(1, (8, 16, 33, 65)) == (33, 65)
    assert table.worthwhile(4, (8, 16)) == (8, 16)  # nothing known: all are kept
    assert table.us(3, 8) is None
    assert table.bucket(1) == 1


def test_ladders() -> None:
    """The chain's width and the budget's own are always there; others may be limited to small batches."""
    assert ladder.default_widths(64, 16) == (8, 16, 24, 33, 49, 65)
    assert ladder.default_widths(16, 16) == (8, 16, 17)
    assert ladder.default_widths(4, 16) == (5, 16)
    assert ladder.parse("24, 65@8", 64, 16) == {16: None, 24: None, 65: 8}
    rungs = ladder.Ladder.of({16: None, 24: None, 65: 8}, {65: 8})
    assert rungs.holds(30, 8) == 65
    assert rungs.holds(30, 9) == 24
    assert rungs.holds(15, 9) == 16
    for text in ("16,x", "16,200", "1", "24@", "24@0", "16@4", "-8"):
        with pytest.raises(ValueError, match="DDTREE"):
            ladder.parse(text, 64, 16)


def test_choices() -> None:
    """Who decides: chain before budgets, requests below the server's, a limit where no width is wide enough."""
    chooser = choice.Chooser(64, 15, False)
    chooser.use(ladder.Ladder.of({16: None, 33: None, 65: 8}, {65: 8}))
    assert chooser.choose(1, None, "tree", None) == choice.Choice(65, 64, False, "fixed")
    assert chooser.choose(9, None, "tree", None) == choice.Choice(33, 32, False, "limit")
    assert chooser.choose(1, 20, "tree", None) == choice.Choice(33, 20, False, "control")
    assert chooser.choose(1, 20, "tree", 10) == choice.Choice(16, 10, False, "request")
    assert chooser.choose(1, 20, "tree", 50) == choice.Choice(33, 20, False, "control")
    assert chooser.choose(9, 999, "chain", None) == choice.Choice(16, 15, True, "control")
    assert chooser.choose(1, "auto", "tree", None).budget == 64  # no controller: the server's own budget


def test_memory_decides_how_far_wide_passes_go() -> None:
    """Batches of the widest passes are given up first; the chain keeps all; when it does not fit, numbers say why."""
    sizes = {"row": 1 << 20, "held": 0, "context": 4096, "graph": 1 << 20, "reserve": 1 << 30}
    wanted: dict[int, int | None] = {16: None, 33: None, 65: None}
    roomy = memory.plan(wanted, (1, 8, 16, 32), 16, memory.Sizes(free=1 << 34, **sizes))
    assert roomy.limits == {16: 32, 33: 32, 65: 32}
    assert roomy.cut == ()
    tight = memory.plan(wanted, (1, 8, 16, 32), 16, memory.Sizes(free=(1 << 30) + (700 << 20), **sizes))
    assert tight.limits == {16: 32, 33: 16, 65: 8}
    assert tight.cut == (33, 65)
    assert tight.need <= 700 << 20
    assert tight.rows() == 528
    with pytest.raises(ValueError, match="512 MiB") as refused:
        memory.plan(wanted, (1, 8, 16, 32), 16, memory.Sizes(free=(1 << 30) + (300 << 20), **sizes))
    assert "32 requests x 16 tokens" in str(refused.value)
    kept = memory.plan(wanted, (1, 8, 16, 32), 16, memory.Sizes(free=1 << 34, **{**sizes, "held": 1 << 20}))
    assert kept.need - roomy.need == (1 + 8 + 16 + 32) * (16 + 33 + 65) << 20  # every graph keeps its hidden states
    assert "mem-fraction-static" in str(refused.value)


def test_settings_know_auto_and_the_ladder() -> None:
    """What the launching process resolves, its children inherit."""
    environ = {"DDTREE_BUDGET": "auto", "DDTREE_LADDER": "24,65@8"}
    found = settings.resolve(None, None, 16, environ)
    assert (found.budget, found.width, found.auto) == (64, 65, True)
    assert found.widths().widths == (16, 24, 65)
    assert settings.inherit(65, 16, {**environ, "DDTREE_RESOLVED_BUDGET": "64"}) == found
    assert settings.resolve(33, None, 16, {"DDTREE_BUDGET": "auto"}).budget == 32
    assert not settings.resolve(33, None, 16, {}).auto
    with pytest.raises(ValueError, match="not between 2 and 33"):
        settings.resolve(33, None, 16, {"DDTREE_LADDER": "64"})
    for bad in ("0", "-3", "many"):
        with pytest.raises(ValueError, match="DDTREE_BUDGET"):
            settings.resolve(None, None, 16, {"DDTREE_BUDGET": bad})


def test_noise_does_not_make_more_nodes_cheaper_than_fewer() -> None:
    """Costs measured beside a neighbour once said that 24 nodes are cheaper than 16: the widths between were lost."""
    measured = {8: 6562.0, 16: 7287.0, 24: 6248.0, 33: 8185.0, 49: 8077.0, 65: 6727.0}
    table = costs.CostTable({(1, width): us for width, us in measured.items()})
    used = [table.us(1, width) for width in measured]
    assert used == sorted(used)
    assert sum(used) == pytest.approx(sum(measured.values()))
    assert [row["us"] for row in table.rows()] == list(measured.values())  # shown as measured


def test_cliffs_stay_where_they_are() -> None:
    """Levelling must not touch costs that rise already, however steeply."""
    steep = {(1, 8): 10.0, (1, 16): 11.0, (1, 24): 99.0, (2, 8): 5.0}
    table = costs.CostTable(steep)
    assert {cell: table.us(*cell) for cell in steep} == steep
