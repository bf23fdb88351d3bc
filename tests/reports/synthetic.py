"""Result folders for the tests of the reports: made up, not measured, but true to the schema.

Rounds are simulated from a small law (tokens per verify step by budget, time per step by width x batch) with seeded
noise, written through :mod:`ddtree_ops.bench.results`, and summarised by the program's own code: what the reports read
is what a bench leaves. The draft tree is a real one, built by the payload's heap from made-up probabilities.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from ddtree_ops.bench import intervals, results
from ddtree_ops.bench.definitions import DEFINITIONS
from ddtree_ops.bench.schema import Offline, OfflinePoint
from ddtree_ops.jsontext import json_bytes
from tests.kernels.payload import heap, trace, walk

REGIMES = ("chat", "code", "math")
WORDS = (" the", " of", "\n", "def", " return", " x", " =", " (", ")", ":", " result", " in", " range", " 0", " a", ",")
HOSTILE = "</script><svg onload=alert(1)><img src=x onerror=alert(2)>"


def law(budget: int | None, regime: str) -> float:
    """Tokens per verify step."""
    base = {"chat": 2.1, "code": 3.0}.get(regime, 2.6)
    return base if budget is None else base * (1 + 0.16 * math.log2(1 + budget / 6))


def step_ms(width: int, batch: int) -> float:
    """Milliseconds of a step: free width until the batch fills the machine."""
    return 3.2 + 0.004 * max(0, width * batch - 40)


class Maker:
    """Writes a folder; every argument has a default that makes the ordinary case."""

    def __init__(
        self,
        *,
        budgets: Sequence[Any] = (8, 16, 32, 64, 128),
        concurrency: Sequence[int] = (1, 4, 8, 16),
        regimes: Sequence[str] = REGIMES,
        arms: Sequence[str] = ("ar", "dflash", "ddtree"),
        target: str = "/models/Example-8B-Instruct",
        gpu: str = "Example GPU 80GB",
        words: Sequence[str] = WORDS,
        slow: float = 1.0,
        seed: int = 1,
    ) -> None:
        self.random = random.Random(seed)
        self.budgets, self.concurrency, self.regimes, self.arms = budgets, concurrency, regimes, arms
        self.target, self.gpu, self.slow, self.words = target, gpu, slow, words

    def manifest(self) -> results.Manifest:
        """Conditions and plan of the made-up run."""
        draft = self.target + "-DFlash-b16"
        args = {
            arm: {
                "model_path": self.target,
                "attention_backend": "triton",
                "speculative_algorithm": None if arm == "ar" else arm.upper(),
                "speculative_num_draft_tokens": {"ar": None, "dflash": 16}.get(arm, 129),
            }
            for arm in self.arms
        }
        return results.Manifest(
            created="2026-11-30T18:00:00Z",
            tool_version="0.1.0",
            host="synthetic",
            unit="sglang-ddtree.service",
            build_id="5f1c0e9a77b2d4c8",
            command=("ddtree-ops", "bench", "--host", "synthetic", "--budget", ",".join(map(str, self.budgets))),
            conditions=results.Conditions(
                gpu=(self.gpu,),
                driver="580.00",
                sglang="0.5.17",
                torch="2.11.0",
                dtype="bfloat16",
                models={
                    "target": results.ModelOf(path=self.target, sha256="ab" * 32),
                    "draft": results.ModelOf(path=draft),
                },
                effective_args=args,
            ),
            plan=results.Plan(
                arms=tuple(self.arms),
                budgets=tuple(self.budgets),
                concurrency=tuple(self.concurrency),
                regimes=tuple(self.regimes),
                prompts=32,
                prompts_sha256="cd" * 32,
            ),
            definitions=DEFINITIONS,
        )

    def write(self, path: Path, *, spoil: bool = True) -> results.Folder:
        """The whole folder; ``spoil``: one cell was served from a warm prefix cache, one request failed."""
        folder = results.create(path, self.manifest())
        rows = [results.judged(row, folder.manifest.plan) for row in self.rows(spoil)]
        folder.write("rows.jsonl", b"".join(json_bytes(row) + b"\n" for row in rows))
        with mock.patch.object(intervals, "RESAMPLES", 60):  # intervals as wide, in a tenth of the time
            folder.save("summary", results.summarise(folder.manifest, rows))
        folder.save("acceptance", self.timed(results.acceptance(rows)))
        folder.save("costs", self.costs())
        folder.save("identity", self.identity())
        folder.save("gates", self.gates())
        folder.save("auto", self.auto())
        folder.save("offline", self.offline())
        folder.write("traces/ddtree.jsonl", "".join(line + "\n" for line in self.trace_lines()).encode())
        return folder

    # -- rounds --

    def rows(self, spoil: bool) -> list[results.RoundRow]:
        """Two warm-up rounds and two measured ones in each of two starts."""
        found = []
        settings = [(arm, budget) for arm in self.arms for budget in (self.budgets if arm == "ddtree" else (None,))]
        for start in (1, 2):
            for concurrency in self.concurrency:
                for arm, budget in settings:
                    for regime in self.regimes:
                        warm = spoil and (arm, budget, regime, concurrency) == ("ddtree", 64, "code", 4)
                        broken = spoil and (arm, budget, regime, concurrency, start) == (
                            "dflash",
                            None,
                            self.regimes[-1],
                            self.concurrency[-1],
                            2,
                        )
                        for index, kind in enumerate(("warmup", "warmup", "measured", "measured")):
                            found.append(self.row(arm, budget, regime, concurrency, start, index, kind, warm, broken))
        return found

    def row(
        self,
        arm: Any,
        budget: Any,
        regime: str,
        concurrency: int,
        start: int,
        index: int,
        kind: Any,
        warm: bool,
        broken: bool,
    ) -> results.RoundRow:
        """One round of eight requests of 128 tokens."""
        size = 32 if budget == "auto" else budget
        accept = 1.0 if arm == "ar" else law(size, regime)
        width = {"ar": 1, "dflash": 16}.get(arm, (size or 0) + 1)
        noise = 1 + (0.004 if kind == "warmup" else 0.012) * self.random.uniform(-1, 1)
        step = (1.5 + 0.05 * concurrency if arm == "ar" else step_ms(width, concurrency)) * noise * self.slow / 1000
        requests = []
        for number in range(8):
            steps = max(1, round(128 / (accept * (0.94 + 0.017 * number))))
            total = 0.02 + step * (127 if arm == "ar" else steps)
            failed = broken and number == 3 and kind == "measured"
            requests.append(
                results.Request(
                    index=number,
                    id=f"{regime}/{number + 1}",
                    ok=not failed,
                    outcome="timeout" if failed else "ok",
                    error=f"no byte for 120 s from {self.target}" if failed else None,
                    tokens=0 if failed else 128,
                    total_s=total,
                    ttft_s=0.02 * self.random.uniform(0.9, 1.4),
                    first_tokens=1,
                    prompt_tokens=60,
                    cached_tokens=30 if warm else 0,
                    verify_ct=None if arm == "ar" else steps,
                    accepted_drafts=None if arm == "ar" else max(0, 127 - steps),
                    finish="length",
                )
            )
        seconds = sum(one.total_s or 0.0 for one in requests) / concurrency
        return results.RoundRow(
            arm=arm,
            budget=budget,
            start=start,
            round=index,
            kind=kind,
            regime=regime,
            concurrency=concurrency,
            seconds=seconds,
            flushed=True,
            requests=tuple(requests),
            counters_delta=self.counters(size, regime, width) if arm == "ddtree" else None,
        )

    def counters(self, budget: int, regime: str, width: int) -> dict[str, Any]:
        """What the payload would have counted."""
        go = 1 - 1 / law(budget, regime)
        lengths = [round(4000 * go**depth * (1 - go)) for depth in range(16)]
        return {
            "verify_steps": 400,
            "requests": sum(lengths),
            "accept_length_histogram": lengths,
            "accepted_rank_histogram": [1504, 386, 145, 88, 57, 33, 17, 67],
            "first_miss_rank": [0, *(round(900 / (rank + 2)) for rank in range(1, 32))],
            "first_miss_outside": 410,
            "full_paths": 3,
            "nodes_built": sum(lengths) * budget,
            "nodes_padded": 12,
            "steps_by_width": {str(width): 400},
            "steps_by_reason": {"fixed": 400},
            "chain_steps": 0,
        }

    def timed(self, found: results.Acceptance) -> results.Acceptance:
        """With a time split."""
        cells = tuple(
            msgspec.structs.replace(
                one,
                clock="gpu",
                time_us={
                    "draft": 620.0,
                    "build": 95.0 + size / 4,
                    "verify": 1000 * step_ms(size + 1, one.concurrency) - 1100.0,
                    "commit": 210.0,
                },
            )
            for one in found.cells
            for size in (one.budget if isinstance(one.budget, int) else 32,)
        )
        return results.Acceptance(cells=cells)

    # -- the other files --

    def costs(self) -> tuple[results.Cost, ...]:
        """A flat start, a cliff, a slope."""
        return tuple(
            results.Cost(batch=batch, width=width, verify_us=1000 * step_ms(width, batch) - 1100)
            for batch in self.concurrency
            for width in (9, 17, 33, 49, 65, 129)
        )

    def offline(self) -> Offline:
        """A little above what the server accepts."""
        points = [
            OfflinePoint(
                budget=budget, regime=regime, tokens_per_verify=round(1.02 * law(budget, regime), 3), rounds=4000
            )
            for regime in self.regimes
            for budget in (None, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 512, 1023)
        ]
        return Offline(points=tuple(points), source="exact walks, 32 prompts, transformers")

    def identity(self) -> results.IdentityReport:
        """A floor with near ties, and one arm."""
        tie = results.Comparison(
            id="chat/7", outcome="near_tie", compared=41, index=40, gap=0.125, plain=318, ours=262, top2=0.125
        )
        floor = results.IdentityPair(
            arm="ar",
            concurrency=8,
            counts={"equal": 30, "near_tie": 2},
            tokens=4010,
            comparisons=(tie,),
            text="2 near ties",
        )
        pair = results.IdentityPair(
            arm="ddtree", budget=32, concurrency=1, counts={"equal": 29, "near_tie": 3}, tokens=3980, comparisons=(tie,)
        )
        return results.IdentityReport(
            dtype="bfloat16",
            near_tie=0.25,
            rule="a first difference is allowed at a near tie (0.25 nats)",
            floor=floor,
            pairs=(pair,),
        )

    def gates(self) -> results.Gates:
        """One that holds and one that does not."""
        return results.Gates(
            passed=False,
            file="gates.yaml",
            gates=(
                results.Gate(
                    name="identity",
                    passed=True,
                    wanted="differences only at near ties",
                    found="3 near ties of 32 answers",
                ),
                results.Gate(
                    name="no_regime_below_dflash",
                    passed=False,
                    wanted="1.00× or more",
                    found="0.93×",
                    where="chat, concurrency 16, budget 128",
                ),
            ),
        )

    def auto(self) -> results.Auto:
        """Predictions for two concurrencies, the best two of each measured."""
        found = []
        for concurrency in self.concurrency[:2]:
            for budget in (8, 16, 32, 64, 128):
                speed = 1000 * concurrency * law(budget, "chat") / step_ms(budget + 1, concurrency)
                measured = speed * self.random.uniform(0.94, 1.02) if budget in (64, 128) else None
                found.append(
                    results.Prediction(
                        budget=budget,
                        concurrency=concurrency,
                        regime="chat",
                        tokens_per_verify=law(budget, "chat"),
                        step_us=1000 * step_ms(budget + 1, concurrency),
                        tok_per_s=speed,
                        measured_tok_per_s=measured,
                        measured_tokens_per_verify=law(budget, "chat") if measured else None,
                    )
                )
        recommended = {str(one): 128 if one == 1 else 64 for one in self.concurrency[:2]}
        return results.Auto(recommended=recommended, predictions=tuple(found), text=("made up",))

    def trace_lines(self, rounds: int = 6, budget: int = 32) -> list[str]:
        """``ddtree-trace/1``: real trees over made-up candidates, with the tokens' texts in ``extra``."""
        head = trace.TraceHeader(
            model="synthetic", draft="synthetic", engine="tests", version="1", block_size=16, budget=budget
        )
        return [trace.to_line(head), *(trace.to_line(self.round(number, budget)) for number in range(rounds))]

    def round(self, number: int, budget: int) -> Any:
        """One verify round."""
        depth, ranks = 15, 8
        ids = [[(at * 7 + rank * 3 + number) % len(WORDS) for rank in range(ranks)] for at in range(depth)]
        rows = []
        for at in range(depth):
            weights = [math.exp(-(0.9 + 0.02 * at) * rank + self.random.uniform(-0.5, 0.5)) for rank in range(ranks)]
            rows.append(sorted((math.log(one / sum(weights)) for one in weights), reverse=True))
        tree = heap.build_tree(1, ids, rows, budget)
        wanted = [self.random.choices(range(ranks), [8, 3, 2, 1, 1, 1, 1, 1])[0] for _ in range(depth)]
        target = [
            ids[tree.depth[node]][wanted[tree.depth[node]]] if tree.depth[node] < depth else 2
            for node in range(len(tree.token))
        ]
        path, bonus = walk.accept(tree, target)
        return trace.TraceRound(
            req="request-1",
            round=number,
            start=100 + number,
            bonus_in=1,
            ids=ids,
            lp_bits=[[trace.float_bits(one) for one in row] for row in rows],
            token=list(tree.token),
            parent=list(tree.parent),
            depth=list(tree.depth),
            rank=list(tree.rank),
            score_q32=[str(one) for one in tree.score],
            target=target,
            accepted=list(path),
            emitted=[*(tree.token[node] for node in path[1:]), bonus],
            bonus_out=bonus,
            extra={
                "texts": [self.words[token % len(self.words)] for token in tree.token],
                "bonus_text": self.words[bonus % len(self.words)],
            },
        )
