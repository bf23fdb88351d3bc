#!/usr/bin/env python3
"""Write a random 4-layer Qwen3 target with a byte-level tokenizer, and a random 2-layer DFlash drafter.

    make_tiny_models.py OUT [--block-size 8] [--seed 0]     ->  OUT/target  OUT/draft

Both have 512 vocabulary entries, hidden size 64, about 1 MB each: they produce no language, but
deterministic greedy output, which is all that an equality test needs. The drafter reads the target's
hidden states of layers 0 and 2.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))
import cpu_stubs  # noqa: F401  before transformers, which imports torchvision
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCAB, HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 512, 64, 128, 4, 2, 16, 2048
TARGET_LAYERS, DRAFT_LAYERS, TAPPED = 4, 2, [0, 2]
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2, "<mask>": 3}


def write_target(out, seed):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INTER,
        num_hidden_layers=TARGET_LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        torch_dtype="float32",
        bos_token_id=SPECIAL["<s>"],
        eos_token_id=SPECIAL["</s>"],
    )
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(out)
    vocab = dict(SPECIAL)
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab.setdefault(char, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(out)


def write_draft(out, block_size, seed):
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": DRAFT_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "block_size": block_size,
        "num_target_layers": TARGET_LAYERS,
        "attention_bias": False,
        "dflash_config": {
            "mask_token_id": SPECIAL["<mask>"],
            "target_layer_ids": TAPPED,
            "block_size": block_size,
        },
    }
    (out / "config.json").write_text(json.dumps(config))
    matrices = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTER, HIDDEN),
        "mlp.up_proj": (INTER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTER),
    }
    norms = {
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
        "self_attn.q_norm": HEAD_DIM,
        "self_attn.k_norm": HEAD_DIM,
    }
    weights = {
        "fc.weight": torch.randn(HIDDEN, HIDDEN * len(TAPPED)) * 0.05,
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(DRAFT_LAYERS):
        for name, shape in matrices.items():
            weights[f"layers.{layer}.{name}.weight"] = torch.randn(*shape) * 0.05
        for name, size in norms.items():
            weights[f"layers.{layer}.{name}.weight"] = torch.ones(size)
    save_file(weights, out / "model.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_target(args.out / "target", args.seed)
    write_draft(args.out / "draft", args.block_size, args.seed + 1)
    for path in sorted(args.out.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:9d} {path.relative_to(args.out)}")
