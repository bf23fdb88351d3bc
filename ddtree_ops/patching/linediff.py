"""Shortest edit script between two line sequences (Myers, "An O(ND) Difference Algorithm", 1986).

Where a run of inserted or removed lines could stand in several places (repeated lines), it is moved down as far as
possible, so that the same two inputs always give the same script.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

MAX_D = 3000  # beyond this many edits the quadratic trace is not worth it


class Change(NamedTuple):
    """Lines ``a[a0:a1]`` become ``b[b0:b1]``; either may be empty, not both."""

    a0: int
    a1: int
    b0: int
    b1: int


def diff(a: Sequence[bytes], b: Sequence[bytes]) -> list[Change]:
    """Changes that turn ``a`` into ``b``, ascending, with at least one common line between two of them."""
    head = 0
    while head < len(a) and head < len(b) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < len(a) - head and tail < len(b) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    pairs = _matched(a[head : len(a) - tail], b[head : len(b) - tail])
    x, y = head, head
    changes: list[Change] = []
    for i, j in [*((i + head, j + head) for i, j in pairs), (len(a) - tail, len(b) - tail)]:
        if i > x or j > y:
            changes.append(Change(x, i, y, j))
        x, y = i + 1, j + 1
    return _slide_down(a, b, changes)


def _matched(a: Sequence[bytes], b: Sequence[bytes]) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence."""
    n, m = len(a), len(b)
    if not n or not m:
        return []
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for d in range(min(n + m, MAX_D) + 1):
        trace.append(dict(reach))
        for k in range(-d, d + 1, 2):
            down = k == -d or (k != d and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach.get(k + 1, 0) if down else reach.get(k - 1, 0) + 1
            y = x - k
            while x < n and y < m and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[k] = x
            if x >= n and y >= m:
                return _backtrack(trace, n, m)
    found = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in found for i in range(block.size)]


def _backtrack(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for d in range(len(trace) - 1, -1, -1):
        reach, k = trace[d], x - y
        down = k == -d or (k != d and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        x0 = reach.get(before, 0)
        y0 = x0 - before
        while x > x0 and y > y0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if d == 0:
            break
        x, y = x0, y0
    pairs.reverse()
    return pairs


def _slide_down(a: Sequence[bytes], b: Sequence[bytes], changes: list[Change]) -> list[Change]:
    """Move pure insertions and removals down while that means the same, keeping one common line before the next."""
    limit = len(a) + 1
    for number in range(len(changes) - 1, -1, -1):
        a0, a1, b0, b1 = changes[number]
        side, first, after = (b, b0, b1) if a0 == a1 else (a, a0, a1)
        if a0 == a1 or b0 == b1:
            while a1 + 1 < limit and after < len(side) and side[first] == side[after]:
                a0, a1, b0, b1, first, after = a0 + 1, a1 + 1, b0 + 1, b1 + 1, first + 1, after + 1
        changes[number] = Change(a0, a1, b0, b1)
        limit = a0
    return changes
