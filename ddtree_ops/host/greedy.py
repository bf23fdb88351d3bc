"""One streamed request to ``/generate``, measured; and greedy answers with top-2 gaps as a baseline.

Everything here reports raw numbers; definitions, verdicts and near ties are the controller's (``ddtree_ops/bench``).
Timeouts are on silence, never on the length of an answer. A request that fails is listed with its reason, not repeated.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Sequence

from .attest import server_info
from .http import Client, HttpTrouble
from .protocol import Emit, HostError
from .runner import Service

TOP = 4  # candidates kept per position: the other server's token is nearly always among them
SILENCE_SECONDS = 120.0

Row = Dict[str, Any]


def prompts_of(params: Dict[str, Any]) -> List[Row]:
    """The prompts of a request: ``id`` and ``text`` (or ``input_ids``) each."""
    found = [dict(item) for item in params.get("prompts") or ()]
    if not found or any("id" not in item or not (item.get("text") or item.get("input_ids")) for item in found):
        raise HostError("bad_params", "prompts must be a list of objects with id and text", exit=1)
    return found


class Sampling:
    """What is asked of the server, the same for every request of a run."""

    def __init__(self, params: Dict[str, Any]) -> None:
        self.max_tokens = int(params.get("max_tokens") or 48)
        self.silence = float(params.get("silence") or SILENCE_SECONDS)

    def body(self, prompt: Row, logprobs: bool) -> Row:
        """The request: greedy, streamed."""
        body: Row = {
            "sampling_params": {"temperature": 0, "max_new_tokens": self.max_tokens},
            "stream": True,
        }
        body.update({key: prompt[key] for key in ("text", "input_ids") if prompt.get(key)})
        if logprobs:
            body.update(return_logprob=True, top_logprobs_num=TOP)
        return body


def ask(client: Client, prompt: Row, sampling: Sampling, logprobs: bool = False) -> Row:
    """Send one request and read its stream. Times are seconds since it was sent; ``ok`` is false for a failed one."""
    row: Row = {"id": prompt["id"], "kind": prompt.get("kind", ""), "ok": False, "error": "", "ids": []}
    started = time.monotonic()
    meta: Row = {}
    chunks = 0
    try:
        for chunk in client.stream("/generate", sampling.body(prompt, logprobs), sampling.silence):
            now = time.monotonic() - started
            meta = dict(chunk.get("meta_info") or meta)
            _collect(row["ids"], chunk.get("output_ids") or [], int(meta.get("completion_tokens") or 0))
            if int(meta.get("completion_tokens") or 0) > 0:
                chunks += 1
                row.setdefault("ttft", round(now, 4))
                row.setdefault("first_tokens", int(meta["completion_tokens"]))
            row["seconds"] = round(now, 4)
    except HttpTrouble as trouble:
        row["error"], row["error_kind"] = trouble.text, trouble.kind
        row["status"] = trouble.status
        row["seconds"] = round(time.monotonic() - started, 4)
        return row
    row.update(numbers(meta), chunks=chunks)
    row["ok"] = row["completion_tokens"] > 0
    if not row["ok"]:
        row["error"] = "the answer is empty"
    if logprobs:
        row["top"] = top_of(meta)
    return row


def _collect(ids: List[int], new: Sequence[int], total: int) -> None:
    """Streams are cumulative by default and incremental with ``--incremental-streaming-output``."""
    if len(new) >= total:
        ids[:] = new
    else:
        ids.extend(new)


def numbers(meta: Row) -> Row:
    """What ``meta_info`` of a finished request tells, under our names; counts of speculation where there are any."""
    finish = meta.get("finish_reason")
    return {
        "prompt_tokens": int(meta.get("prompt_tokens") or 0),
        "completion_tokens": int(meta.get("completion_tokens") or 0),
        "cached_tokens": int(meta.get("cached_tokens") or 0),
        "verify_ct": int(meta.get("spec_verify_ct") or 0),
        "accepted_drafts": _first(meta, "spec_num_correct_drafts", "spec_accepted_drafts"),
        "histogram": _first(meta, "spec_correct_drafts_histogram", "spec_accept_histogram"),
        "server_seconds": meta.get("e2e_latency"),
        "finish": str(finish.get("type") if isinstance(finish, dict) else finish or ""),
    }


def _first(meta: Row, *names: str) -> Any:
    return next((meta[name] for name in names if meta.get(name) is not None), None)


def top_of(meta: Row) -> List[List[List[float]]]:
    """Per position the best candidates as ``[token id, log-probability]``, best first."""
    found: List[List[List[float]]] = []
    for position in meta.get("output_top_logprobs") or ():
        pairs = [[int(entry[1]), float(entry[0])] for entry in position or () if entry and entry[0] is not None]
        found.append(sorted(pairs, key=lambda pair: -pair[1])[:TOP])
    return found


def flush(client: Client, tries: int = 5) -> str:
    """Empty the prefix cache; "" when it was done, else what the server said (it refuses while requests run)."""
    said = ""
    for attempt in range(tries):
        try:
            reply = client.request("POST", "/flush_cache", None, timeout=20.0)
        except HttpTrouble as trouble:
            return trouble.text
        if reply.status == 200:
            return ""
        said = "%d: %s" % (reply.status, reply.text(120))
        if reply.status != 400:
            return said
        time.sleep(0.1 * (attempt + 1))
    return said


def record(params: Dict[str, Any], service: Service, emit: Emit) -> Row:
    """Greedy answers of whatever runs there now, with the gaps between its best candidates where it gives them.

    ``prompts``, ``max_tokens``, ``silence``. A server that refuses log-probabilities is asked without them; ``gaps`` in
    the result then is false, and a later difference cannot be judged.
    """
    prompts, sampling, client = prompts_of(params), Sampling(params), service.client()
    info = server_info(service)
    gaps = True
    flushed: List[str] = []
    answers: List[Row] = []
    for index, prompt in enumerate(prompts):
        emit({"kind": "progress", "step": "baseline", "text": str(prompt["id"]), "done": index, "total": len(prompts)})
        trouble = flush(client)
        if trouble:
            flushed.append(trouble)
        answer = ask(client, prompt, sampling, logprobs=gaps)
        if gaps and not answer["ok"] and answer.get("error_kind") == "status":
            without: Optional[Row] = ask(client, prompt, sampling)
            if without is not None and without["ok"]:
                gaps, answer = False, without
        answers.append(answer)
    failed = [answer for answer in answers if not answer["ok"]]
    if failed:
        raise HostError(
            "baseline_failed",
            "%d of %d baseline requests failed: %s" % (len(failed), len(answers), failed[0]["error"]),
            next="ddtree-ops logs -n 200",
            exit=9,
            details={"answers": [dict(answer, ids=len(answer["ids"])) for answer in failed]},
        )
    return {
        "schema": "ddtree-greedy/1",
        "time": round(time.time(), 1),
        "max_tokens": sampling.max_tokens,
        "gaps": gaps,
        "flush_failures": flushed[:3],
        "server": info,
        "answers": answers,
    }
