"""What each figure of the bench means, in words that are printed with the figures."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "tok_per_s": (
        "server: completion tokens of all finished requests of a round / wall seconds from the first byte sent to the "
        "last byte received, the tail of the closed loop included; median over rounds"
    ),
    "tok_per_s_per_request": (
        "completion tokens of a request / seconds from sending it to its last byte; median over prompts"
    ),
    "tokens_per_verify": (
        "completion_tokens / spec_verify_ct, both summed over the requests (SGLang's spec_accept_length): accepted "
        "drafts plus the bonus token; from per-request counts, not from the server's running average. The token of the "
        "prefill counts, and what a step found beyond max_tokens does not"
    ),
    "accepted_drafts": (
        "spec_num_correct_drafts / spec_verify_ct, both summed over the requests: accepted drafts per verify step, "
        "without the bonus token"
    ),
    "ttft_ms": "from sending a request to the first chunk that holds a token: queue and prefill included",
    "tpot_ms": (
        "time per output token: (last chunk - first chunk) / (completion tokens - tokens of the first chunk), per "
        "request"
    ),
    "step_ms": (
        "(last chunk - first chunk) / verify steps, per request, as a client sees it; without speculation a step gives "
        "one token"
    ),
    "interval": (
        "95 % bootstrap interval: rounds are drawn anew within starts that are drawn anew; for figures per request and "
        "per verify step, prompts are drawn anew"
    ),
    "speedup_vs_ar": "tok_per_s / tok_per_s of plain decoding at the same regime, concurrency and temperature",
    "speedup_vs_dflash": "the same against DFLASH without a tree",
    "cold": "the prefix cache is emptied before each round and no request may use another one's prefix",
    "failed": (
        "requests without a finished answer: counted, listed with the reason, never sent again, and in no rate; an "
        "answer of zero tokens is empty, silence since the last byte for too long is timed out"
    ),
}

NAMES: dict[str, str] = {
    "tok_per_s": "tokens/s (server)",
    "tok_per_s_per_request": "tokens/s (request)",
    "tokens_per_verify": "tokens per verify step (bonus included)",
    "accepted_drafts": "accepted drafts per verify step (bonus not included)",
    "ttft_ms": "time to first token, ms",
    "tpot_ms": "time per output token, ms",
    "step_ms": "time per verify step, ms",
    "speedup_vs_ar": "speed-up against plain decoding",
    "speedup_vs_dflash": "speed-up against DFLASH",
}


def definitions(*names: str) -> dict[str, str]:
    """The definitions of ``names``, or all of them; raises ``KeyError`` for a figure without one."""
    return {name: DEFINITIONS[name] for name in names or DEFINITIONS}
