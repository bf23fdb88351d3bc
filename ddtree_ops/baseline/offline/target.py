"""The target: a Hugging Face causal model with taps, a cache, and one forward over a whole tree.

The tree's nodes are appended to the cache in one pass, each at position ``start + depth``, under a 4-D mask: a node
sees everything committed, its ancestors and itself. Afterwards the cache keeps the accepted path alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import Unsupported, check_target, read_config


class Target:
    """A loaded target model; one sequence at a time.

    ``taps``: layers, from 0, whose outputs are collected (set by whoever drafts from them).
    """

    def __init__(self, model: Any, config: Any, taps: tuple[int, ...] = ()) -> None:
        self.model, self.config, self.taps = model, config, taps
        self.device, self.dtype = model.get_input_embeddings().weight.device, model.get_input_embeddings().weight.dtype
        self.length = 0  # committed tokens in the cache
        self._cache: Any = None
        self._tapped: dict[int, Tensor] = {}
        layers = getattr(getattr(model, "model", None), "layers", None)
        if layers is None:
            raise Unsupported(f"{type(model).__name__}: no model.layers to tap")
        for index, layer in enumerate(layers):
            layer.register_forward_hook(self._tap(index))

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> Target:
        """Load the model in ``folder``; no download, no remote code."""
        from transformers import AutoModelForCausalLM

        config = read_config(folder)
        check_target(config, str(folder / "config.json"))
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError) as error:
            raise Unsupported(f"{folder}: transformers cannot load it: {error}") from error
        return cls(model.to(device).eval(), config)

    def _tap(self, index: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if index in self.taps:
                self._tapped[index] = output[0] if isinstance(output, tuple) else output

        return hook

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of token ids."""
        return self.model.get_input_embeddings()(ids)

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Float32 logits of final hidden states: product in the model's type, as when serving."""
        return self.model.get_output_embeddings()(hidden).float()

    def features(self) -> Tensor:
        """Tapped outputs of the last pass, ``[tokens, taps * hidden]``."""
        return torch.cat([self._tapped[index][0] for index in self.taps], -1)

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> Tensor:
        """Start a sequence; returns the logits ``[vocabulary]`` after its last token."""
        from transformers import DynamicCache

        self._cache, self.length = DynamicCache(), len(ids)
        row = torch.tensor([ids], device=self.device)
        out = self.model(input_ids=row, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].float()

    @torch.inference_mode()
    def verify(self, tokens: list[int], depths: list[int], visible: Tensor) -> Tensor:
        """Logits ``[nodes, vocabulary]`` after every node of a tree; follow with :meth:`keep`.

        ``visible`` ``[nodes, nodes]`` bool: row ``i`` is true at the ancestors of ``i`` and at ``i``.
        """
        row = torch.tensor([tokens], device=self.device)
        positions = torch.tensor([depths], device=self.device) + self.length
        seen = torch.cat([visible.new_ones(len(tokens), self.length), visible], 1).to(self.device)
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill(~seen, torch.finfo(self.dtype).min)[None, None]
        out = self.model(
            input_ids=row, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
        )
        return out.logits[0].float()

    @torch.inference_mode()
    def step(self, token: int) -> Tensor:
        """Logits ``[vocabulary]`` after one more token: plain decoding, no mask of ours; the token is committed."""
        row = torch.tensor([[token]], device=self.device)
        out = self.model(input_ids=row, past_key_values=self._cache, use_cache=True)
        self.length += 1
        return out.logits[0, -1].float()

    @torch.inference_mode()
    def keep(self, nodes: list[int]) -> None:
        """Commit these nodes of the verified tree, in this order; the others leave the cache."""
        front = torch.arange(self.length, device=self.device)
        rows = torch.cat([front, torch.tensor(nodes, device=self.device) + self.length])
        for layer in _layers(self._cache):
            layer.keys, layer.values = layer.keys[:, :, rows], layer.values[:, :, rows]
        self.length += len(nodes)

    @torch.inference_mode()
    def whole(self, ids: list[int]) -> Tensor:
        """Logits ``[tokens, vocabulary]`` of a whole sequence in one causal pass, without the cache."""
        row = torch.tensor([ids], device=self.device)
        return self.model(input_ids=row, use_cache=False).logits[0].float()


def _layers(cache: Any) -> Any:
    """The cache's layers, each with ``keys`` and ``values``."""
    layers = getattr(cache, "layers", None)
    if layers is None or not all(hasattr(layer, "keys") for layer in layers):
        import transformers

        raise Unsupported(f"transformers {transformers.__version__}: DynamicCache without layers.keys and .values")
    return layers
