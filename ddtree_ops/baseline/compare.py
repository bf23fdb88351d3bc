"""Two traces against each other, level by level (L0 to L4), with near ties told apart from real differences. Pure.

L0  each file by itself: its trees, rebuilt by the heap from its recorded candidates, bit for bit.
L1  rounds of the same context: the node sets. A node that only one tree has must lie at the other's boundary.
L2  each file by itself: path and bonus, walked again over the recorded choices of the target. Then the same rounds of
    both: the target's token at every node that both trees hold; another one needs a small top-2 gap there.
L3  whole outputs: the first other token needs a small gap. Behind it two texts legitimately differ.
L4  tokens per verify step over the common prompts: each mean within the other's bootstrap interval.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..model import Value
from . import tolerance
from .levels import Difference, Level, Tally, judge
from .pairs import Matched, Nodes, match
from .traces import Request, Round, Trace
from .trees import heap, walk


class Comparison(Value, frozen=True, kw_only=True):
    """All levels of two traces."""

    a: str
    b: str
    prompts: int
    dtype: str  # the coarser of the two
    levels: tuple[Level, ...]

    @property
    def ok(self) -> bool:
        """No level failed, and something was compared."""
        return not any(one.failures for one in self.levels) and any(one.checked for one in self.levels)

    @property
    def first(self) -> Difference | None:
        """The difference to look at first: the lowest failed level's, else the first near tie's."""
        found = [one for level in self.levels for one in level.differences]
        return next((one for one in found if one.verdict != "near_tie"), found[0] if found else None)


def compare(a: Trace, b: Trace) -> Comparison:
    """Compare two traces.

    Raises:
        ConfigError: they have no prompt in common.
    """
    matched = match(a, b)
    dtype = tolerance.coarser(a.header.dtype, b.header.dtype)
    levels = (_l0(a, b), _l1(matched, dtype), _l2(a, b, matched, dtype), _l3(matched, dtype), _l4(matched))
    return Comparison(a=str(a.path), b=str(b.path), prompts=len(matched), dtype=dtype, levels=levels)


def _chosen_freely(one: Round) -> str:
    """Why the target's tokens are not simply its best ones; "" when they are."""
    if float(one.extra.get("temperature") or 0.0) > 0.0:
        return "sampled, not greedy"
    return "logits adjusted by the request (penalties, bias, grammar)" if one.extra.get("adjusted") else ""


# -- L0 --


def _l0(a: Trace, b: Trace) -> Level:
    tally = Tally("L0", "trees")
    for name, side in (("a", a), ("b", b)):
        for request in side.requests:
            for one in request.rounds:
                if not one.ids and len(one.token) > 1:
                    tally.skip("no candidates are recorded")
                    continue
                tally.checked += 1
                problem = rebuilt(one, side.header.budget)
                if problem:
                    tally.add(_within("L0", name, request, one, problem))
    return tally.result()


def _within(level: str, name: str, request: Request, one: Round, problem: str) -> Difference:
    """A difference inside one file: nothing can excuse it."""
    return Difference(
        level=level,
        request=request.name,
        verdict="differs",
        text=problem,
        file=name,
        round_a=one.round if name == "a" else None,
        round_b=one.round if name == "b" else None,
    )


def rebuilt(one: Round, budget: int) -> str:
    """What is wrong with a round's tree, by the heap over its own candidates; "" when nothing is."""
    if not one.ids:
        return ""
    values = one.log_probs()
    for depth, row in enumerate(values, 1):
        if any(after > before for before, after in itertools.pairwise(row)):
            return f"the candidates of depth {depth} are not in descending order"
        if len(set(one.ids[depth - 1])) != len(row):
            return f"the candidates of depth {depth} are not all different"
    chain = one.extra.get("mode") in ("chain", "linear")
    ids = [row[:1] for row in one.ids] if chain else one.ids
    values = [row[:1] for row in values] if chain else values
    nodes, limit = one.extra.get("budget"), one.extra.get("depth_limit")
    wanted = heap.build_tree(one.bonus_in, ids, values, budget if nodes is None else int(nodes), limit)
    found = one.tree()
    if found == wanted:
        return ""
    if len(found) != len(wanted):
        return f"the tree has {len(found) - 1} nodes, the heap gives {len(wanted) - 1}"
    for name in ("token", "parent", "depth", "rank", "score"):
        for node, (ours, theirs) in enumerate(zip(getattr(found, name), getattr(wanted, name), strict=True)):
            if ours != theirs:
                return f"node {node} has {name} {ours}, the heap gives {theirs}"
    return ""


