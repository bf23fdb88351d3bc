"""Optional round-by-round traces (``ddtree-trace/1``), for the comparison with an offline decoder.

``DDTREE_TRACE=FILE``           where; a relative path is inside ``DDTREE_RUN_DIR``
``DDTREE_TRACE_ROUNDS=200``     at most so many rounds of this process, 0 for no end
``DDTREE_TRACE_EVERY=1``        every n-th request, whole: a comparison needs all rounds of a request
``DDTREE_TRACE_BYTES=33554432`` a file that reaches this size becomes ``FILE.1`` (the one before it is dropped)

Tracing copies tensors to the host and so synchronises; it is off by default and then costs one comparison per step.
A file that cannot be written ends the tracing, never the server. Of a tensor-parallel group the first rank writes.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..tree.trace import (
    Record,
    TraceHeader,
    TraceRequest,
    TraceRound,
    float_bits,
    prompt_digest,
    score_strings,
    to_line,
)
from .request_state import stop_tokens

if TYPE_CHECKING:
    from ..build.accept import Accepted
    from ..build.torch_builder import TreeBatch
    from .draft_tail import DraftTail

logger = logging.getLogger(__name__)

ENV_FILE = "DDTREE_TRACE"
ENV_ROUNDS = "DDTREE_TRACE_ROUNDS"
ENV_EVERY = "DDTREE_TRACE_EVERY"
ENV_BYTES = "DDTREE_TRACE_BYTES"
ENV_RUN_DIR = "DDTREE_RUN_DIR"
DEFAULT_ROUNDS = 200
DEFAULT_BYTES = 32 << 20
_REMEMBERED = 4096  # requests whose round counters are kept


@dataclass
class _Request:
    """What is known of a request that was seen: whether it is traced, and its next round."""

    traced: bool
    announced: TraceRequest
    round: int = 0


class Tracer:
    """Writes the rounds of one process to one file; see the module for the bounds."""

    def __init__(
        self, path: Path, header: TraceHeader, rounds: int = 0, every: int = 1, most_bytes: int = DEFAULT_BYTES
    ) -> None:
        self.path, self._header = path, header
        self._left = rounds if rounds > 0 else None
        self._every, self._most_bytes = max(1, every), most_bytes
        self._requests: OrderedDict[str, _Request] = OrderedDict()
        self._seen = 0
        self._size = 0
        self._start()

    def record(
        self,
        reqs: list[Any],
        seq_lens: torch.Tensor,
        ids: torch.Tensor,
        log_probs: torch.Tensor,
        tree: TreeBatch,
        target: torch.Tensor,
        accepted: Accepted,
        logits: torch.Tensor | None = None,
        tail: DraftTail | None = None,
    ) -> bool:
        """Append one round per traced request; returns whether more rounds are wanted.

        ``logits`` ``[bs * N, V]`` give the distance of the target's two best tokens at every node; ``tail`` knows the
        shape that the trees were built with.
        """
        records: list[Record] = []
        best = None if logits is None else logits.view(len(reqs), -1, logits.shape[-1])
        for b, req in enumerate(reqs):
            if self._left == 0:
                break
            rid = str(getattr(req, "rid", b))
            known = self._known(rid, req, records)
            if not known.traced or _is_over(tail, b, int(seq_lens[b])):
                continue
            size = int(tree.valid[b].sum())
            steps = int(accepted.accept_len[b]) + 1
            extra = {"temperature": _temperature(req), **_shape(tail, b, int(seq_lens[b]), ids.shape[1])}
            if _adjusted(req):
                extra["adjusted"] = True
            if int(accepted.bonus[b]) in stop_tokens(req):
                extra["stopped"] = True
            if best is not None:
                top = best[b, :size].float().topk(2, dim=-1).values
                extra["top"] = [round(value, 6) for value in top[:, 0].tolist()]
                extra["gap"] = [round(value, 6) for value in (top[:, 0] - top[:, 1]).tolist()]
            records.append(
                TraceRound(
                    req=rid,
                    round=known.round,
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
                    accepted=accepted.path[b, :steps].tolist(),
                    emitted=accepted.out_tokens[b, :steps].tolist(),
                    bonus_out=int(accepted.bonus[b]),
                    extra=extra,
                )
            )
            known.round += 1
            if self._left is not None:
                self._left -= 1
        return self._append(records) and self._left != 0

    def _known(self, rid: str, req: Any, records: list[Record]) -> _Request:
        """Look a request up; the first time decide whether it is traced, and write down its prompt."""
        known = self._requests.get(rid)
        if known is None:
            traced = self._seen % self._every == 0
            prompt = list(getattr(req, "origin_input_ids", ())) if traced else []
            announced = TraceRequest(rid, len(prompt), prompt_digest(prompt), _temperature(req))
            known = self._requests[rid] = _Request(traced, announced)
            self._seen += 1
            if len(self._requests) > _REMEMBERED:
                self._requests.popitem(last=False)
            if traced:
                records.append(announced)
        return known

    def _start(self) -> None:
        line = to_line(self._header) + "\n"
        self.path.write_text(line, "utf-8")
        self._size = len(line)

    def _append(self, records: list[Record]) -> bool:
        text = "".join(to_line(record) + "\n" for record in records)
        try:
            if self._size + len(text) > self._most_bytes:
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self._start()
                text = self._announce_again(records) + text
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            logger.warning("DDTREE: the trace ends here: %s", error)
            return False
        self._size += len(text)
        return True

    def _announce_again(self, records: list[Record]) -> str:
        """Return the prompts of requests whose rounds go on in a new file."""
        new = {record.req for record in records if isinstance(record, TraceRequest)}
        going_on = {record.req for record in records if isinstance(record, TraceRound)} - new
        return "".join(to_line(self._requests[rid].announced) + "\n" for rid in sorted(going_on))


def _temperature(req: Any) -> float:
    """The request's temperature, 0 where it is decoded greedily (top_k 1, as SGLang marks it)."""
    params = getattr(req, "sampling_params", None)
    if params is None or getattr(params, "top_k", 1) == 1:
        return 0.0
    return float(getattr(params, "temperature", 0.0))


