#!/usr/bin/env python3
"""Greedy answers from a CPU server, and their comparison.

    check.py ask  URL OUT.json [--tokens 24] [--times 2] [--gaps]  send the four prompts, so many times
    check.py hf   MODEL_DIR OUT.json [--tokens 24]                 the same through transformers (float32)
    check.py same A.json B.json [--near 0.01]                      exit 1 unless B's answers equal A's

--gaps also records, per token, the distance in nats between the two most likely tokens; take it with the
plain server. --near accepts a first difference where A's gap is at most that: bfloat16 and another batch
shape can swap near ties.
"""

import argparse
import json
import pathlib
import sys
import time
import urllib.request

PROMPTS = ["hello world", "abc", "The quick brown fox jumps", "zzzz 12345"]


def load(path):
    return json.loads(pathlib.Path(path).read_text())


def ask(url, tokens, times, gaps):
    body = {"text": PROMPTS, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
    if gaps:
        body.update(return_logprob=True, top_logprobs_num=2)
    rounds = []
    for _ in range(times):
        request = urllib.request.Request(
            url.rstrip("/") + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        start = time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as reply:
            answers = json.load(reply)
        metas = [a["meta_info"] for a in answers]
        print(
            f"{time.monotonic() - start:.1f} s (accept length, cached tokens):",
            [(m.get("spec_accept_length"), m["cached_tokens"]) for m in metas],
        )
        rounds.append(
            [
                {
                    "ids": a["output_ids"],
                    "gaps": [t[0][0] - t[1][0] for t in m["output_top_logprobs"]] if gaps else None,
                }
                for a, m in zip(answers, metas, strict=False)
            ]
        )
    return rounds


def hf(model_dir, tokens):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))
    import cpu_stubs  # noqa: F401  before transformers, which imports torchvision
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        answers.append({"ids": out[0, ids.shape[1] :].tolist(), "gaps": None})
    return [answers]


def same(a, b, near):
    """Compare every round of b with every round of a."""
    bad = close = total = 0
    for left_round in a:
        for right_round in b:
            for prompt, left, right in zip(PROMPTS, left_round, right_round, strict=True):
                total += 1
                x, y = left["ids"], right["ids"]
                if x == y:
                    continue
                first = next((n for n, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
                gap = left["gaps"][first] if left["gaps"] and first < len(left["gaps"]) else None
                tie = near is not None and gap is not None and gap <= near
                close, bad = close + tie, bad + (not tie)
                print(f"{prompt!r}: first difference at token {first}, gap {gap}{' (near tie)' if tie else ''}")
    print(f"{total} comparisons: {total - bad - close} equal, {close} differ at a near tie, {bad} differ")
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ask", "hf", "same"])
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--near", type=float)
    args = parser.parse_args()
    if args.what == "same":
        sys.exit(same(load(args.first), load(args.second), args.near))
    result = ask(args.first, args.tokens, args.times, args.gaps) if args.what == "ask" else hf(args.first, args.tokens)
    pathlib.Path(args.second).write_text(json.dumps(result))