def walked(one: Round) -> str:
    """What is wrong with a round's path, walked again over the recorded choices of the target; "" when nothing is."""
    if any(token < 0 for token in one.target):
        return ""  # imported: not every choice is known
    stops = (one.bonus_out,) if one.extra.get("stopped") else ()  # the token that ended the request
    path, bonus = walk.accept(one.tree() if one.ids else _bare(one), one.target, stops)
    if list(path) != one.accepted:
        return f"the accepted path is {one.accepted}, the target's choices give {list(path)}"
    if bonus != one.bonus_out:
        return f"the bonus is {one.bonus_out}, the target's choice after node {path[-1]} is {bonus}"
    emitted = [*(one.token[node] for node in path[1:]), bonus]
    return "" if emitted == one.emitted else f"emitted {one.emitted}, the path and bonus are {emitted}"


def _bare(one: Round) -> Any:
    from .trees import definition

    none = (0,) * len(one.token)
    return definition.Tree(tuple(one.token), tuple(one.parent), tuple(one.depth), none, none)


# -- L1 --


def _l1(matched: list[Matched], dtype: str) -> Level:
    tally = Tally("L1", "pairs of trees")
    common = total = equal = 0
    worst = 0.0
    for pair in matched:
        for one, other in pair.rounds():
            reason = _other_shape(one, other)
            if reason:
                tally.skip(reason)
                continue
            most = min(len(one.token), len(other.token)) - 1
            a, b = Nodes(one, most), Nodes(other, most)
            if a.boundary is None and b.boundary is None and most:
                tally.skip("no candidates are recorded")
                continue
            tally.checked += 1
            both = a.index.keys() & b.index.keys()
            common, total = common + len(both) - 1, total + most
            equal += len(both) == most + 1
            apart, text, limit = _tree_difference(a, b, dtype)
            worst = max(worst, apart or 0.0)
            if text:
                verdict = judge(apart, limit)
                tally.add(_between("L1", pair, one, other, text, verdict=verdict, distance=apart, limit=limit))
    overlap = common / total if total else None
    return tally.result(equal_trees=equal, overlap=overlap, largest_distance=worst)


def _other_shape(one: Round, other: Round) -> str:
    chain = [side.extra.get("mode") in ("chain", "linear") for side in (one, other)]
    if chain[0] != chain[1]:
        return "a chain against a tree"
    limits = [side.extra.get("depth_limit") for side in (one, other)]
    if None not in limits and limits[0] != limits[1]:
        return "other depth limits (near the end of a request)"
    return ""


def _tree_difference(a: Nodes, b: Nodes, dtype: str) -> tuple[float | None, str, float]:
    """``(distance, text, limit)`` of the node that is hardest to explain; no text when the trees are equal.

    A node of one tree that the other lacks lies above the boundary here and below it there, so both distances are due
    to arithmetic alone. Nodes that both trees have may differ in score by as much and no more.
    """
    found: list[tuple[float | None, str, float]] = []
    for side, other, here in ((a, b, "a"), (b, a, "b")):
        for path in side.index.keys() - other.index.keys():
            limit = tolerance.score_distance(dtype, len(path))
            distances = [_over(side.score(path), side.boundary), _over(other.boundary, other.score(path))]
            known = [distance for distance in distances if distance is not None]
            text = f"node {_shown(path)} is only in {here}'s tree"
            found.append((max(known) if known else None, text, limit))
    for path in a.index.keys() & b.index.keys():
        scores = a.score(path), b.score(path)
        limit = tolerance.score_distance(dtype, len(path))
        if None not in scores and abs(_number(scores[0]) - _number(scores[1])) > limit:
            distance = abs(_number(scores[0]) - _number(scores[1]))
            found.append((distance, f"node {_shown(path)} has scores {scores[0]:.3f} and {scores[1]:.3f}", limit))
    if not found:
        return 0.0, "", 0.0
    return max(found, key=lambda one: float("inf") if one[0] is None else one[0] / one[2])


def _over(upper: float | None, lower: float | None) -> float | None:
    return None if upper is None or lower is None else max(0.0, upper - lower)


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


def _shown(path: tuple[int, ...]) -> str:
    return " ".join(map(str, path))


# -- L2 --


def _l2(a: Trace, b: Trace, matched: list[Matched], dtype: str) -> Level:
    tally = Tally("L2", "nodes")
    paths = 0
    for name, side in (("a", a), ("b", b)):
        for request in side.requests:
            for one in request.rounds:
                problem = walked(one)
                if problem:
                    tally.add(_within("L2", name, request, one, problem))
    for pair in matched:
        for one, other in pair.rounds():
            reason = _chosen_freely(one) or _chosen_freely(other)
            if reason:
                tally.skip(reason)
                continue
            ours, theirs = Nodes(one), Nodes(other)
            for path in [path for path in ours.paths if path in theirs.index]:
                left, right = ours.index[path], theirs.index[path]
                if one.target[left] < 0 or other.target[right] < 0:
                    tally.skip("the target's choice is not recorded")
                    continue
                tally.checked += 1
                if one.target[left] == other.target[right]:
                    continue
                gap, limit = _gap(one, left, other, right, dtype)
                text = f"after node {_shown(path) or 'root'}: {one.target[left]} and {other.target[right]}"
                verdict = judge(gap, limit)
                tally.add(_between("L2", pair, one, other, text, verdict=verdict, distance=gap, limit=limit))
            same = ours.paths[one.accepted[-1]] == theirs.paths[other.accepted[-1]]
            paths += same and one.bonus_out == other.bonus_out
    return tally.result(equal_paths=paths)


