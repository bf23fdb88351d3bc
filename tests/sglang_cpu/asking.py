"""Questions for a plain and a DDTREE server about what single requests may ask for, and the comparison of answers.

Every question goes to both servers with the same body. The plain server also tells, for each token, how far its best
candidates are apart (penalties and bias included), so that a near tie of the target can be told from a wrong token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sglang_cpu.servers import REPOSITORY, Server

MODELS = REPOSITORY / "tests" / "models"
PROMPTS = [json.loads(line)["text"] for line in (MODELS / "prompts.jsonl").read_text("utf-8").splitlines()][:12]
BATCHES = [PROMPTS[0:1], PROMPTS[1:2], PROMPTS[2:3], PROMPTS[3:4], PROMPTS[4:8], PROMPTS[8:12]]
TOKENS = 48
CONTEXT = 192
"""Longest sequence of the servers: short, so that requests reach it."""
NEAR_TIE = 0.13
"""Log-probabilities as near as this may change places: two steps of bfloat16 for this target's logits (8 to 16)."""
TOP = 5


@dataclass(frozen=True)
class Question:
    """One POST to ``/generate``: texts with a sampling parameter set each, served as one batch."""

    texts: Sequence[str]
    params: Sequence[dict[str, Any]]
    extra: dict[str, Any] = field(default_factory=dict)  # further fields of the body

    def ask(self, server: Server, with_gaps: bool = False) -> list[dict[str, Any]]:
        """Return the answers; ``with_gaps``: log-probabilities of the best tokens come along."""
        sampling = [{"temperature": 0, **params} for params in self.params]
        gaps = {"return_logprob": True, "top_logprobs_num": TOP} if with_gaps else {}
        body = {"text": list(self.texts), "sampling_params": sampling, **gaps, **self.extra}
        status, answers = server.post("/generate", body)
        assert status == 200, answers
        return list(answers)


