"""The DFlash drafter in plain torch: parameter names are those of the checkpoint.

A block holds the anchor (the last token, not yet in the target's cache) and then mask tokens. In every layer the block
attends to itself in both directions and to the context before the anchor. Keys and values of the context are made of
hidden states tapped out of the target (concatenated, ``fc``, normalised) with the layer's own projections; they never
change, so they are kept. Embedding and LM head are the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Config, DraftConfig, Unsupported, draft_config, read_config


class Rope:
    """Rotary positions, applied in float32."""

    def __init__(self, head_dim: int, theta: float, device: torch.device) -> None:
        even = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32)
        self._inverse = theta ** -(even / head_dim)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``x`` ``[rows, tokens, heads, dim]`` at ``positions`` ``[rows, tokens]``."""
        angle = positions.float()[..., None] * self._inverse
        angle = torch.cat([angle, angle], -1)[:, :, None]
        low, high = x.float().chunk(2, -1)
        return (x.float() * angle.cos() + torch.cat([-high, low], -1) * angle.sin()).to(x.dtype)


class RMSNorm(nn.Module):
    """Root mean square normalisation, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.heads, c.kv_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=c.bias)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=c.bias)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=c.bias)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=c.bias)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim, c.eps), RMSNorm(c.head_dim, c.eps)

    def keys_values(self, x: Tensor, positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Keys and values of ``x`` ``[rows, tokens, hidden]``, each ``[rows, kv_heads, tokens, dim]``."""
        k = rope(self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))), positions)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        return k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, positions: Tensor, rope: Rope, context: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend from ``x`` to ``context`` and ``x``; ``mask`` ``[rows, 1, 1, context + tokens]``: what is seen."""
        q = rope(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.dim))), positions).transpose(1, 2)
        own = self.keys_values(x, positions, rope)
        repeat = self.heads // self.kv_heads
        k, v = (
            torch.cat([old.expand(x.shape[0], -1, -1, -1), new], 2).repeat_interleave(repeat, 1)
            for old, new in zip(context, own, strict=True)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.inner, bias=False)
        self.down_proj = nn.Linear(c.inner, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm layer."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden, c.eps)
        self.mlp = MLP(c)

    def forward(self, x: Tensor, positions: Tensor, rope: Rope, context: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, rope, context, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Context:
    """Keys and values of the committed tokens, per drafter layer ``[1, kv_heads, tokens, dim]``."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.length = 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def extend(self, features: Tensor) -> None:
        """Append tokens by their tapped features ``[tokens, taps * hidden]``."""
        new = self._drafter.context_keys_values(features, self.length)
        if self.layers:
            new = [
                (torch.cat([k, more_k], 2), torch.cat([v, more_v], 2))
                for (k, v), (more_k, more_v) in zip(self.layers, new, strict=True)
            ]
        self.layers, self.length = new, self.length + features.shape[0]


class Drafter(nn.Module):
    """DFlash block drafter."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.config = c
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.fc = nn.Linear(c.hidden * len(c.taps), c.hidden, bias=False)
        self.hidden_norm, self.norm = RMSNorm(c.hidden, c.eps), RMSNorm(c.hidden, c.eps)
        self._rope: Rope | None = None

    @property
    def rope(self) -> Rope:
        """Rotary positions on the module's device."""
        if self._rope is None:
            self._rope = Rope(self.config.head_dim, self.config.theta, self.fc.weight.device)
        return self._rope

    def context_keys_values(self, features: Tensor, start: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of context tokens at positions ``start ..``, for every layer."""
        context = self.hidden_norm(self.fc(features))[None]
        positions = torch.arange(start, start + features.shape[0], device=features.device)[None]
        return [layer.self_attn.keys_values(context, positions, self.rope) for layer in self.layers]

    def block_ids(self, anchors: Tensor) -> Tensor:
        """Input ids ``[rows, block]``: an anchor token each ``[rows]``, then masks."""
        ids = anchors.new_full((anchors.shape[0], self.config.block), self.config.mask_id)
        ids[:, 0] = anchors
        return ids

    def forward(self, embedded: Tensor, starts: Tensor, context: Context) -> Tensor:
        """Normalised hidden states of the masked positions, ``[rows, block - 1, hidden]``.

        ``embedded`` ``[rows, block, hidden]``: embeddings of :meth:`block_ids`; ``starts`` ``[rows]``: the anchors'
        positions. A row sees the context before its anchor.
        """
        block = self.config.block
        positions = starts[:, None] + torch.arange(block, device=starts.device)
        seen = torch.arange(context.length, device=starts.device)[None] < starts[:, None]
        mask = F.pad(seen, (0, block), value=True)[:, None, None]
        x = embedded
        for layer, kept in zip(self.layers, context.layers, strict=True):
            x = layer(x, positions, self.rope, kept, mask)
        return self.norm(x)[:, 1:]


def load_drafter(folder: Path, target: Config, device: torch.device, dtype: torch.dtype) -> Drafter:
    """Load the drafter in ``folder`` for a target with the config ``target``.

    Raises:
        Unsupported: the config or the weights are not what this implementation runs.
    """
    drafter = Drafter(draft_config(read_config(folder), target, str(folder / "config.json")))
    found = {name.removeprefix("model."): value for name, value in _weights(folder).items()}
    found = {name: value for name, value in found.items() if not name.endswith("rotary_emb.inv_freq")}
    wanted = {name: value.shape for name, value in drafter.state_dict().items()}
    odd = [f"missing {name}" for name in wanted.keys() - found.keys()]
    odd += [f"unknown {name}" for name in found.keys() - wanted.keys()]
    odd += [f"{n} is {list(v.shape)}" for n, v in found.items() if n in wanted and v.shape != wanted[n]]
    if odd:
        raise Unsupported(f"{folder}: weights of another kind of drafter: {', '.join(sorted(odd)[:4])} ({len(odd)})")
    drafter.load_state_dict(found)
    drafter.to(device, dtype).eval()
    return drafter


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Unsupported(f"{folder}: no *.safetensors; other weight files are not read")
    return {name: value for file in files for name, value in load_file(file).items()}
