"""The pytiny pair in plain PyTorch: a small Qwen3 target and a DFlash drafter for it.

Parameter names are those of the published formats, so that ``state_dict()`` is the checkpoint:
``Target`` writes what Hugging Face calls ``Qwen3ForCausalLM``, ``Drafter`` what SGLang loads as ``DFlashDraftModel``.

The drafter sees one block at a time: the anchor (the last committed token) and then mask tokens. In each layer the
block attends to itself in both directions and to the committed context before the anchor. Keys and values of the
context are made from hidden states tapped out of the target (concatenated, projected by ``fc``, normalised), with the
layer's own key and value projections. Embedding and LM head are the target's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Config = dict[str, Any]
Rope = tuple[Tensor, Tensor]


def rope_tables(length: int, head_dim: int, theta: float, device: torch.device | str) -> Rope:
    """Cosine and sine tables [length, head_dim] of rotary positions, in float32."""
    inverse = theta ** -(torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * inverse
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Apply rotary positions to x [batch, tokens, heads, dim]; tables [batch or 1, tokens, dim]."""
    cos, sin = rope
    low, high = x.float().chunk(2, -1)
    turned = torch.cat([-high, low], -1)
    return (x.float() * cos[:, :, None] + turned * sin[:, :, None]).to(x.dtype)


