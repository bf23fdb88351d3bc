"""The static-universe builder on a real GPU, at full size and inside a CUDA graph whose data changes.

python -m pytest tests/gpu        on the GPU host, in an environment with torch, Triton and pytest
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU", allow_module_level=True)

from tests.kernels import static_checks  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", list(static_checks.CHECKS))
def test_static(name: str) -> None:
    """See the docstring of the check."""
    torch.manual_seed(0)
    static_checks.CHECKS[name]("cuda", True)


def test_both_builders_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once, replayed with other scores, lengths, budgets and widths: the same trees from both."""
    from ddtree.build.select import ENV_BUILDER, TreeBuilder
    from ddtree.build.shape import DeviceShape, Shape

    bs, depth, vocab, budget = 4, 15, 5000, 32
    builders = {}
    for name in ("loop", "static"):
        monkeypatch.setenv(ENV_BUILDER, name)
        builders[name] = TreeBuilder(bs, depth, budget, budget + 1, vocab, "cuda")
    logits = torch.zeros(bs, depth, vocab, device="cuda")
    long = {"dtype": torch.int64, "device": "cuda"}
    roots, lens, budgets, ends = (torch.zeros(bs, **long) for _ in range(4))
    shape = DeviceShape(Shape(budget + 1, budget), "cuda")

    def step() -> None:
        for builder in builders.values():
            ids, _, scores = builder.candidates(logits)
            builder.build(roots, ids, scores, lens, budgets, ends, shape)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    generator = torch.Generator().manual_seed(61)
    for kind in ("bfloat16", "integer", "float32", "one-hot"):
        for now in (Shape(budget + 1, budget), Shape(17, 16), Shape(16, 15, 1)):
            shape.set(now)
            logits.copy_(static_checks.make_logits(generator, (bs, depth, vocab), kind))
            roots.random_(0, vocab)
            lens.random_(0, 900)
            budgets.random_(0, budget + 4)
            ends.copy_(lens + torch.randint(0, depth + 3, (bs,), device="cuda"))
            graph.replay()
            loop, static = (vars(builder.trees(bs, now.width)) for builder in builders.values())
            assert all(torch.equal(loop[name], static[name]) for name in loop), (kind, now)