def differences(plain: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[int, list[str], list[str]]:
    """Return (equal answers, near ties, real differences); ``plain`` was asked ``with_gaps``."""
    equal, near, real = 0, [], []
    for number, (left, right) in enumerate(zip(plain, other, strict=True)):
        first = first_difference(left["output_ids"], right["output_ids"])
        if first is None:
            reasons = [answer["meta_info"]["finish_reason"] for answer in (left, right)]
            same = left["text"] == right["text"] and reasons[0] == reasons[1]
            equal += same
            if not same:
                real.append(f"answer {number}: the same tokens, but {left['text']!r} {reasons[0]} and "
                            f"{right['text']!r} {reasons[1]}")  # fmt: skip
            continue
        gap = _gap(left, right, first)
        line = f"answer {number} at token {first}: {gap if gap is None else round(gap, 4)} apart"
        (near if gap is not None and gap <= NEAR_TIE else real).append(line)
    return equal, near, real


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Return where two token lists part, ``None`` where they are equal."""
    if left == right:
        return None
    both = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(both) if a != b), min(len(left), len(right)))


def _gap(left: dict[str, Any], right: dict[str, Any], first: int) -> float | None:
    """Return how much likelier the plain server found its own token; ``None`` where it says nothing of the other."""
    if first >= len(left["output_ids"]) or first >= len(right["output_ids"]):
        return None
    known = {token: value for value, token, _ in left["meta_info"]["output_top_logprobs"][first]}
    other = known.get(right["output_ids"][first])
    return None if other is None else known[left["output_ids"][first]] - other


def questions(base: Sequence[dict[str, Any]]) -> dict[str, Question]:
    """Return the questions; ``base``: plain greedy answers to ``PROMPTS``, from which stops and prefixes are taken."""
    prompts = PROMPTS
    ids = [answer["output_ids"] for answer in base]
    text = [answer["text"] for answer in base]
    free = {"ignore_eos": True}
    penalties: list[dict[str, Any]] = [
        {"frequency_penalty": 0.6},
        {"presence_penalty": 0.9},
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 0.8},
        {"frequency_penalty": -0.3},
        {"frequency_penalty": 0.4, "presence_penalty": 0.4},
        {},
        {"min_new_tokens": 18, "stop_token_ids": ids[1][2:5]},
    ]
    lengths = (12, 40, 33, 26, 40, 40, 30, 40)
    mixed = [{**free, "max_new_tokens": n, **some} for n, some in zip(lengths, penalties, strict=True)]
    eight = [prompts[n % len(prompts)] for n in range(8)]
    return {
        "lengths": Question(
            prompts[:6], [{**free, "max_new_tokens": n} for n in LENGTHS], {"rid": [f"length-{n}" for n in LENGTHS]}
        ),
        "context end": Question(prompts[:3], [{**free, "max_new_tokens": None}] * 3),
        "stop strings": Question(
            prompts[:4], [{"max_new_tokens": 48, "stop": [some[len(some) // 2 :][:3]]} for some in text[:4]]
        ),
        "stop tokens": Question(
            [prompts[0]] * 6 + [prompts[1]] * 6,
            [{"max_new_tokens": 40, "stop_token_ids": [ids[p][k]]} for p in (0, 1) for k in (1, 3, 6, 10, 15, 21)],
        ),
        "stop just before the end": Question(
            [prompts[p] for p in (0, 1, 2, 3) for _ in range(4)],
            [
                {"max_new_tokens": k + more, "stop_token_ids": [ids[p][k]]}
                for p in (0, 1, 2, 3)
                for k, more in ((3, 2), (6, 3), (11, 2), (16, 4))
            ],
        ),
        "stop ignored": Question(
            prompts[:2], [{**free, "max_new_tokens": 20, "stop_token_ids": [ids[p][5]]} for p in (0, 1)]
        ),
        "penalties": Question(eight, mixed),
        "penalties, the other way round": Question(eight, mixed[::-1]),
        "penalty alone": Question(prompts[2:3], [{**free, "max_new_tokens": 40, "frequency_penalty": 1.2}]),
        "bias": Question(
            prompts[:3],
            [
                {**free, "max_new_tokens": 24, "logit_bias": {str(ids[0][3]): -100.0}},
                {**free, "max_new_tokens": 24, "logit_bias": {str(ids[1][7]): 4.0}, "presence_penalty": 0.5},
                {**free, "max_new_tokens": 24},
            ],
        ),
        "shared prefix": Question(
            [prompts[0] + text[0][:n] for n in (0, 5, 9, 14, 20, 27)], [{**free, "max_new_tokens": 24}] * 6
        ),
        "grammar": Question(
            prompts[:5],
            [
                {"max_new_tokens": 40, "regex": r"\n    def [a-z_]{4,12}\(self\):\n        return [a-z]+\.[a-z]+\n"},
                {"max_new_tokens": 40, "json_schema": json.dumps(SCHEMA)},
                {"max_new_tokens": 24, "ignore_eos": True},
                {"max_new_tokens": 30, "regex": r"[ \n]*(self|result)[a-z_.= ]{0,40}", "frequency_penalty": 0.4},
                {"max_new_tokens": 12, "regex": r"[0-9]{3}"},
            ],
        ),
        "budgets": Question(
            prompts[:4],
            [{**free, "max_new_tokens": 30, "custom_params": {"ddtree": {"budget": n}}} for n in BUDGETS],
            {"rid": [f"budget-{n}" for n in BUDGETS]},
        ),
        "memory pressure": Question(
            prompts, [{**free, "max_new_tokens": 118, **some} for some in ({}, {"frequency_penalty": 0.3}) * 6]
        ),
    }


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"type": "integer", "maximum": 99}},
    "required": ["name", "size"],
}
LENGTHS = (1, 2, 3, 9, 17, 34)
BUDGETS = (1, 3, 8, 16)
