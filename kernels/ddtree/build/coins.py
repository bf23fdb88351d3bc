"""Coins of seeded requests: noise that depends on a request's seed, a position and a token, and on nothing else.

A token is drawn as the least of independent exponential clocks, ``E(seed, position, token) / weight(token)``. The clock
of a token is ``-log(1 - v)`` with ``v`` uniform in (0, 1), the complement of MurmurHash3 over (seed, position, token):
the hash, and the meaning of a position (that of the last token read), are those of SGLang's deterministic mode. So a
draw does not know in which node of which tree it is made, beside which other requests, or under which budget.

The torch twin of ``triton_coins``; both give the same hash bit for bit, and clocks equal but for the logarithm's
rounding.
"""

from __future__ import annotations

import torch

_LOW = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_ADD = 0xE6546B64
_LAST_V = 1.0 - 2.0**-24  # the largest float32 below 1: no clock is infinite


def clocks(seeds: torch.Tensor, positions: torch.Tensor, vocab: int, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Return the clocks, float32 ``[r, N, V]``, of ``r`` requests at N nodes.

    ``seeds``: ``[r]`` int64; ``positions``: ``[r, N]``; ``ids``: ``[r, N, V]`` int64, which token a column is
    (``None``: column ``j`` is token ``j``).
    """
    if seeds.is_cuda:
        from .triton_coins import clocks_into

        out = torch.empty((*positions.shape, vocab), dtype=torch.float32, device=seeds.device)
        return clocks_into(seeds, positions, ids, out)
    complement = _LOW - hashes(seeds, positions, vocab, ids)
    v = ((complement.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=_LAST_V)
    return -torch.log1p(-v)


def hashes(seeds: torch.Tensor, positions: torch.Tensor, vocab: int, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Return MurmurHash3 (32 bits, of seed, position and token), int64 ``[r, N, V]``; arguments as ``clocks``."""
    token = torch.arange(vocab, dtype=torch.int64, device=seeds.device)
    key = _scramble(token)
    low = _mix(torch.zeros_like(seeds), _scramble(seeds & _LOW))
    state = _mix(low, _scramble((seeds >> 32) & _LOW))
    state = _mix(state[:, None], _scramble(positions.to(torch.int64) & _LOW))
    h = _mix(state[:, :, None], key if ids is None else key[ids]) ^ 16
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _LOW
    h = ((h ^ (h >> 13)) * _C2_FINAL) & _LOW
    return h ^ (h >> 16)


_C2_FINAL = 0xC2B2AE35


def _rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    return ((x << by) | (x >> (32 - by))) & _LOW


def _scramble(key: torch.Tensor) -> torch.Tensor:
    return (_rotate((key * _C1) & _LOW, 15) * _C2) & _LOW  # products wrap around; their low halves are right


def _mix(state: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (_rotate(state ^ key, 13) * 5 + _ADD) & _LOW