class RMSNorm(nn.Module):
    """Root mean square normalisation, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys, as in Qwen3."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        hidden, self.dim = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.q_norm = RMSNorm(self.dim, c["rms_norm_eps"])
        self.k_norm = RMSNorm(self.dim, c["rms_norm_eps"])

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        """Rotated queries [batch, heads, tokens, dim]."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim)))
        return rotate(q, rope).transpose(1, 2)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, [batch, kv_heads, tokens, dim] each."""
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim)))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        return rotate(k, rope).transpose(1, 2), v.transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attention output after o_proj; without a mask it is causal."""
        repeat = self.heads // self.kv_heads
        if q.shape[2] == 1 and mask is not None:  # one token per row: the heads of a group are queries of one head
            grouped = q[:, :, 0].unflatten(1, (self.kv_heads, repeat))
            return self.o_proj(F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask).flatten(1)[:, None])
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm block; target and drafter differ only in what it attends to."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Residual sums around attention output and feed-forward part."""
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    """Embedding, layers and final norm (the ``model.`` prefix of the checkpoint)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Cache:
    """Keys and values of a batch of rows, one slot per position."""

    def __init__(self, target: Target, rows: int, width: int) -> None:
        c, weight = target.config, target.lm_head.weight
        shape = (c["num_hidden_layers"], rows, c["num_key_value_heads"], width, c["head_dim"])
        self.k = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self.v = torch.zeros_like(self.k)
        self.rows = torch.arange(rows, device=weight.device)
        self.columns = torch.arange(width, device=weight.device)


class Target(nn.Module):
    """Qwen3 for causal language modelling, with taps and batched generation."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        self._rope: Rope | None = None

    def rope(self) -> Rope:
        """Rotary tables on the module's device, made once."""
        device = self.lm_head.weight.device
        if self._rope is None or self._rope[0].device != device:
            c = self.config
            with torch.inference_mode(False):  # also usable in training when first needed in generation
                length = c["max_position_embeddings"]
                self._rope = rope_tables(length, c["head_dim"], c["rope_theta"], device)
        return self._rope

    def hidden(
        self, ids: Tensor, taps: tuple[int, ...] = (), cache: Cache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Normalised last hidden states, and the outputs of the tapped layers concatenated.

        ``taps`` counts layers from 0; a given ``cache`` is filled with positions 0 .. tokens-1."""
        length = ids.shape[1]
        cos, sin = self.rope()
        rope = (cos[None, :length], sin[None, :length])
        x, tapped = self.model.embed_tokens(ids), []
        for i, layer in enumerate(self.model.layers):
            normed = layer.input_layernorm(x)
            k, v = layer.self_attn.keys_values(normed, rope)
            if cache is not None:
                cache.k[i, :, :, :length], cache.v[i, :, :, :length] = k, v
            x = layer.finish(x, layer.self_attn.attend(layer.self_attn.queries(normed, rope), k, v, None))
            if i in taps:
                tapped.append(x)
        return self.model.norm(x), torch.cat(tapped, -1) if tapped else None

    def step(self, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Logits [rows, vocabulary] after one more token per row."""
        cos, sin = self.rope()
        rope = (cos[positions][:, None], sin[positions][:, None])
        visible = (cache.columns[None] <= positions[:, None])[:, None, None]
        x = self.model.embed_tokens(tokens[:, None])
        for i, layer in enumerate(self.model.layers):
            normed = layer.input_layernorm(x)
            k, v = layer.self_attn.keys_values(normed, rope)
            cache.k[i, cache.rows, :, positions] = k[:, :, 0]
            cache.v[i, cache.rows, :, positions] = v[:, :, 0]
            q = layer.self_attn.queries(normed, rope)
            x = layer.finish(x, layer.self_attn.attend(q, cache.k[i], cache.v[i], visible))
        return self.lm_head(self.model.norm(x))[:, 0]

    @torch.inference_mode()
    def generate(
        self, prompts: list[list[int]], new_tokens: int, temperatures: list[float] | None = None, batch: int = 2048
    ) -> list[list[int]]:
        """New tokens of each prompt, cut after the first end-of-text; temperature 0 is greedy."""
        device, eos = self.lm_head.weight.device, self.config["eos_token_id"]
        answers: list[list[int]] = []
        for start in range(0, len(prompts), batch):
            part = prompts[start : start + batch]
            lengths = torch.tensor([len(p) for p in part], device=device)
            longest = max(len(p) for p in part)
            ids = torch.tensor([p + [eos] * (longest - len(p)) for p in part], device=device)
            cache = Cache(self, len(part), longest + new_tokens)
            self.hidden(ids[:, :-1], cache=cache) if longest > 1 else None
            tokens, positions, out = ids.gather(1, lengths[:, None] - 1)[:, 0], lengths - 1, []
            heat = None
            if temperatures is not None:
                heat = torch.tensor(temperatures[start : start + batch], device=device)[:, None]
            for _ in range(new_tokens):
                logits = self.step(tokens, positions, cache).float()
                if heat is not None:
                    noise = torch.rand_like(logits).clamp_(1e-10, 1 - 1e-7)
                    logits -= heat * (-noise.log()).log()
                tokens, positions = logits.argmax(-1), positions + 1
                out.append(tokens)
            for row in torch.stack(out, 1).tolist():
                answers.append(row[: row.index(eos) + 1] if eos in row else row)
        return answers


class Drafter(nn.Module):
    """DFlash block drafter."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        hidden, dflash = config["hidden_size"], config["dflash_config"]
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.fc = nn.Linear(hidden * len(dflash["target_layer_ids"]), hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, config["rms_norm_eps"])
        self.norm = RMSNorm(hidden, config["rms_norm_eps"])
        self.block: int = config["block_size"]
        self.mask_id: int = dflash["mask_token_id"]
        self.taps: tuple[int, ...] = tuple(dflash["target_layer_ids"])

    def block_ids(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Input ids [rows, anchors * block]: each anchor's token, then masks."""
        ids = tokens.new_full((*anchors.shape, self.block), self.mask_id)
        ids[:, :, 0] = tokens.gather(1, anchors)
        return ids.flatten(1)

    def forward(self, features: Tensor, embedded: Tensor, anchors: Tensor, tables: Rope) -> Tensor:
        """Normalised hidden states [rows, anchors, block, hidden] of many blocks at once.

        features [rows, tokens, taps*hidden]: tapped target states; embedded: embeddings of ``block_ids``;
        anchors [rows, anchors]: positions of the anchors. A block sees the context before its anchor."""
        rows, length, _ = features.shape
        count, device = anchors.shape[1] * self.block, features.device
        positions = (anchors[:, :, None] + torch.arange(self.block, device=device)).flatten(1)
        cos, sin = tables
        rope_block, rope_context = (cos[positions], sin[positions]), (cos[None, :length], sin[None, :length])
        owner = torch.arange(count, device=device) // self.block
        first = anchors.repeat_interleave(self.block, 1)[:, :, None]
        mask = torch.cat(
            [
                torch.arange(length, device=device)[None, None] < first,
                (owner[:, None] == owner[None]).expand(rows, -1, -1),
            ],
            -1,
        )[:, None]
        context, x = self.hidden_norm(self.fc(features)), embedded
        for layer in self.layers:
            normed = layer.input_layernorm(x)
            k_context, v_context = layer.self_attn.keys_values(context, rope_context)
            k_block, v_block = layer.self_attn.keys_values(normed, rope_block)
            q = layer.self_attn.queries(normed, rope_block)
            k, v = torch.cat([k_context, k_block], 2), torch.cat([v_context, v_block], 2)
            x = layer.finish(x, layer.self_attn.attend(q, k, v, mask))
        return self.norm(x).unflatten(1, (-1, self.block))


def write_module(module: Target | Drafter, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16) to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(module.config, indent=1) + "\n")
    weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load_target(folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Target:
    """The target stored in ``folder``, ready for inference."""
    target = Target(json.loads((folder / "config.json").read_text()))
    target.load_state_dict(load_file(folder / "model.safetensors"))
    return target.to(device, dtype).eval()


def load_drafter(folder: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Drafter:
    """The drafter stored in ``folder``, ready for inference."""
    drafter = Drafter(json.loads((folder / "config.json").read_text()))
    drafter.load_state_dict(load_file(folder / "model.safetensors"))
    return drafter.to(device, dtype).eval()
