"""A whole bench in small: each arm is a scripted server, everything else is the real thing."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ddtree_ops.bench import load
from ddtree_ops.bench.intervals import Warmup
from ddtree_ops.bench.records import Prompt
from ddtree_ops.bench.results import Manifest, Plan, RoundRow, Summary, summarise
from ddtree_ops.bench.summarise import rate
from tests.bench.links import DirectLink
from tests.bench.rows import manifest
from tests.bench.scripted import Script, Server

#: Bounds that a test machine with two busy cores can keep; the rules themselves are tested with exact numbers.
PLAN = manifest(max_tokens=12, agree=0.95, warmup_most=4, repeat=2, silence_s=5.0).plan


def prompts(count: int = 4, regime: str = "chat", form: str = "text") -> list[Prompt]:
    found = []
    for index in range(count):
        words = f"{regime} question {index}"
        chat = ({"role": "user", "content": words},) if form == "messages" else ()
        found.append(Prompt(id=f"{regime}/{index}", regime=regime, text=words, messages=chat))
    return found


def target(server: Server) -> dict[str, object]:
    return {"server": {"address": "127.0.0.1", "port": server.port}}


def one_round(server: Server, plan: Plan = PLAN, asked: Sequence[Prompt] | None = None, **more: object) -> RoundRow:
    """One measured round against a server that runs."""
    setting = load.Setting(**{"arm": "ddtree", "budget": 16, "regime": "chat", "concurrency": 2, **more})
    return load.measure(DirectLink(), target(server), setting, asked or prompts(), plan)


def play(
    arms: Mapping[str, Script | Server],
    plan: Plan = PLAN,
    regimes: Sequence[str] = ("chat",),
    asked: Mapping[str, Sequence[Prompt]] | None = None,
    concurrency: int = 2,
) -> tuple[Summary, list[RoundRow]]:
    """Warm up and measure every arm, one start each; the summary and all rows."""
    rows: list[RoundRow] = []
    for arm, script in arms.items():
        with script if isinstance(script, Server) else Server(script) as server:
            for regime in regimes:
                place = {"arm": arm, "budget": 16 if arm == "ddtree" else None, "regime": regime}
                given = (asked or {}).get(regime) or prompts(regime=regime)
                warm = Warmup(plan.agree, plan.warmup_most)
                for number in itertools.count():
                    rows.append(
                        one_round(server, plan, given, **place, kind="warmup", round=number, concurrency=concurrency)
                    )
                    warm.add(rate(rows[-1]))
                    if warm.done:
                        break
                for number in range(plan.repeat):
                    rows.append(one_round(server, plan, given, **place, round=number, concurrency=concurrency))
    return summarise(of_plan(plan), rows), rows


def of_plan(plan: Plan) -> Manifest:
    found = manifest()
    return type(found)(**{**{name: getattr(found, name) for name in found.__struct_fields__}, "plan": plan})
