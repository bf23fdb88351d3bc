#!/usr/bin/env python3
"""Compare running servers on the same prompts: tokens per second and tokens per verify step, arms interleaved.

    measure.py --arm ar=http://127.0.0.1:30000 --arm ddtree-32=http://127.0.0.1:30001 ... \
               --prompts prompts.jsonl --tokenizer TARGET --out result.json [--answers DIR] [--condition gpu=H200 ...]

One request at a time: every prompt goes through all arms before the next one, in an order that is reversed each time,
so that drift of the machine meets every arm alike. Several at a time: whole passes over the prompts, forwards and
backwards through the arms (ABBA). All arms are warmed with the same concurrency before anything is timed.

tok_per_s: completion tokens over wall time, prefill included. tokens_per_verify: completion tokens without the first
of each request (prefill gives it) over verify steps, by the server's own count. tokens_over_verify: the same with the
first tokens. step_ms: wall time over verify steps (plain decoding: over tokens), at one request, prefill included.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any


def post(url: str, body: dict[str, Any], timeout: float = 120.0) -> dict[str, Any]:
    """Send one generate request."""
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def load(path: Path, limit: int, tokenizer: str) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Read prompts ({"prompt", "raw"?} per line) and apply the chat template to those that are not raw."""
    from transformers import AutoTokenizer

    tok = AutoTokenizer.from_pretrained(tokenizer)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()][:limit]
    ids = []
    for row in rows:
        text = row["prompt"]
        if not row.get("raw"):
            message = [{"role": "user", "content": text}]
            text = tok.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        ids.append(tok(text, add_special_tokens=False)["input_ids"])
    return rows, ids


class Run:
    """Settings of a measurement, and what the arms answered."""

    def __init__(self, arms: dict[str, str], prompts: list[list[int]], max_new: int, deadline: float) -> None:
        self.arms, self.prompts, self.max_new, self.deadline = arms, prompts, max_new, deadline
        self.rows: list[dict[str, Any]] = []
        self.answers: dict[str, list[dict[str, Any]]] = {}

    def ask(self, arm: str, number: int, temperature: float, max_new: int | None = None) -> dict[str, Any]:
        """Send one prompt to one arm."""
        sampling = {"temperature": temperature, "max_new_tokens": max_new or self.max_new}
        start = time.perf_counter()
        answer = post(self.arms[arm], {"input_ids": self.prompts[number], "sampling_params": sampling})
        meta = answer["meta_info"]
        return {
            "ids": answer["output_ids"],
            "n": meta["completion_tokens"],
            "sec": round(time.perf_counter() - start, 5),
            "verify": meta.get("spec_verify_ct"),
        }

    def single(self, temperature: float, count: int, arms: list[str]) -> None:
        """One request at a time, arms interleaved prompt by prompt."""
        found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for number in range(count):
            if time.time() > self.deadline:
                print(f"deadline: {number} of {count} prompts at one request", flush=True)
                break
            for arm in arms if number % 2 == 0 else arms[::-1]:
                found[arm].append(self.ask(arm, number, temperature))
        for arm in arms:
            self.keep(arm, 1, temperature, found[arm], sum(item["sec"] for item in found[arm]))

    def many(self, concurrency: int, temperature: float, arms: list[str], passes: int) -> None:
        """Several requests at a time, whole passes in ABBA order."""
        for number in range(passes):
            for arm in arms if number % 2 == 0 else arms[::-1]:
                if time.time() > self.deadline:
                    print("deadline: a pass is left out", arm, concurrency, flush=True)
                    continue
                found, wall = self.batch(arm, concurrency, temperature, len(self.prompts))
                self.keep(arm, concurrency, temperature, found, wall)

    def batch(
        self, arm: str, concurrency: int, temperature: float, count: int, max_new: int | None = None
    ) -> tuple[list[dict[str, Any]], float]:
        """Send prompts with some in flight; returns the answers and the wall time."""
        found: list[dict[str, Any]] = [{}] * count
        waiting, lock = iter(range(count)), threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                found[number] = self.ask(arm, number, temperature, max_new)

        threads = [threading.Thread(target=work) for _ in range(concurrency)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found, time.perf_counter() - start

    def keep(self, arm: str, concurrency: int, temperature: float, found: list[dict[str, Any]], wall: float) -> None:
        """Add a row and print it."""
        tokens = sum(item["n"] for item in found)
        steps = sum(item["verify"] or 0 for item in found)
        row: dict[str, Any] = {
            "arm": arm,
            "concurrency": concurrency,
            "temperature": temperature,
            "prompts": len(found),
            "tokens": tokens,
            "verify_steps": steps,
            "wall_s": round(wall, 4),
            "tok_per_s": round(tokens / wall, 1),
            "tokens_per_verify": round((tokens - len(found)) / steps, 4) if steps else None,
            "tokens_over_verify": round(tokens / steps, 4) if steps else None,
            "requests": [[item["n"], item["verify"], item["sec"]] for item in found],
        }
        if concurrency == 1:
            row["step_ms"] = round(1000 * wall / (steps or tokens), 4)
        self.rows.append(row)
        passes = sum(1 for name in self.answers if name.startswith(f"{arm}-c{concurrency}-t{temperature}-"))
        self.answers[f"{arm}-c{concurrency}-t{temperature}-{passes + 1}"] = found
        print(json.dumps({name: value for name, value in row.items() if name != "requests"}), flush=True)


def main() -> None:
    """Parse arguments, warm, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--arm", action="append", required=True, help="NAME=URL")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--max-new", type=int, default=200)
    parser.add_argument("--wait-for", type=Path, help="start when this file exists (prompts are prepared meanwhile)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after so many seconds")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--answers", type=Path, help="folder for token ids, one file per pass")
    parser.add_argument("--condition", action="append", default=[], help="KEY=VALUE for the result file")
    args = parser.parse_args()
    rows, prompts = load(args.prompts, args.limit, args.tokenizer)
    while args.wait_for is not None and not args.wait_for.exists():
        time.sleep(0.2)
    arms = dict(arm.split("=", 1) for arm in args.arm)
    run = Run(arms, prompts, args.max_new, time.time() + args.seconds)
    levels = [int(level) for level in args.concurrency.split(",")]
    for arm in arms:
        for level in levels:
            run.batch(arm, level, args.temperature, min(len(prompts), 2 * level + 2), 64)
    for level in levels:
        if level == 1:
            run.single(args.temperature, len(prompts), list(arms))
        else:
            run.many(level, args.temperature, list(arms), args.passes)
    document = {
        "schema_version": 1,
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "conditions": dict(condition.split("=", 1) for condition in args.condition),
        "max_new_tokens": args.max_new,
        "rows": run.rows,
    }
    args.out.write_text(json.dumps(document), "utf-8")
    if args.answers is not None:
        args.answers.mkdir(parents=True, exist_ok=True)
        for name, found in run.answers.items():
            (args.answers / f"{name}.json").write_text(json.dumps({"rows": rows, "res": found}), "utf-8")


if __name__ == "__main__":
    main()
