"""Time the tree kernels on a GPU against the heap on the CPU and plain torch, in one run.

    python benchmarks/kernels/bench_build.py OUT.json [build|topk|merge|accept|compact ...]

Kernels run inside a CUDA graph. Two times are given: ``graph_us``, one replay of a graph with one call, between two
CUDA events (launch of the graph included), and ``chained_us``, a graph of 20 calls divided by 20 (what a call adds to a
graph that is running anyway). Medians. The heap's time is the host clock around copy to the host, search, visibility
and copy back, with the synchronisation that it forces.
"""

from __future__ import annotations

import datetime
import heapq
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.build import accept, merge, topk, torch_builder, triton_builder, triton_commit, triton_static, triton_topk
from ddtree.build.shape import NO_END, DeviceShape, Shape

DEPTH = 15
CHAIN = 20
Row = dict[str, Any]


def captured(call: Callable[[], object], times: int) -> torch.cuda.CUDAGraph:
    """Capture ``times`` calls into a graph, after warming up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def events_us(call: Callable[[], object], repeats: int) -> float:
    """Median time between two events around a call, in microseconds."""
    for _ in range(5):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    torch.cuda.synchronize()
    for start, end in pairs:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs) * 1000


def graph_times(call: Callable[[], object], repeats: int = 300) -> Row:
    """Time a call inside graphs."""
    single = events_us(captured(call, 1).replay, repeats)
    chained = events_us(captured(call, CHAIN).replay, max(repeats // 5, 10)) / CHAIN
    return {"graph_us": round(single, 2), "chained_us": round(chained, 2)}


def host_us(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call and its device work by the host's clock, in microseconds."""
    call()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)