def _gap(one: Round, left: int, other: Round, right: int, dtype: str) -> tuple[float | None, float]:
    """The larger of the two top-2 gaps (the other token is at least so far behind), and what counts as a tie."""
    sides = [(one, left), (other, right)]
    gaps = [side.extra["gap"][node] for side, node in sides if "gap" in side.extra]
    sizes = [side.extra["top"][node] for side, node in sides if "top" in side.extra]
    limit = tolerance.near_tie(dtype, max(map(abs, sizes), default=tolerance.LEAST_SIZE))
    return (max(gaps) if gaps else None), limit


def _between(level: str, pair: Matched, one: Round, other: Round, text: str, **more: Any) -> Difference:
    return Difference(level=level, request=pair.a.name, text=text, round_a=one.round, round_b=other.round, **more)


# -- L3 --


def _l3(matched: list[Matched], dtype: str) -> Level:
    tally = Tally("L3", "outputs")
    tokens = 0
    for pair in matched:
        reasons = {_chosen_freely(one) for one in _all(pair)} - {""}
        if reasons:
            tally.skip(reasons.pop())
            continue
        tally.checked += 1
        late = sum(len(side.rounds) - len(side.run) for side in (pair.a, pair.b))
        if late:
            tally.skip("rounds after a gap (retracted, or not recorded)", late)
        tokens += pair.equal
        if not pair.differs:
            continue
        one, left = _chosen(pair.a, pair.equal)
        other, right = _chosen(pair.b, pair.equal)
        text = f"new token {pair.equal}: {pair.a.output[pair.equal]} and {pair.b.output[pair.equal]}"
        if one is None or other is None:
            difference = Difference(
                level="L3", request=pair.a.name, verdict="unjudged", text=text + ", of the prefill (no gap recorded)"
            )
        else:
            gap, limit = _gap(one, left, other, right, dtype)
            difference = _between("L3", pair, one, other, text, verdict=judge(gap, limit), distance=gap, limit=limit)
        tally.add(difference)
    return tally.result(equal_tokens=tokens, compared_tokens=sum(pair.compared for pair in matched))


def _chosen(request: Request, index: int) -> tuple[Round | None, int]:
    """The round and the node after which the new token ``index`` was chosen; no round for the prefill's own."""
    at = 1
    for one in request.run:
        if at <= index < at + len(one.emitted):
            return one, one.accepted[index - at]
        at += len(one.emitted)
    return None, 0


# -- L4 --


def _l4(matched: list[Matched]) -> Level:
    from ..bench.intervals import ratio_of_sums

    tally = Tally("L4", "prompts")
    modes = {(one.extra.get("mode") or "tree") in ("chain", "linear") for pair in matched for one in _all(pair)}
    budget = min((_budget(one) for pair in matched for one in _all(pair)), default=0)
    if len(modes) > 1:
        tally.skip("chains and trees in one comparison", len(matched))
        return tally.result()
    if len({pair.a.digest for pair in matched}) < 2:
        tally.skip("an interval needs two prompts", len(matched))
        return tally.result()
    tally.checked = len(matched)
    sides = []
    for name in ("a", "b"):
        lengths = [_lengths(getattr(pair, name), budget, pair.compared) for pair in matched]
        interval = ratio_of_sums(lengths, f"compare-{name}")
        if interval is not None:
            sides.append(interval)
    a, b = sides
    figures = {name: [side.median, side.low, side.high] for name, side in (("a", a), ("b", b))}
    if not (a.low <= b.median <= a.high or b.low <= a.median <= b.high):
        text = f"{a.median:.3f} ({a.low:.3f} to {a.high:.3f}) and {b.median:.3f} ({b.low:.3f} to {b.high:.3f})"
        tally.add(Difference(level="L4", request="all", verdict="differs", text=text))
    return tally.result(budget=budget, tokens_per_verify=figures)


def _all(pair: Matched) -> list[Round]:
    return [*pair.a.rounds, *pair.b.rounds]


def _budget(one: Round) -> int:
    return int(one.extra.get("budget", len(one.token) - 1))


def _lengths(request: Request, budget: int, compared: int) -> tuple[float, float]:
    """Tokens and verify steps of a request within the tokens that both have; of a wider tree only what the first
    ``budget`` nodes would have given. (A server that overlaps steps runs one more behind the last token.)"""
    rounds = [one for one in request.run if one.start - request.run[0].start < compared - 1]
    tokens = sum(sum(node <= budget for node in one.accepted) for one in rounds)
    return float(tokens), float(len(rounds))
