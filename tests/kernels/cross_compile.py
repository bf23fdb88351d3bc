"""Compile every Triton kernel of the payload for GPUs that are not there; needs a whole Triton (with ``ptxas``).

cross_compile.py [ARCH ...]       prints {"kernel sm_NN": null or a traceback, ...} as JSON, or {"skip": reason}
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
ARCHITECTURES = (80, 90, 100, 120)


def kernels() -> list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """Every kernel in the forms that are launched: (name, function, argument types, constants, options)."""
    from ddtree.build import (
        triton_builder,
        triton_clock,
        triton_coins,
        triton_commit,
        triton_count,
        triton_merge,
        triton_static,
        triton_step,
        triton_topk,
    )
    from ddtree.build.count import Layout

    long, single, flag = "*i64", "*fp32", "*i1"
    select = {"RANKS": 64, "RANKS2": 64, "CHUNK_GROUPS": 128, "GROUP": 64}
    found: list[tuple[str, Any, dict[str, str], dict[str, Any], dict[str, Any]]] = []
    for name, dtype, bits in (("bf16", "*bf16", 16), ("fp32", single, 32), ("fp16", "*fp16", 32)):
        found.append(
            (
                f"reduce_chunks {name}",
                triton_topk._reduce_chunks,
                {
                    "logits": dtype,
                    "row_stride": "i32",
                    "vocab": "i32",
                    "group_max": single,
                    "chunk_max": single,
                    "chunk_sum": single,
                    "chunks": "i32",
                },
                {"CHUNK": triton_topk.CHUNK, "GROUP": triton_topk.GROUP},
                {"num_warps": triton_topk.CHUNK_WARPS},
            )
        )
        chosen = {
            "logits": dtype,
            **dict.fromkeys(("row_stride", "vocab"), "i32"),
            **dict.fromkeys(("group_max", "chunk_max", "chunk_sum"), single),
            "slots": "*i32",
            **dict.fromkeys(("keys", "ids"), long),
            "log_probs": single,
            "scores": long,
            "log_zs": single,
            **dict.fromkeys(("chunks", "first_token", "row_words"), "i32"),
        }
        for packed in (False, True):
            sizes = {**select, "GROUPS2": 4096, "CHUNKS2": 32, "BITS": bits, "COLUMNS": 64, "PACKED": packed}
            label = f"select {name}{' packed' if packed else ''}"
            found.append((label, triton_topk._select, chosen, sizes, {"num_warps": 8}))
    merge = {
        "words": long,
        "shard_stride": "i32",
        "ids": long,
        "log_probs": single,
        "scores": long,
        "log_zs": single,
    }
    for shards, ranks in ((2, 32), (8, 64)):
        lanes = shards * ranks
        sizes = {"SHARDS": shards, "RANKS": ranks, "CHUNKS": 3, "LANES": lanes, "CHUNKS2": 32, "STEPS": 7, "BITS": 16}
        found.append((f"merge {shards}", triton_merge._merge, merge, sizes, {"num_warps": 4}))
    build = {
        **dict.fromkeys(("root_token", "ids", "scores", "seq_lens", "budgets", "end_lens", "nodes"), long),
        "shape": "*i32",
        "array_stride": "i32",
        **dict.fromkeys(("mask", "valid"), flag),
        "scratch": long,
        "full_mask": flag,
    }
    for lanes, warps in ((32, 1), (64, 1), (128, 2), (256, 4)):
        constants = {
            "DEPTHS": 15,
            "RANKS": 64,
            "TABLE": 1024,
            "N": lanes + 1,
            "LANES": lanes,
            "ROWS": 16 if lanes <= 64 else 8,
            "SQUARE": True,
            "FULL": True,
        }
        found.append((f"build {lanes}", triton_builder._build, build, constants, {"num_warps": warps}))
    whole = "*i32"
    static = {
        **build,
        **dict.fromkeys(("limits", "cells", "tuple_links", "places"), whole),
        **dict.fromkeys(("codes", "sums", "chosen"), long),
    }
    for tuples, depths, lanes, columns in ((397, 15, 32, 4), (3576, 15, 32, 5), (6005, 7, 64, 6)):
        padded = 1 << (tuples - 1).bit_length()
        constants = {
            **{"DEPTHS": depths, "RANKS": lanes, "TABLE": 512, "TUPLES": tuples, "TUPLES2": padded},
            **{"COLUMNS": columns, "N": lanes + 1, "LANES": lanes, "ROWS": 16, "SQUARE": False, "FULL": True},
        }
        options = {"num_warps": triton_static.warps(padded)}
        found.append((f"static {tuples}", triton_static._select_nodes, static, constants, options))
    found.append(
        (
            "fill_prefix",
            triton_builder._fill_prefix,
            {"seq_lens": long, "full_mask": flag},
            {"N": 65, "BLOCK": 2048},
            {"num_warps": 4},
        )
    )
    accept = {
        **dict.fromkeys(("draft_token", "parent"), long),
        "valid": flag,
        **dict.fromkeys(("target", "seq_lens", "stops", "paths", "out_tokens", "accept_lens", "bonuses"), long),
        "commit_lens": "*i32",
        **dict.fromkeys(("new_seq_lens", "moved"), long),
        "n": "i32",
    }
    for stops in (0, 8):
        sizes = {"LANES": 128, "P": 16, "PATH": 16, "STOPS": stops}
        found.append((f"accept, {stops} stops", triton_commit._accept, accept, sizes, {"num_warps": 1}))
    move = dict.fromkeys(("addresses", "row_bytes", "window", "paths", "accept_lens"), long)
    move["n"] = "i32"
    sizes = {"P": 16, "PATH": 16, "WORDS": 256}
    found.append(("compact_kv", triton_commit._compact_kv, move, sizes, {"num_warps": 4}))
    gather = {"rows": "*bf16", "paths": long, "out": "*bf16", "hidden": "i32", "row_stride": "i32", "n": "i32"}
    sizes = {"P": 16, "BLOCK": 1024}
    found.append(("gather_rows", triton_commit._gather_rows, gather, sizes, {"num_warps": 4}))
    prepare = {
        **dict.fromkeys(("roots", "seq_lens", "pool_indices"), long),
        "table": "*i32",
        **dict.fromkeys(("table_stride", "table_width", "mask_token", "bs", "is_live", "width"), "i32"),
        **dict.fromkeys(("live", "window", "front", "block_ids", "positions"), long),
    }
    found.append(("prepare", triton_step._prepare, prepare, {"LANES": 128, "B": 16}, {"num_warps": 1}))
    times = {"stamps": long, "fake": long}
    found.append(("stamp", triton_clock._stamp, {**times, "place": "i32"}, {"FAKE": False}, {"num_warps": 1}))
    sums = {**times, "sums": long, "row": "i32"}
    found.append(("collect", triton_clock._collect, sums, {"FAKE": False}, {"num_warps": 1}))
    draw = {"seeds": long, "positions": long, "ids": long, "out": single, "width": "i32", "vocab": "i32"}
    for with_ids in (False, True):
        types = draw if with_ids else {**draw, "ids": single}
        found.append(
            (f"clocks {with_ids}", triton_coins._clocks, types, {"IDS": with_ids, "BLOCK": 1024}, {"num_warps": 4})
        )
    layout = Layout(path_width=16, ranks=64)
    count = {
        **dict.fromkeys(("counts", "depths", "ranks", "scores", "next_tokens", "ids", "paths", "accept_lens"), long),
        **dict.fromkeys(("bonuses", "moved", "live"), long),
        "valid": flag,
        **dict.fromkeys(("valid_stride", "node_stride", "ids_stride", "row_stride", "path_stride", "width"), "i32"),
    }
    places = ("accept_length_histogram", "leaf_ends", "tree_depth_histogram", "nodes_by_depth", "expected_by_depth")
    places += ("accepted_rank_by_depth", "first_miss_rank")
    names = ("LENGTHS", "LEAVES", "DEPTHS", "NODES", "EXPECTED", "ACCEPTED", "MISSES")
    sizes = {name: layout.at(place) for name, place in zip(names, places, strict=True)}
    sizes |= {"P": 16, "PATH": 16, "K": 64, "CANDIDATES": 64}
    for lanes, warps in ((128, 1), (512, 4)):
        for gated in (False, True):
            constants = {**sizes, "GATED": gated, "LANES": lanes}
            found.append((f"count {lanes} {gated}", triton_count._count, count, constants, {"num_warps": warps}))
    return found


def main(architectures: list[int]) -> dict[str, str | None]:
    """Compile to machine code; a failing kernel's entry is its traceback."""
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except Exception as error:
        return {"skip": f"no whole Triton here: {error!r}"}
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (tools / "ptxas").exists():
        return {"skip": f"this Triton was slimmed: no {tools / 'ptxas'}"}
    results: dict[str, str | None] = {}
    for name, function, types, constants, options in kernels():
        signature = {**types, **dict.fromkeys(constants, "constexpr")}
        signature = {key: signature[key] for key in function.arg_names}
        for architecture in architectures:
            key = f"{name} sm_{architecture}"
            try:
                source = ASTSource(function, signature, constexprs=constants)
                compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
                results[key] = None if compiled.asm.get("cubin") else "no machine code came out"
            except Exception:
                results[key] = traceback.format_exc()
    return results


if __name__ == "__main__":
    json.dump(main([int(name) for name in sys.argv[1:]] or list(ARCHITECTURES)), sys.stdout)
