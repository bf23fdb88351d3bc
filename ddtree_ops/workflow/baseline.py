"""``baseline record``, ``import``, ``curve``, ``trace`` and ``compare``: offline baselines and what they tell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..baseline import send, traces
from ..baseline import show as ui
from ..bench import library, records
from ..bench.records import Prompt
from ..errors import GateFailed, Refused, UsageError
from ..inventory import Host, Service
from ..jsontext import json_bytes
from ..remote.channel import Link
from ..ui.progress import Steps
from .session import facts_of, hosts_of, linked, look, only

if TYPE_CHECKING:
    from ..cli import Context

MOST_BUDGET = 1023
_LOCAL_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Wanted:
    """What the command line of ``baseline record`` says; "" and None leave it to the host's settings."""

    out: Path
    local: bool = False
    python: str = ""
    target: str = ""
    drafter: str = ""
    prompts: Path | None = None
    regime: str = "all"
    count: int = 0
    raw: bool = False
    budget: str = "32"
    mode: str = "tree"
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    dtype: str = "bfloat16"
    device: str = "auto"
    ignore_eos: bool = False


def record(context: Context, wanted: Wanted) -> int:
    """Record an offline run; exit 8 when the control says that the answers are not the target's own."""
    budgets(wanted.budget)
    prompts = _prompts(wanted)
    inventory, host = _host(context, wanted)
    with linked(context, host) as link:
        python = wanted.python or _interpreter(link, host, inventory)
        argv = _arguments(wanted, host)
        with (
            Steps(context.output, host.name) as progress,
            progress.step("baseline", f"Offline decoding of {len(prompts)} prompts ({wanted.mode})"),
            send.replacing(wanted.out) as out,
        ):
            code = send.record(
                link,
                out,
                python=python,
                prompts=send.prompt_lines(prompts, raw=wanted.raw),
                argv=argv,
                env=_environment(host, wanted.local),
                on_event=progress.event,
            )
    found = traces.load(wanted.out)
    summary = {"host": host.name, "out": str(wanted.out), "interpreter": python, **ui.summary(found)}
    if context.output.json:
        context.output.document("baseline record", summary)
    else:
        context.output.note(f"written: {wanted.out}")
        context.output.out.print(ui.recorded(found))
    if code:
        context.output.say("the control failed: answers differ from the target's own beyond near ties", "red")
    return code


def budgets(text: str) -> tuple[int, ...]:
    """``8,16,32`` as numbers.

    Raises:
        UsageError: it is not a list of budgets.
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() and 1 <= int(part) <= MOST_BUDGET for part in parts):
        raise UsageError(
            f"--budget {text}: not budgets of 1 to {MOST_BUDGET} nodes", next_step="for example --budget 8,16,32"
        )
    return tuple(sorted({int(part) for part in parts}))


def _prompts(wanted: Wanted) -> tuple[Prompt, ...]:
    if wanted.prompts is not None:
        found = records.read(wanted.prompts)
        return found[: wanted.count] if wanted.count else found
    regimes = library.REGIMES if wanted.regime == "all" else (wanted.regime,)
    return tuple(one for regime in regimes for one in library.prompts(regime, wanted.count))


def _host(context: Context, wanted: Wanted) -> tuple[Path | None, Host]:
    if wanted.local:
        if not wanted.python:
            raise UsageError(
                "--local needs --python: the interpreter here that has torch and transformers",
                next_step="for example --python /root/ml-env/bin/python",
            )
        return None, Host(name="localhost", transport="local", service=Service())
    inventory, hosts = hosts_of(context)
    return inventory.beside, only(hosts, "baseline record")


def _interpreter(link: Link, host: Host, beside: Path | None) -> str:
    """The service's interpreter: of the deployment, else of the copy that is really imported."""
    facts = facts_of(link, host)
    if facts.deployment is not None:
        return facts.deployment.environment
    survey = look(link, host, beside)
    if not survey.verdict.live or not survey.live.environment:
        raise Refused(
            "it is not clear which interpreter serves",
            where=host.name,
            why=survey.verdict.sentence,
            next_step="name one that has torch and transformers: --python PATH",
            code="no_interpreter",
        )
    return survey.live.environment