def make_logits(rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """Noise with three peaks per row, as of a drafter that is fairly sure."""
    generator = torch.Generator(device="cuda").manual_seed(rows + vocab)
    logits = torch.randn(rows, vocab, generator=generator, device="cuda") * 2
    peaks = torch.randint(0, vocab, (rows, 3), generator=generator, device="cuda")
    return logits.scatter_(1, peaks, torch.tensor([16.0, 14.5, 13.0], device="cuda").expand(rows, 3)).to(dtype)


def heap_on_cpu(
    roots: torch.Tensor, ids: torch.Tensor, log_probs: torch.Tensor, seq_lens: torch.Tensor, budget: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Best-first search per request in the published order of operations: float64 on the host, visibility, copies."""
    host_roots, host_lens = roots.tolist(), seq_lens.tolist()
    host_ids, host_logs = ids.tolist(), log_probs.tolist()
    bs, width = len(host_roots), budget + 1
    tokens = torch.zeros(bs, width, dtype=torch.int64)
    positions = torch.zeros(bs, width, dtype=torch.int64)
    visible = torch.zeros(bs, width, width, dtype=torch.bool)
    for b in range(bs):
        table, names = host_logs[b], host_ids[b]
        row, places, parents = [host_roots[b]], [host_lens[b]], [0]
        pending = [(-table[0][0], (0,), 0, 1, 0, table[0][0])]
        while pending and len(row) < width:
            _, ranks, parent, depth, rank, value = heapq.heappop(pending)
            node = len(row)
            row.append(names[depth - 1][rank])
            places.append(host_lens[b] + depth)
            parents.append(parent)
            if rank + 1 < len(table[depth - 1]):
                sibling = value - table[depth - 1][rank] + table[depth - 1][rank + 1]
                heapq.heappush(pending, (-sibling, (*ranks[:-1], rank + 1), parent, depth, rank + 1, sibling))
            if depth < len(table):
                child = value + table[depth][0]
                heapq.heappush(pending, (-child, (*ranks, 0), node, depth + 1, 0, child))
        tokens[b, : len(row)] = torch.tensor(row)
        positions[b, : len(row)] = torch.tensor(places)
        mask = visible[b].numpy()
        mask[0, 0] = True
        for node in range(1, len(row)):
            mask[node, :node] = mask[parents[node], :node]
            mask[node, node] = True
    return tokens.cuda(), positions.cuda(), visible.cuda()


def bench_build(bs: int, budget: int, depth: int = DEPTH) -> Row:
    """Build with epilogue, FULL_MASK's tree columns written in place, at one batch size and budget.

    Both builders, and in the same run the two things that they replace: the heap on the host in the published order of
    operations with its copies, and a straight torch version (eager, and as a CUDA graph).
    """
    logits = make_logits(bs * depth, 49152, torch.bfloat16)
    ids, log_probs, scores = (t.view(bs, depth, budget) for t in topk.candidates(logits, budget))
    long = {"dtype": torch.int64, "device": "cuda"}
    roots, lens = torch.full((bs,), 3, **long), torch.full((bs,), 1000, **long)
    budgets, ends = torch.full((bs,), budget, **long), torch.full((bs,), NO_END, **long)
    width = budget + 1
    shape = DeviceShape(Shape(width, budget), "cuda")
    buffers = triton_builder.make_buffers(bs, width, depth, budget, "cuda")
    full = torch.zeros(width * bs * (1000 + width), dtype=torch.bool, device="cuda")
    inputs = (roots, ids, scores, lens, budgets, ends)

    def loop(square: bool = False) -> torch_builder.TreeBatch:
        return triton_builder.build_trees_into(*inputs, shape, buffers, full, square_mask=square)

    def plain() -> torch_builder.TreeBatch:
        return torch_builder.build_trees(*inputs, shape.host)

    def is_equal(found: torch_builder.TreeBatch, twin: torch_builder.TreeBatch) -> bool:
        return all(torch.equal(getattr(found, name), value) for name, value in vars(twin).items())

    row: Row = {"what": "build", "bs": bs, "budget": budget, "depth": depth, "ranks": budget}
    twin = plain()
    row |= graph_times(loop)
    row["with_square_mask"] = graph_times(lambda: loop(True))
    row["equal_to_torch"] = is_equal(loop(True), twin)
    row["static"] = None
    if triton_static.covers(budget, depth):
        tables = triton_static.make_tables(bs, buffers, depth, budget, "cuda")

        def select(square: bool = False, warps: int | None = None) -> torch_builder.TreeBatch:
            return triton_static.build_trees_into(
                *inputs, shape, buffers, tables, full, square_mask=square, num_warps=warps
            )

        row["static"] = {**graph_times(select), "tuples": tables.tuples}
        row["static"]["chained_us_by_warps"] = {
            warps: graph_times(lambda warps=warps: select(False, warps))["chained_us"]
            for warps in (1, 2, 4, 8)
            if tables.tuples <= 1024 * warps
        }
        buffers.nodes.zero_()
        row["static"]["equal_to_torch"] = is_equal(select(True), twin)
    row["heap_cpu_us"] = round(host_us(lambda: heap_on_cpu(roots, ids, log_probs, lens, budget), 10), 1)
    row["torch_eager_us"] = round(host_us(plain, 3), 1)
    row["torch_graph_us"] = round(events_us(captured(plain, 1).replay, 10), 1)
    fastest = min(row["graph_us"], row["static"]["graph_us"] if row["static"] else row["graph_us"])
    for name in ("heap_cpu", "torch_eager", "torch_graph"):
        row[f"{name}_over_kernel"] = round(row[f"{name}_us"] / fastest, 1)
    tokens, _, visible = heap_on_cpu(roots, ids, log_probs, lens, budget)
    row["equal_to_float64_heap"] = bool(torch.equal(tokens, twin.draft_token) and torch.equal(visible, twin.mask))
    return row


def bench_merge(bs: int, shards: int, vocab: int, ranks: int) -> Row:
    """What tensor parallelism adds to one rank: its shard's words, and merging all; the gather is not in it."""
    rows, part = bs * DEPTH, vocab // shards
    logits = make_logits(rows, part, torch.bfloat16)
    whole = triton_topk.make_buffers(rows, ranks, vocab, "cuda")
    entire = make_logits(rows, vocab, torch.bfloat16)

    def stand_in(out: torch.Tensor, mine: torch.Tensor) -> None:
        del out, mine

    call = merge.ShardedCandidates(merge.Shard(0, part, part, vocab, shards), stand_in, rows, ranks, "cuda")
    call(logits)
    call._gathered.copy_(call._packed.flatten().repeat(shards))
    row: Row = {"what": "merge", "bs": bs, "rows": rows, "shards": shards, "vocab": vocab, "ranks": ranks}
    row["gathered_bytes"] = call._gathered.numel() * 8
    row |= graph_times(lambda: call(logits))
    row["unsplit"] = graph_times(lambda: triton_topk.candidates_into(entire, whole))
    return row


def bench_topk(bs: int, vocab: int, ranks: int, dtype: torch.dtype) -> Row:
    """Top-k and log-sum-exp; the floor is one reading of the logits."""
    rows = bs * DEPTH
    logits = make_logits(rows, vocab, dtype)
    buffers = triton_topk.make_buffers(rows, ranks, vocab, "cuda")

    def straight() -> tuple[torch.Tensor, torch.Tensor]:  # no tie rule
        wide = logits.float()
        return torch.topk(wide, ranks, dim=-1), torch.logsumexp(wide, dim=-1)

    row: Row = {"what": "topk+lse", "bs": bs, "rows": rows, "vocab": vocab, "ranks": ranks, "dtype": str(dtype)[6:]}
    row["megabytes"] = round(logits.numel() * logits.element_size() / 1e6, 1)
    row |= graph_times(lambda: triton_topk.candidates_into(logits, buffers), 100)
    row["torch_graph_us"] = round(events_us(captured(straight, 1).replay, 20), 1)
    row["exact_torch_us"] = round(host_us(lambda: topk.candidates(logits, ranks), 5), 1)
    row["torch_over_kernel"] = round(row["torch_graph_us"] / row["graph_us"], 1)
    row["exact_torch_over_kernel"] = round(row["exact_torch_us"] / row["graph_us"], 1)
    row["equal_ids"] = bool(torch.equal(buffers.ids, topk.candidates(logits, ranks)[0]))
    return row


def bench_accept(bs: int, budget: int) -> Row:
    """Acceptance of paths of moderate length."""
    width = budget + 1
    logits = make_logits(bs * DEPTH, 5000, torch.float32)
    ids, _, scores = (t.view(bs, DEPTH, budget) for t in topk.candidates(logits, budget))
    long = {"dtype": torch.int64, "device": "cuda"}
    lens, sizes = torch.full((bs,), 1000, **long), torch.full((bs,), budget, **long)
    tree = torch_builder.build_trees(lens, ids, scores, lens, sizes, lens + 1 + DEPTH, Shape(width, budget))
    target = torch.zeros(bs, width, **long)
    for b in range(bs):  # confirm the path to node 3/4 of the budget
        node = budget * 3 // 4
        while node:
            above = int(tree.parent[b, node])
            target[b, above] = tree.draft_token[b, node]
            node = above
    buffers = triton_commit.make_accept_buffers(bs, DEPTH + 1, "cuda")
    row: Row = {"what": "accept", "bs": bs, "budget": budget}
    row |= graph_times(lambda: triton_commit.accept_into(tree, target, lens, buffers))
    plain = captured(lambda: accept.accept_paths(tree, target, DEPTH + 1), 1)
    row["torch_graph_us"] = round(events_us(plain.replay, 50), 1)
    row["mean_accept_len"] = float(buffers.accept_len.float().mean())
    return row


def bench_compaction(bs: int, layers: int, heads: int, dim: int, moves: bool) -> Row:
    """KV of all layers, six accepted nodes per request, of which five move (or none)."""
    width, path_width, slots = 65, DEPTH + 1, 8192
    kv = [torch.randn(slots, heads, dim, device="cuda").bfloat16() for _ in range(2 * layers)]
    window = torch.randperm(slots, device="cuda")[: bs * width].view(bs, width).contiguous()
    path = torch.arange(path_width, device="cuda").repeat(bs, 1)
    if moves:
        path[:, 1:7] = torch.tensor([1, 3, 6, 10, 18, 33], device="cuda")
    count = torch.full((bs,), 6, dtype=torch.int64, device="cuda")
    table = triton_commit.make_kv_table(kv)

    def straight() -> None:
        source, to = window.gather(1, path[:, :7]).flatten(), window[:, :7].flatten()
        for buffer in kv:
            buffer[to] = buffer[source]

    row: Row = {"what": "compact_kv", "bs": bs, "layers": layers, "row_bytes": heads * dim * 2, "moves": moves}
    row |= graph_times(lambda: triton_commit.compact_kv_into(table, window, path, count))
    row["torch_graph_us"] = round(events_us(captured(straight, 1).replay, 50), 1)
    return row


def main(out: Path, wanted: list[str]) -> None:
    """Measure everything, or what is wanted; print a line per row and keep the JSON current."""
    document: Row = {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "chunk": [triton_topk.CHUNK, triton_topk.CHUNK_WARPS],
        "python": platform.python_version(),
        "command": " ".join(["python benchmarks/kernels/bench_build.py OUT.json", *wanted]),
        "definitions": " ".join((__doc__ or "").split("\n\n")[-1].split()),
        "complete": False,
        "rows": [],
    }

    def write() -> None:
        out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")

    def add(bench: Callable[..., Row], *sizes: Any) -> None:
        name = bench.__name__.removeprefix("bench_").replace("compaction", "compact")
        if not wanted or name in wanted:
            document["rows"].append(bench(*sizes))
            print(json.dumps(document["rows"][-1]), flush=True)
            write()

    for bs in (1, 8, 32):
        for budget in (8, 16, 24, 32, 48, 64, 128):
            add(bench_build, bs, budget)
        for budget in (16, 32, 64):
            add(bench_build, bs, budget, 7)
    for vocab in (49152, 151936):
        for bs in (1, 8, 32):
            add(bench_topk, bs, vocab, 64, torch.bfloat16)
            add(bench_topk, bs, vocab, 64, torch.float32)
            add(bench_merge, bs, 2, vocab, 32)
            add(bench_merge, bs, 8, vocab, 32)
    for bs in (1, 32):
        add(bench_accept, bs, 64)
        for moves in (True, False):
            add(bench_compaction, bs, 30, 3, 64, moves)
            add(bench_compaction, bs, 36, 8, 128, moves)
    document["complete"] = True
    write()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
