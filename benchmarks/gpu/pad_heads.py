#!/usr/bin/env python3
"""Give a Llama-like target, or its DFlash drafter, more attention heads without changing what it computes.

    pad_heads.py SRC DST --tp 2

Tensor parallelism divides attention heads; a model with 9 of them (3 for keys and values) cannot be split in two. This
appends whole groups of heads until both counts can be divided: their queries, keys and values are noise, the columns
of ``o_proj`` that read them are zero. Same tokens, same acceptance; the cache grows by the heads that were added. Needs
torch and safetensors. Pad target and drafter alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def heads_after(heads: int, kv_heads: int, tp: int) -> tuple[int, int]:
    """Return the smallest counts in the same ratio of which both can be divided by ``tp``."""
    group = heads // kv_heads
    kv = kv_heads
    while kv % tp:
        kv += 1
    return kv * group, kv


def pad(name: str, tensor: torch.Tensor, more: dict[str, int]) -> torch.Tensor:
    """Return the tensor with the rows or columns of the added heads."""
    layer = name.split(".")[-2] if "." in name else name
    if layer in ("q_proj", "k_proj", "v_proj"):
        generator = torch.Generator().manual_seed(sum(name.encode()))
        shape = (more[layer], *tensor.shape[1:])
        return torch.cat([tensor, torch.randn(shape, generator=generator).mul(0.02).to(tensor.dtype)])
    if layer == "o_proj" and tensor.ndim == 2:
        return torch.cat([tensor, tensor.new_zeros(tensor.shape[0], more["q_proj"])], dim=1)
    return tensor


def convert(source: Path, target: Path, tp: int) -> tuple[int, int]:
    """Write the padded model; returns its head counts."""
    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    after, kv_after = heads_after(heads, kv_heads, tp)
    extra, kv_extra = (after - heads) * head_dim, (kv_after - kv_heads) * head_dim
    more = {"q_proj": extra, "k_proj": kv_extra, "v_proj": kv_extra}
    config.update(num_attention_heads=after, num_key_value_heads=kv_after, head_dim=head_dim)
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            tensors = {name: pad(name, tensor, more).contiguous() for name, tensor in load_file(file).items()}
            save_file(tensors, target / file.name, metadata={"format": "pt"})
        elif file.name != "config.json":
            shutil.copy(file, target)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    return after, kv_after


def main() -> None:
    """Read the command line, convert, say what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--tp", type=int, default=2)
    arguments = parser.parse_args()
    heads, kv_heads = convert(arguments.source, arguments.target, arguments.tp)
    print(f"{arguments.target}: {heads} heads, {kv_heads} for keys and values")


if __name__ == "__main__":
    main()