def _environment(host: Host, local: bool) -> dict[str, str]:
    """The service's own variables and GPUs; with ``--local`` what this shell says of Python, libraries and GPUs."""
    if local:
        return {name: os.environ[name] for name in _LOCAL_VARIABLES if name in os.environ}
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, host.service.gpus))} if host.service.gpus else {}
    return {**gpus, **host.service.environment}


def _arguments(wanted: Wanted, host: Host) -> list[str]:
    target, drafter = wanted.target or host.service.target_model, wanted.drafter or host.service.drafter
    if not target or (not drafter and wanted.mode != "ar"):
        raise UsageError(
            f"no {'drafter' if target else 'target model'} is named",
            where=host.name,
            next_step="give --target and --drafter, or service.target_model and service.drafter in the inventory",
        )
    flags = {
        "--target": target,
        "--mode": wanted.mode,
        "--budgets": wanted.budget,
        "--max-tokens": wanted.max_tokens,
        "--temperature": wanted.temperature,
        "--seed": wanted.seed,
        "--dtype": wanted.dtype,
        "--device": wanted.device,
    }
    if wanted.mode != "ar":
        flags["--drafter"] = drafter
    found = [text for name, value in flags.items() for text in (name, str(value))]
    return [*found, "--ignore-eos"] if wanted.ignore_eos else found


def curve(context: Context, file: Path, budget: str, method: str, out: Path | None) -> int:
    """Tokens per verify step against the budget, of one recording."""
    from ..baseline import curve as curves

    found = curves.offline(traces.load(file), budgets(budget) if budget else (), method=method)
    body: dict[str, Any] = msgspec.to_builtins(found)
    if out is not None:
        with send.replacing(out) as target:
            target.write(json_bytes(body, indent=2).decode("utf-8"))
        context.output.note(f"written: {out}")
    if context.output.json:
        context.output.document("baseline curve", body)
    else:
        context.output.out.print(ui.curve(found))
    return 0


def trace(context: Context, path: str, out: Path) -> int:
    """Fetch the trace that a server wrote on a host."""
    _, hosts = hosts_of(context)
    host = only(hosts, "baseline trace")
    with linked(context, host) as link, send.replacing(out) as target:
        got = send.fetch_trace(link, path, target)
    found = {"host": host.name, "path": path, "out": str(out), **got, **ui.summary(traces.load(out))}
    if context.output.json:
        context.output.document("baseline trace", found)
    else:
        context.output.note(f"written: {out} ({got['size'] - got['skipped']} of {got['size']} bytes)")
    return 0


def import_results(context: Context, file: Path, out: Path | None) -> int:
    """Read a result file of another implementation."""
    from ..baseline import imports

    found = imports.read(file)
    written = imports.write(found, out) if out is not None else ()
    if context.output.json:
        body = {"file": str(file), "written": [str(path) for path in written], **imports.summary(found)}
        context.output.document("baseline import", body)
    else:
        for path in written:
            context.output.note(f"written: {path}")
        context.output.out.print(ui.imported(imports.summary(found)))
    return 0


def compare(context: Context, a: Path, b: Path) -> int:
    """Two traces, level by level; exit 8 when something differs beyond near ties, or nothing could be compared."""
    from ..baseline import compare as comparing

    left, right = traces.load(a), traces.load(b)
    found = comparing.compare(left, right)
    if context.output.json:
        body: Mapping[str, Any] = {**msgspec.to_builtins(found), "ok": found.ok}
        context.output.document("compare", body)
    else:
        context.output.out.print(ui.comparison(found))
        pair = ui.side_by_side(found, left, right)
        if pair is not None:
            context.output.out.print(pair)
        context.output.out.print(ui.verdict(found))
    return 0 if found.ok else GateFailed.exit_code
