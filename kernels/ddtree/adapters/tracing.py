"""Optional round-by-round traces: ``DDTREE_TRACE=FILE`` writes at most ``DDTREE_TRACE_ROUNDS`` rounds (default 200).

Tracing copies tensors to the host and so synchronises; it is off by default and then costs one comparison per step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..tree.trace import TraceHeader, TraceRound, float_bits, score_strings, to_line

if TYPE_CHECKING:
    from ..build.accept import Accepted
    from ..build.torch_builder import TreeBatch

ENV_FILE = "DDTREE_TRACE"
ENV_ROUNDS = "DDTREE_TRACE_ROUNDS"


class Tracer:
    """Writes the rounds of one process to one file."""

    def __init__(self, path: Path, header: TraceHeader, rounds: int) -> None:
        self._path = path
        self._left = rounds
        self._round = 0
        path.write_text(to_line(header) + "\n", "utf-8")

    def record(
        self,
        reqs: list[Any],
        seq_lens: torch.Tensor,
        ids: torch.Tensor,
        log_probs: torch.Tensor,
        tree: TreeBatch,
        target: torch.Tensor,
        accepted: Accepted,
    ) -> bool:
        """Append one round per request; returns whether more rounds are wanted."""
        lines = []
        for b, req in enumerate(reqs[: self._left]):
            size = int(tree.valid[b].sum())
            accept_len = int(accepted.accept_len[b])
            lines.append(
                to_line(
                    TraceRound(
                        req=str(getattr(req, "rid", b)),
                        round=self._round,
                        start=int(seq_lens[b]),
                        bonus_in=int(tree.draft_token[b, 0]),
                        ids=ids[b].tolist(),
                        lp_bits=[[float_bits(value) for value in row] for row in log_probs[b].tolist()],
                        token=tree.draft_token[b, :size].tolist(),
                        parent=tree.parent[b, :size].tolist(),
                        depth=tree.depth[b, :size].tolist(),
                        rank=tree.rank[b, :size].tolist(),
                        score_q32=score_strings(tree.score[b, :size].tolist()),
                        target=target[b, :size].tolist(),
                        accepted=accepted.path[b, : accept_len + 1].tolist(),
                        emitted=accepted.out_tokens[b, : accept_len + 1].tolist(),
                        bonus_out=int(accepted.bonus[b]),
                    )
                )
            )
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
        self._round += 1
        self._left -= len(lines)
        return self._left > 0


def tracer_from_environment(header: TraceHeader) -> Tracer | None:
    """Return a tracer when the environment asks for one."""
    path = os.environ.get(ENV_FILE)
    if not path:
        return None
    return Tracer(Path(path), header, int(os.environ.get(ENV_ROUNDS, "200")))
