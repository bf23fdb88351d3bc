"""The smoke form of the bench: what is asked of the host, and what its rows mean. Pure.

``request`` and ``greedy_request`` make parameters for the host program (``bench_smoke``, ``greedy_record``);
``evaluate`` turns its raw result into a report; ``require`` raises when the report does not hold. The full bench (arms,
gates, traces) is to use the same rows, :mod:`.stats` and :mod:`.identity`; here there is one arm, and its control is
the recorded baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import GateFailed
from . import identity, library, stats

SCHEMA = "ddtree-bench-smoke/1"
MAX_TOKENS = 48
COUNT = 6
COLD_LIMIT = 0.01  # cached part of the prompts in a run that is declared cold

Document = dict[str, Any]


def request(
    service: Mapping[str, Any],
    *,
    max_tokens: int = MAX_TOKENS,
    prompts: int = COUNT,
    regime: str = "all",
    own: Sequence[Mapping[str, str]] | None = None,
    concurrency: int = 1,
    soak: int = 0,
    proof: Mapping[str, Any] | None = None,
) -> Document:
    """Parameters of ``smoke`` and ``bench_smoke``.

    Args:
        prompts: How many bundled prompts of ``regime``; 0 for all. ``own`` prompts replace them.
        soak: Short requests after the measurement, to see that the server goes on answering.
        proof: Parameters of ``attest``: the service must prove itself before anything is measured.
    """
    found: Document = {
        "service": dict(service),
        "prompts": [dict(one) for one in own] if own else library.bundled(regime, prompts),
        "max_tokens": max_tokens,
        "concurrency": concurrency,
        "soak": soak,
    }
    if proof is not None:
        found["identity"] = dict(proof)
    return found


def greedy_request(*, max_tokens: int = MAX_TOKENS, prompts: int = COUNT, regime: str = "all") -> Document:
    """Parameters of ``greedy_record``, less the service: the same prompts as :func:`request` by default."""
    return {"prompts": library.bundled(regime, prompts), "max_tokens": max_tokens}


def evaluate(raw: Mapping[str, Any], baseline: Mapping[str, Any] | None = None, *, dtype: str = "") -> Document:
    """The report of a run: verdict, figures with definitions, identity, conditions.

    ``verdict`` is ``ok``, ``INVALID`` (what was measured must not be quoted) or ``FAILED`` (greedy answers part at a
    wide gap, or requests failed). ``dtype`` is the served type where the server only says ``auto``.
    """
    rows = list(raw.get("requests") or ())
    figures = stats.summary(rows, float(raw.get("seconds") or 0.0))
    compared = _identity(rows, baseline, dtype or _dtype(raw))
    failed = [*_failures(rows, compared), *_hung(raw)]
    invalid = _invalid(raw, rows, figures, baseline, compared)
    return {
        "schema": SCHEMA,
        "verdict": "FAILED" if failed else "INVALID" if invalid else "ok",
        "reasons": [*failed, *invalid],
        "figures": figures,
        "by_regime": stats.by_regime(rows),
        "definitions": stats.DEFINITIONS,
        "identity": compared.as_dict() if compared else None,
        "identity_note": "" if compared else NO_BASELINE,
        "soak": raw.get("soak"),
        "counters": stats.counter_delta(raw.get("counters_before") or {}, raw.get("counters_after") or {}),
        "conditions": _conditions(raw, dtype or _dtype(raw)),
        "requests": [{key: value for key, value in row.items() if key != "top"} for row in rows],
    }


NO_BASELINE = (
    "no answers without speculation were recorded: `deploy --baseline`, or a takeover of a server with the same target"
)


def require(report: Mapping[str, Any]) -> None:
    """Raise :class:`GateFailed` (exit 8) unless the report's verdict is ``ok``."""
    if report["verdict"] == "ok":
        return
    what = "the measurement is INVALID" if report["verdict"] == "INVALID" else "the bench failed"
    raise GateFailed(
        f"{what}: {report['reasons'][0]}",
        where="smoke bench",
        why="; ".join(report["reasons"][1:]),
        next_step="ddtree-ops bench --json has every request; ddtree-ops logs has the server's side",
        code="invalid" if report["verdict"] == "INVALID" else "gate_failed",
        details={"report": dict(report)},
    )


