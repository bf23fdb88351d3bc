"""When a difference is a near tie: two steps of the served type at the logits' size (bfloat16 at 16 to 32: 0.25).

A logit that happens to be small is no more exact than its neighbours: what rounds is the hidden state before it, so no
logit counts as smaller than 16. (Measured with the test pair, whose best logits are 0.4 to 4.4: bfloat16 against fp32
chose another token at fp32 gaps of up to 0.103; two steps at the logits' own size would have allowed 0.002 to 0.03.)
"""

from __future__ import annotations

import math

_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "float32": 23}
STEPS = 2.0
FLOAT32_SUMS = 64.0
"""float32 results of two orders of summation differ by far more than one step of the result."""
LEAST_SIZE = 16.0


def coarser(one: str, other: str) -> str:
    """The type with fewer digits of two; an unknown one counts as bfloat16."""
    return min((one, other), key=lambda dtype: _FRACTION_BITS.get(dtype, 7)) or "bfloat16"


def near_tie(dtype: str, size: float = LEAST_SIZE) -> float:
    """The largest distance of two logits of ``size`` that counts as a tie."""
    bits = _FRACTION_BITS.get(dtype, 7)
    step = 2.0 ** (math.floor(math.log2(max(abs(size), LEAST_SIZE))) - bits)
    return STEPS * step * (FLOAT32_SUMS if dtype == "float32" else 1.0)


def score_distance(dtype: str, depth: int) -> float:
    """The largest distance of two path scores (nats) that counts as a tie: one near tie per level of the path."""
    return near_tie(dtype) * max(1, depth)
