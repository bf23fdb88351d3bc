"""Rounds of load from the controller's side: parameters for the host, and its events turned into one row.

A round whose connection is lost is not lost: the requests that were reported by then become a row with verdict
``invalid`` before the error goes on, and a resumed run measures that round again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ..errors import DdtreeError, Unhealthy
from ..model import Value
from .records import Prompt
from .rules import NOT_EMPTIED, judged
from .schema import Budget, Client, Plan, Request, RoundKind, RoundRow

Document = dict[str, Any]
OnEvent = Callable[[Document], None]

SOAK_REQUESTS = 160
"""A restarted server that hangs after its first hundred requests has been seen; so many must pass once."""
SOAK_TOKENS, SOAK_CONCURRENCY = 8, 8


class Link(Protocol):
    """What is needed of a connection to a host."""

    def call(
        self,
        verb: str,
        params: Document | None = None,
        *,
        timeout: float | None = 600.0,
        on_event: OnEvent | None = None,
    ) -> Document:
        """Run one verb there."""


class Setting(Value, frozen=True, kw_only=True):
    """Which round it is: the place of its row in the plan."""

    arm: str
    regime: str
    concurrency: int
    budget: Budget = None
    start: int = 1
    round: int = 0
    kind: RoundKind = "measured"
    temperature: float = 0.0


Asked = Sequence[Prompt | Mapping[str, Any]]
"""Prompts, or requests as ``load_round`` takes them."""


def parameters(target: Mapping[str, Any], setting: Setting, prompts: Asked, plan: Plan) -> Document:
    """Parameters of the verb ``load_round``.

    Args:
        target: ``{"service": {...}}`` or ``{"server": {"address": ..., "port": ...}}``.
    """
    found: Document = {
        **target,
        "requests": [
            prompt.request(index) if isinstance(prompt, Prompt) else {**prompt, "index": index}
            for index, prompt in enumerate(prompts)
        ],
        "concurrency": setting.concurrency,
        "max_tokens": plan.max_tokens,
        "sampling": {"temperature": setting.temperature},
        "silence": plan.silence_s,
        "flush": plan.cold,
    }
    if plan.cold:
        found["isolate"] = uuid.uuid4().hex
    return found


def measure(
    link: Link,
    target: Mapping[str, Any],
    setting: Setting,
    prompts: Asked,
    plan: Plan,
    *,
    on_event: OnEvent | None = None,
    cut: Callable[[RoundRow], None] | None = None,
    more: Mapping[str, Any] | None = None,
) -> RoundRow:
    """One round on the host, judged by :func:`.rules.judged`.

    Args:
        on_event: Sees every event as it comes (``progress`` once a second, ``request`` per request), for a display.
        cut: Gets the row of a round that did not end (connection, interrupt); the exception then goes on.
        more: Further parameters of ``load_round``, e.g. ``{"logprobs": 4, "stream": False}``.
    """
    finished: list[Document] = []

    def hear(event: Document) -> None:
        if event.get("kind") == "request":
            finished.append(event["row"])
        if on_event is not None:
            on_event(event)

    params = {**parameters(target, setting, prompts, plan), **(more or {})}
    try:
        result = link.call("load_round", params, timeout=None, on_event=hear)
    except BaseException as error:
        if cut is not None and (finished or not isinstance(error, DdtreeError)):
            cut(row_of(setting, finished, {}, why=(_cut_short(error, len(finished), len(prompts)),)))
        raise
    return judged(row_of(setting, finished, result), plan)


def _cut_short(error: BaseException, done: int, total: int) -> str:
    reason = error.what if isinstance(error, DdtreeError) else type(error).__name__
    return f"cut after {done} of {total} requests: {reason}"


def row_of(
    setting: Setting, finished: Sequence[Mapping[str, Any]], result: Mapping[str, Any], why: Sequence[str] = ()
) -> RoundRow:
    """The row of a round from what the host reported, requests in the order of their prompts; not judged yet.

    ``why`` is the reason of a round that was cut.
    """
    requests = sorted((msgspec.convert(dict(one), Request) for one in finished), key=lambda one: one.index)
    client = result.get("client")
    said = str(result.get("flush_error") or "")
    return RoundRow(
        **msgspec.structs.asdict(setting),
        seconds=float(result.get("seconds") or 0.0),
        flushed=bool(result.get("flushed")),
        requests=tuple(requests),
        verdict="invalid" if why else "ok",
        why=tuple(why),
        cut=bool(why),
        notes=(f"{NOT_EMPTIED}: {said}",) if said else (),
        time=float(result.get("time") or 0.0),
        client=msgspec.convert(client, Client) if client else None,
    )


def resolved(link: Link, target: Mapping[str, Any], prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], str]:
    """The prompts with the token ids of this server's tokenizer and chat template, and a note ("" if all is well).

    Ask once and use the ids for every arm: all get the same tokens, and ``/generate`` counts verify steps, which the
    chat endpoint does not tell. A model without a chat template gets raw text, and the note says so.
    """
    asked = [one for one in prompts if not one.input_ids]
    if not asked:
        return tuple(prompts), ""
    try:
        found = _ids(link, target, asked)
        note = ""
    except DdtreeError as error:
        if error.reason != "no_tokenize":
            raise
        asked = [one.raw() for one in asked]
        note = f"no chat template: chats are sent as raw text ({error.what})"
        try:
            found = _ids(link, target, asked)
        except DdtreeError as second:
            if second.reason != "no_tokenize":
                raise
            return tuple(one if one.input_ids else one.raw() for one in prompts), note
    ids = iter(found)
    return tuple(
        one if one.input_ids else msgspec.structs.replace(one, input_ids=tuple(next(ids))) for one in prompts
    ), note


def _ids(link: Link, target: Mapping[str, Any], prompts: Sequence[Prompt]) -> list[list[int]]:
    params = {**target, "prompts": [prompt.request(index) for index, prompt in enumerate(prompts)]}
    found: list[list[int]] = link.call("load_tokens", params, timeout=None)["ids"]
    return found


def soak(link: Link, target: Mapping[str, Any], prompts: Asked, plan: Plan, arm: str = "ddtree") -> RoundRow:
    """More than 150 short requests at once, as a restarted server must answer before it is called good.

    Judge it with :func:`require_answered`.
    """
    many = [prompts[index % len(prompts)] for index in range(SOAK_REQUESTS)]
    short = msgspec.structs.replace(plan, max_tokens=SOAK_TOKENS, cold=False)
    setting = Setting(arm=arm, regime="soak", concurrency=SOAK_CONCURRENCY, kind="warmup")
    return measure(link, target, setting, many, short, more={"ids": False, "itl": False})


def require_answered(row: RoundRow) -> None:
    """Raise :class:`Unhealthy` (exit 9), with its index, when a request was not answered or its stream went silent."""
    bad = [one for one in row.requests if not one.ok]
    if bad:
        raise Unhealthy(
            f"{len(bad)} of {len(row.requests)} requests were not answered; request {bad[0].index}: {bad[0].error}",
            where=f"{row.arm}, concurrency {row.concurrency}",
            why="a healthy /health says nothing about tokens",
            next_step="ddtree-ops logs -n 200",
            code="not_answered",
            details={"requests": [{"index": one.index, "id": one.id, "error": one.error} for one in bad]},
        )
