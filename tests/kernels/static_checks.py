"""Checks of the static-universe builder against the torch twin and the pending-child loop, and of compaction's copies.

    static_checks.py [--cuda] [NAME ...]     prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python (Triton interpreted), and by ``tests/gpu`` on a GPU.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ddtree.build import select, topk, torch_builder, triton_builder, triton_commit, triton_static
from ddtree.build.shape import DeviceShape, Shape
from ddtree.tree.definition import SCORE_FLOOR
from triton_checks import KINDS, make_logits, poisoned


def compare(
    scores: torch.Tensor,
    ids: torch.Tensor,
    most: int,
    shape: Shape,
    budgets: torch.Tensor,
    limits: torch.Tensor,
    device: str,
) -> None:
    """Build by selection in buffers for ``most`` nodes and compare every array, mask and link with the twin."""
    bs, depths, ranks = ids.shape
    lens = torch.tensor([7, 0, 130, 64][:bs])
    roots = torch.arange(900, 900 + bs)
    ends = lens + 1 + limits
    twin = torch_builder.build_trees(roots, ids, scores, lens, budgets, ends, shape)
    buffers = triton_builder.make_buffers(bs + 1, most + 1, depths, ranks, device)
    tables = triton_static.make_tables(bs + 1, buffers, depths, ranks, device)
    poisoned(buffers)
    for tensor in (tables.sums, tables.chosen, tables.places):
        tensor.random_(0, 5)  # what an earlier step has left
    width = shape.width
    full = torch.zeros(width * (int(lens.sum()) + bs * width) + 50, dtype=torch.bool, device=device)
    on_device = DeviceShape(Shape(most + 1, most), device)
    on_device.set(shape)
    moved = [tensor.to(device) for tensor in (roots, ids, scores, lens, budgets, ends)]
    found = triton_static.build_trees_into(*moved, on_device, buffers, tables, full)
    where = (ids.shape, most, shape, budgets.tolist(), limits.tolist())
    for name, expected in vars(twin).items():
        assert torch.equal(getattr(found, name).cpu(), expected), (name, where)
    rows = [torch.cat([torch.zeros(width, int(lens[b]), dtype=torch.bool), twin.mask[b]], dim=1) for b in range(bs)]
    expected = torch.cat([*(row.flatten() for row in rows), torch.zeros(50, dtype=torch.bool)])
    assert torch.equal(full.cpu(), expected), ("full mask", where)


def _sizes(large: bool) -> list[tuple[int, int, int]]:
    """(levels, vocabulary, budget); few, because each is compiled anew on a GPU."""
    if large:
        return [(2, 5, 4), (3, 3, 20), (15, 300, 16), (15, 300, 32), (7, 300, 64)]
    return [(1, 3, 1), (2, 5, 4), (7, 40, 16), (3, 3, 20), (15, 9, 8)]


def check_selection_equals_the_twin(device: str, large: bool) -> None:
    """Ties of all kinds, budgets per request, levels cut, narrower widths, chains: bit for bit the loop's trees."""
    generator = torch.Generator().manual_seed(51)
    for number, (depth, vocab, budget) in enumerate(_sizes(large)):
        for kind in KINDS:
            logits = make_logits(generator, (3, depth, vocab), kind)
            ids, _, scores = topk.candidates(logits, min(budget, vocab))
            budgets = torch.tensor([budget, budget // 2, 0 if number % 2 else budget + 5])
            limits = torch.tensor([depth, max(1, depth // 2), 0 if number % 3 == 0 else depth + 3])
            shapes = [Shape(budget + 1, budget)]
            if kind in ("bfloat16", "equal", "holes"):
                shapes += [Shape(budget // 2 + 1, budget), Shape(max(1, budget), budget, 1), Shape(budget + 1, 3, 2)]
            for shape in shapes:
                compare(scores, ids, budget, shape, budgets, limits, device)


def check_extreme_scores(device: str, large: bool) -> None:
    """Certain tokens (score 0 at every depth), impossible ones (the floor at every depth), and all steps between."""
    chance = random.Random(52)
    depth, budget = (15, 32) if large else (6, 12)
    for _ in range(40 if large else 12):
        pool = [0, -1, -(1 << 20), -(1 << 33), -(1 << 45), SCORE_FLOOR]
        table = [sorted((chance.choice(pool) for _ in range(budget)), reverse=True) for _ in range(depth)]
        scores = torch.tensor([table])
        ids = torch.arange(depth * budget).view(1, depth, budget)
        full = torch.tensor([budget])
        compare(scores, ids, budget, Shape(budget + 1, budget), full, torch.tensor([depth]), device)
    for value in (0, SCORE_FLOOR):
        scores = torch.full((1, depth, budget), value)
        ids = torch.arange(depth * budget).view(1, depth, budget)
        compare(scores, ids, budget, Shape(budget + 1, budget), torch.tensor([budget]), torch.tensor([depth]), device)


def check_the_choice_is_measured_or_asked_for(device: str, large: bool) -> None:
    """Without a measurement the loop builds; a switch asks for the other one, and a misspelt one is told."""
    before = os.environ.pop(select.ENV_BUILDER, None)
    try:
        for depth, budget in ((15, 16), (15, 32), (7, 64), (15, 64)):
            assert select.takes_static(depth, budget) == ((depth, budget) in select.STATIC_IS_FASTER)
        os.environ[select.ENV_BUILDER] = "static"
        assert select.takes_static(15, 32)
        assert not select.takes_static(15, 64)  # not covered
        os.environ[select.ENV_BUILDER] = "loop"
        assert not select.takes_static(15, 16)
        os.environ[select.ENV_BUILDER] = "statik"
        try:
            select.takes_static(15, 16)
        except ValueError:
            return
        raise AssertionError("a misspelt builder was accepted")
    finally:
        os.environ.pop(select.ENV_BUILDER, None)
        if before is not None:
            os.environ[select.ENV_BUILDER] = before


def check_too_large_universes_are_refused(device: str, large: bool) -> None:
    """A table of hundreds of thousands of tuples would not fit the kernel's registers."""
    assert triton_static.covers(32, 15)
    assert triton_static.covers(64, 7)
    assert not triton_static.covers(64, 15)
    assert not triton_static.covers(0, 15)
    buffers = triton_builder.make_buffers(1, 65, 15, 64, device)
    try:
        triton_static.make_tables(1, buffers, 15, 64, device)
    except ValueError:
        return
    raise AssertionError("a universe of 29,934 tuples was accepted")


def check_compaction_equals_a_copy_between_two_buffers(device: str, large: bool) -> None:
    """In place as if from a copy of the pool, on paths whose destinations are sources of as many others as possible.

    Shifted by one, every destination but the last is the source of the position before it; random ascending paths, long
    and short, in windows whose slots are in any order.
    """
    chance, generator = random.Random(53), torch.Generator().manual_seed(53)
    bs, width, path_width, slots = (32, 65, 16, 4096) if large else (4, 20, 8, 100)
    shapes = ((8, 256), (3, 128), (16, 8)) if large else ((3, 1000), (1, 8))
    for trial in range(12 if large else 6):
        pool = [torch.randint(0, 255, (slots, *shape), dtype=torch.uint8, generator=generator) for shape in shapes]
        order = torch.randperm(slots, generator=generator) if trial % 2 else torch.arange(slots)
        if trial % 3 == 2:
            order = order.flip(0)
        window = order[: bs * width].view(bs, width).contiguous()
        path = torch.arange(path_width).repeat(bs, 1)
        count = torch.zeros(bs, dtype=torch.int64)
        for b in range(bs):
            length = chance.randrange(1, path_width)
            shifted = list(range(2, length + 2))
            chosen = shifted if (b + trial) % 2 else sorted(chance.sample(range(1, width), length))
            count[b] = length
            path[b, 1 : length + 1] = torch.tensor(chosen)
        expected = [buffer.clone() for buffer in pool]
        for before, after in zip(pool, expected, strict=True):
            for b in range(bs):
                for j in range(int(count[b]) + 1):
                    after[window[b, j]] = before[window[b, path[b, j]]]
        moved = [buffer.to(device) for buffer in pool]
        table = triton_commit.make_kv_table(moved)
        triton_commit.compact_kv_into(table, window.to(device), path.to(device), count.to(device))
        for found, wanted in zip(moved, expected, strict=True):
            assert torch.equal(found.cpu(), wanted), trial


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    torch.set_num_threads(1)
    run(CHECKS, "cuda" if "--cuda" in sys.argv else "cpu", False, before=lambda: torch.manual_seed(0))