def _identity(
    rows: Sequence[Mapping[str, Any]], baseline: Mapping[str, Any] | None, dtype: str
) -> identity.Identity | None:
    if not baseline or not baseline.get("answers"):
        return None
    return identity.compare(baseline, rows, dtype=dtype)


def _failures(rows: Sequence[Mapping[str, Any]], compared: identity.Identity | None) -> list[str]:
    found = []
    failed = [row for row in rows if not row.get("ok")]
    if failed:
        found.append(f"{len(failed)} of {len(rows)} requests failed; {failed[0]['id']}: {failed[0].get('error')}")
    for one in compared.comparisons if compared else ():
        if one.outcome == "differs":
            found.append(
                f"{one.id} differs from plain decoding at token {one.index}, where plain's candidates are "
                f"{one.gap:.3g} nats apart: a verify bug is suspected"
            )
    loops = identity.loops_in(compared.comparisons) if compared else []
    if compared and len(loops) > identity.LOOPS_MOST * len(compared.comparisons):
        found.append(identity.repeating(loops))
    return found


def _hung(raw: Mapping[str, Any]) -> list[str]:
    """A server that answered the measured requests and then stopped."""
    soaked = dict(raw.get("soak") or {})
    failed = soaked.get("failed") or []
    if not failed:
        return []
    first = failed[0]
    count = soaked["requests"]
    return [f"{len(failed)} of {count} short requests were not answered; request {first['index']}: {first['error']}"]


def _invalid(
    raw: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Any],
    baseline: Mapping[str, Any] | None,
    compared: identity.Identity | None,
) -> list[str]:
    found = []
    if not stats.finished(rows):
        found.append("no request finished")
    elif figures["tokens_per_verify_step"] is None:
        found.append("speculation inactive: the server counted no verify step (spec_verify_ct = 0)")
    if figures["cached_fraction"] > COLD_LIMIT and raw.get("concurrency") == 1:
        found.append(f"{100 * figures['cached_fraction']:.0f} % of the prompt tokens came from the prefix cache")
    if compared is not None:
        unjudged = compared.count("unjudged")
        if unjudged:
            found.append(f"{unjudged} differences cannot be judged: the baseline has no gap there")
        if not compared.comparisons:
            found.append("the baseline has none of the measured prompts")
    found.extend(_other_target(raw, baseline))
    return found


def _other_target(raw: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> list[str]:
    """A baseline of another target or type proves nothing."""
    if not baseline:
        return []
    ours, plain = dict(raw.get("server") or {}), dict(baseline.get("server") or {})
    return [
        f"the baseline was recorded with {key} {plain[key]}, this server has {ours[key]}"
        for key in ("model_path", "dtype", "quantization", "kv_cache_dtype")
        if key in ours and key in plain and ours[key] != plain[key]
    ]


def _dtype(raw: Mapping[str, Any]) -> str:
    """The served type; ``auto`` is bfloat16 for every checkpoint that is stored so, and is said to be assumed."""
    found = str(dict(raw.get("server") or {}).get("dtype") or "auto")
    return "bfloat16" if found == "auto" else found


def _conditions(raw: Mapping[str, Any], dtype: str) -> Document:
    """What must be equal for two runs to be compared."""
    keys = ("seconds", "concurrency", "max_tokens", "silence", "flush", "flush_failures", "warmup", "settings")
    server = dict(raw.get("server") or {})
    kept = {key: raw.get(key) for key in keys}
    return {
        **kept,
        "budget": raw.get("budget"),
        "captured_budget": raw.get("captured_budget"),
        "sampling": "greedy (temperature 0)",
        "prompts": [row["id"] for row in raw.get("requests") or ()],
        "dtype": dtype,
        "dtype_assumed": server.get("dtype") in (None, "auto"),
        "server": {key: value for key, value in server.items() if key != "internal_states"},
        "proof": {key: dict(raw.get("identity") or {}).get(key) for key in ("ok", "build_id", "main_pid", "started")},
    }
