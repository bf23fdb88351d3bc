"""Structured output: a mask of legal tokens per node, by SGLang's own walk over the tree on the host.

The tree's links travel to the host beside the target's forward; the walk waits for them (and, under overlap scheduling,
for the tokens of the step before), so batches with a grammar do wait once per step, as DFLASH's do.
"""

from __future__ import annotations

from typing import Any

from . import compat

_MODULE = "sglang.srt.speculative.spec_utils"


def served() -> bool:
    """Tell whether this SGLang release can mask a tree."""
    return all(compat.optional(_MODULE, name) is not None for name in ("GrammarTree", "build_grammar_vocab_mask"))


def begin(batch: Any, tree: Any) -> Any:
    """Start copying the links of the trees to the host, before the target's forward; ``None`` without grammars."""
    if not batch.has_grammar:
        return None
    grammar_tree = compat.optional(_MODULE, "GrammarTree")
    return grammar_tree.from_device(tree.retrieve_next_token, tree.retrieve_next_sibling, tree.draft_token)


def mask(batch: Any, begun: Any, device: Any, barrier: Any) -> Any:
    """Return the mask of legal tokens, with an ``apply(logits)`` for rows ``[bs * N, V]``; ``None`` where all are.

    ``barrier``: the scheduler's, which advances grammars over the tokens of the step before.
    """
    if begun is None:
        return None
    build = compat.optional(_MODULE, "build_grammar_vocab_mask")
    return build(reqs=batch.reqs, tree=begun, sampling_info=batch.sampling_info, device=device, barrier=barrier)
