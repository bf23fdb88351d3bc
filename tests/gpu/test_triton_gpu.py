"""The Triton kernels on a real GPU: the checks of ``tests/kernels/triton_checks.py`` at full size, and CUDA graphs.

python -m pytest tests/gpu        on the GPU host, in an environment with torch, Triton and pytest
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU", allow_module_level=True)

from tests.kernels import triton_checks  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", list(triton_checks.CHECKS))
def test_kernels(name: str) -> None:
    """See the docstring of the check."""
    torch.manual_seed(0)
    triton_checks.CHECKS[name]("cuda", True)


def test_one_graph_from_logits_to_paths() -> None:
    """Captured once, replayed with other logits, lengths and budgets: nothing of the first data may survive."""
    from ddtree.build import accept, topk, torch_builder
    from ddtree.build.select import TreeBuilder
    from ddtree.build.shape import DeviceShape, Shape

    bs, depth, vocab, budget = 4, 15, 5000, 32
    width = budget + 1
    builder = TreeBuilder(bs, depth, budget, width, vocab, "cuda")
    logits = torch.zeros(bs, depth, vocab, device="cuda")
    long = {"dtype": torch.int64, "device": "cuda"}
    roots, lens, budgets, ends = (torch.zeros(bs, **long) for _ in range(4))
    shape = DeviceShape(Shape(width, budget), "cuda")
    target = torch.zeros(bs, width, **long)
    full = torch.zeros(width * (4000 + bs * width), dtype=torch.bool, device="cuda")

    def step() -> Any:
        ids, _, scores = builder.candidates(logits)
        tree = builder.build(roots, ids, scores, lens, budgets, ends, shape, full)
        return ids, scores, tree, builder.accept(tree, target, lens)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids, scores, tree, accepted = step()
    generator = torch.Generator().manual_seed(21)
    for kind in ("bfloat16", "integer", "float32"):
        logits.copy_(triton_checks.make_logits(generator, (bs, depth, vocab), kind))
        roots.random_(0, vocab)
        lens.random_(0, 900)
        budgets.random_(0, budget + 4)
        ends.copy_(lens + torch.randint(0, depth + 3, (bs,), device="cuda"))
        graph.replay()  # builds the tree; its acceptance is of the old target
        twin = torch_builder.build_trees(roots, ids, scores, lens, budgets, ends, shape.host)
        assert torch.equal(topk.candidates(logits, budget)[0], ids)
        for field, tensor in vars(twin).items():
            assert torch.equal(getattr(tree, field), tensor), field
        target.copy_(twin.draft_token.roll(-1, 1))
        graph.replay()
        for field, tensor in vars(accept.accept_paths(twin, target, depth + 1)).items():
            assert torch.equal(getattr(accepted, field), tensor), field


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device() -> None:
    """A hidden synchronisation costs more than the kernel: torch's own detector must see none."""
    from ddtree.build import triton_commit
    from ddtree.build.select import TreeBuilder
    from ddtree.build.shape import DeviceShape, Shape

    builder = TreeBuilder(2, 7, 16, 17, 5000, "cuda")
    logits = torch.randn(2, 7, 5000, device="cuda")
    lens, roots = torch.tensor([3, 4], device="cuda"), torch.tensor([1, 2], device="cuda")
    ends, shape = lens + 17, DeviceShape(Shape(17, 16), "cuda")
    target = torch.zeros(2, 17, dtype=torch.int64, device="cuda")
    buffers = [torch.zeros(64, 8, 16, device="cuda") for _ in range(4)]
    window = torch.arange(34, device="cuda").view(2, 17)
    table = triton_commit.make_kv_table(buffers)

    def step() -> None:
        ids, _, scores = builder.candidates(logits)
        accepted = builder.accept(builder.build(roots, ids, scores, lens, ends, ends, shape), target, lens)
        triton_commit.compact_kv_into(table, window, accepted.path, accepted.accept_len)

    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_one_graph_serves_every_width() -> None:
    """The width is data: a graph captured in one width must build, in every other, what is built without a graph."""
    from ddtree.build import torch_builder
    from ddtree.build.select import TreeBuilder
    from ddtree.build.shape import DeviceShape, Shape

    bs, depth, vocab, budget = 5, 15, 5000, 64
    builder = TreeBuilder(bs, depth, budget, budget + 1, vocab, "cuda")
    shape = DeviceShape(Shape(budget + 1, budget), "cuda")
    logits = triton_checks.make_logits(torch.Generator().manual_seed(22), (bs, depth, vocab), "bfloat16").cuda()
    lens = torch.tensor([3, 700, 0, 41, 128], device="cuda")
    budgets, ends = torch.full_like(lens, 64), lens + torch.tensor([99, 99, 4, 1, 0], device="cuda")
    budgets[1] = 20
    full = torch.zeros((budget + 1) * (1000 + bs * (budget + 1)), dtype=torch.bool, device="cuda")

    def step() -> None:
        ids, _, scores = builder.candidates(logits)
        builder.build(lens, ids, scores, lens, budgets, ends, shape, full, square_mask=False)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    ids, _, scores = builder.candidates(logits)
    for one in (Shape(17, 16), Shape(65, 64), Shape(16, 15, 1), Shape(33, 20), Shape(8, 7), Shape(65, 9), Shape(2, 1)):
        shape.set(one)
        full.zero_()
        graph.replay()
        twin = torch_builder.build_trees(lens, ids, scores, lens, budgets, ends, one)
        found = builder.trees(bs, one.width)
        for field, tensor in vars(twin).items():
            assert field == "mask" or torch.equal(getattr(found, field), tensor), (one, field)
        at = 0
        for b in range(bs):
            rows = one.width, int(lens[b]) + one.width
            block = full[at : at + rows[0] * rows[1]].view(rows)
            assert torch.equal(block[:, rows[1] - one.width :], twin.mask[b]), (one, b)
            at += rows[0] * rows[1]
        assert not bool(full[at:].any()), (one, "written behind the last mask")
