"""Tensor parallelism on real GPUs: candidates merged inside CUDA graphs over NCCL, and a server on two GPUs.

    python -m pytest tests/gpu/test_parallel_gpu.py        on a host with two GPUs

The server's test needs what ``test_server_gpu.py`` needs, with a target and a drafter whose heads can be divided by two
(``tests/models/pytiny``, or others by ``benchmarks/gpu/pad_heads.py``).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU", allow_module_level=True)

from tests.kernels import merge_checks  # noqa: E402

pytestmark = pytest.mark.gpu

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
NEEDED = ("DDTREE_GPU_SGLANG", "DDTREE_GPU_TARGET", "DDTREE_GPU_DRAFT")


@pytest.mark.parametrize("name", sorted(merge_checks.CHECKS.keys() - {"check_processes_that_gather_agree"}))
def test_merge(name: str) -> None:
    """See the docstring of the check."""
    torch.manual_seed(0)
    merge_checks.CHECKS[name]("cuda", True)


def _rank(rank: int, size: int, store: str, out: str) -> None:
    """One rank: capture matmul, selection, gather and merge for two batch sizes, replay with other data."""
    from ddtree.build.merge import Shard, ShardedCandidates

    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", f"file://{store}", rank=rank, world_size=size)
    vocab, hidden, count, most_rows = 49152, 64, 32, 480
    part = vocab // size
    shard = Shard(part * rank, part, part, vocab, size)
    call = ShardedCandidates(shard, torch.distributed.all_gather_into_tensor, most_rows, count, "cuda")
    generator = torch.Generator().manual_seed(41)
    head = (torch.randn(vocab, hidden, generator=generator) * 0.7).bfloat16().cuda()
    own = head[part * rank : part * (rank + 1)].contiguous()
    states = {rows: torch.zeros(rows, hidden, dtype=torch.bfloat16, device="cuda") for rows in (15, most_rows)}
    graphs: dict[int, Any] = {}
    stream = torch.cuda.Stream()
    for rows, state in states.items():
        with torch.cuda.stream(stream):
            for _ in range(3):
                call(state @ own.T)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = call(state @ own.T)
        graphs[rows] = graph, found
    answers = []
    for _ in range(20):
        for rows, (graph, found) in graphs.items():
            states[rows].copy_(torch.randn(rows, hidden, generator=generator).bfloat16())
            graph.replay()
            answers.append([array.cpu().clone() for array in found])
            logits = torch.cat([states[rows] @ head[part * r : part * (r + 1)].T for r in range(size)], dim=-1)
            wide, ids = logits.float().cpu(), found[0].cpu()
            order = wide.gather(1, ids)
            assert bool((order.diff(dim=1) <= 0).all())
            best = wide.topk(count, dim=1).values
            assert torch.equal(best, order), "not the best candidates of the whole vocabulary"
            log_z = torch.logsumexp(wide.double(), dim=1, keepdim=True)
            assert float((found[1].cpu() - (order - log_z)).abs().max()) < 4e-6
    torch.save(answers, f"{out}.{rank}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@two_gpus
def test_two_ranks_merge_in_captured_graphs() -> None:
    """A gather outside of the graph, or buffers that move, would replay the first batch's candidates for ever."""
    with tempfile.TemporaryDirectory() as folder:
        store, out = os.path.join(folder, "store"), os.path.join(folder, "out")
        torch.multiprocessing.spawn(_rank, args=(2, store, out), nprocs=2)
        first, second = (torch.load(f"{out}.{rank}") for rank in range(2))
    assert len(first) == 40
    for ours, theirs in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(first[0][0], first[2][0])


@two_gpus
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(any(not os.environ.get(name) for name in NEEDED), reason=f"needs {', '.join(NEEDED)}")
def test_two_ranks_serve_alike(tmp_path: Path) -> None:
    """Ranks compared after every step, batches of one to five, greedy and sampled, the budget changed while serving."""
    from tests.gpu.test_server_gpu import generate, is_up, server

    run = tmp_path / "run"
    run.mkdir()
    texts = ["The capital of France is", "def fib(n):", "Once upon a time", "List three fruits:", "The moon"]
    tree, flags = Path(os.environ["DDTREE_GPU_SGLANG"]), ("--tp-size", "2", "--disable-custom-all-reduce")
    variables = {"DDTREE_COMPARE_RANKS": "1", "DDTREE_RUN_DIR": str(run)}
    variables["SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK"] = "0"  # others may use one of the GPUs
    with server(tree, tmp_path / "log", *flags, **variables) as (process, url):
        assert is_up(process, url), (tmp_path / "log").read_text("utf-8", "replace")[-4000:]
        for asked in (None, {"budget": 8}, {"mode": "chain"}, {"budget": "auto"}):
            if asked is not None:
                (run / "control.json").write_text(json.dumps(asked), "utf-8")
            for temperature in (0.0, 0.7):
                for count in (1, 3, 5):
                    answers = generate(url, texts[:count], temperature)
                    assert all(answer["meta_info"]["completion_tokens"] > 0 for answer in answers)
        assert process.poll() is None
        time.sleep(2.5)
        found = [json.loads(path.read_text("utf-8")) for path in run.glob("[0-9]*.json")]
        ranks = {beacon["settings"].get("tp_rank") for beacon in found if "scheduler" in str(beacon["argv"])}
        assert ranks == {0, 1}
    log = (tmp_path / "log").read_text("utf-8", "replace")
    assert "DDTREE compares all 2 ranks after every step" in log
    assert "captured verify graphs follow the tree" in log