def _adjusted(req: Any) -> bool:
    """Whether the request changes the target's logits (penalties, bias, grammar): its choices are not the model's."""
    params = getattr(req, "sampling_params", None)
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    return (
        any(getattr(params, name, value) != value for name, value in neutral.items())
        or bool(getattr(params, "logit_bias", None))
        or bool(getattr(req, "custom_logit_processor", None))
        or getattr(req, "grammar", None) is not None
    )


def _is_over(tail: DraftTail | None, b: int, seq_len: int) -> bool:
    """Whether the request has all its tokens already: overlap scheduling runs one more step, which nobody sees."""
    return tail is not None and int(tail.end_lens[b]) <= seq_len


def _shape(tail: DraftTail | None, b: int, seq_len: int, depths: int) -> dict[str, Any]:
    """What the tree of request ``b`` was built with, as the builders compute it."""
    if tail is None:
        return {}
    shape = tail.shape.host
    return {
        "mode": "chain" if shape.is_chain else "tree",
        "budget": min(shape.budget, int(tail.budgets[b])),
        "depth_limit": max(0, min(depths, int(tail.end_lens[b]) - seq_len - 1)),
    }


def tracer_from_environment(header: TraceHeader, rank: int = 0) -> Tracer | None:
    """Return a tracer when the environment asks for one and this is the first rank."""
    name = os.environ.get(ENV_FILE)
    if not name or rank != 0:
        return None
    path = Path(os.environ.get(ENV_RUN_DIR, ".")) / name
    try:
        numbers = [
            int(os.environ.get(variable) or default)
            for variable, default in ((ENV_ROUNDS, DEFAULT_ROUNDS), (ENV_EVERY, 1), (ENV_BYTES, DEFAULT_BYTES))
        ]
        return Tracer(path, header, *numbers)
    except (OSError, ValueError) as error:
        logger.warning("DDTREE: no trace is written to %s: %s", path, error)
        return None
