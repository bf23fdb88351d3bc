#!/usr/bin/env python3
"""Measure running servers on the same prompts; every pass is appended to a shard, so a cut run goes on where it was.

    measure.py --shard t0.jsonl --target smollm2-135m --start 1 --concurrency 1,4,8,16,32 \
               --arm ar=http://127.0.0.1:30000 --arm dflash=http://127.0.0.1:30001 \
               --arm ddtree-8=http://127.0.0.1:30002,budget=8,run_dir=DIR --arm ddtree-auto=...,budget=auto,... \
               --prompts prompts.jsonl --tokenizer TARGET
    merge.py t0.jsonl t07.jsonl ... --condition gpu="NVIDIA H200" --out 2026-11-30-h200-sglang-0.5.17.json

Arms that name the same server are budgets of it, set through its control file before a pass. A pass sends all prompts
with a number of requests in flight; an odd start runs the arms forwards, an even one backwards (ABBA over two starts),
and every arm is warmed at every concurrency by an untimed pass of its own, whose prompts are the measured ones: kernels
are compiled by then, and the prefix cache is flushed before every pass.

tok_per_s: completion tokens over wall time, prefill included. tokens_per_verify: completion tokens without the first
of each request (prefill gives it) over verify steps, by the server's own count per request. step_ms: wall time over the
steps of one request, that is verify steps x requests in flight / all verify steps, prefill included.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROL_SECONDS = 1.2
"""A server looks at its control file once a second."""


@dataclass(frozen=True)
class Arm:
    """One thing to measure: a server, and for DDTREE the budget it is told."""

    name: str
    url: str
    budget: str | None = None
    run_dir: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read ``NAME=URL[,budget=N|auto|chain][,run_dir=DIR]``."""
        name, _, rest = text.partition("=")
        url, *options = rest.split(",")
        found = dict(option.split("=", 1) for option in options)
        folder = found.pop("run_dir", None)
        budget = found.pop("budget", None)
        if not url or found or (budget is not None and folder is None):
            raise SystemExit(f"--arm {text}: expected NAME=URL[,budget=N|auto|chain,run_dir=DIR]")
        return cls(name, url, budget, None if folder is None else Path(folder))

    def select(self) -> None:
        """Tell the server this arm's budget, and wait until it has read it."""
        if self.budget is None or self.run_dir is None:
            return
        wanted: dict[str, Any] = {"mode": "chain"} if self.budget == "chain" else {"mode": "tree"}
        if self.budget != "chain":
            wanted["budget"] = self.budget if self.budget == "auto" else int(self.budget)
        draft = self.run_dir / ".control.json"
        draft.write_text(json.dumps(wanted), "utf-8")
        draft.replace(self.run_dir / "control.json")
        time.sleep(CONTROL_SECONDS)


def post(url: str, body: dict[str, Any] | None = None, timeout: float = 180.0) -> bytes:
    """Send one request; returns the body."""
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            answer: bytes = reply.read()
            return answer
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(f"{url}: HTTP {error.code}: {error.read(400).decode(errors='replace')}") from None


def load(path: Path, limit: int, tokenizer: str) -> list[list[int]]:
    """Read prompts ({"prompt", "raw"?} per line) as token ids; the chat template is applied to those not raw."""
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
    return ids


def run_pass(arm: Arm, prompts: list[list[int]], concurrency: int, temperature: float, max_new: int) -> dict[str, Any]:
    """Send all prompts with ``concurrency`` in flight; returns the pass's figures and each request's answer."""
    post(arm.url + "/flush_cache")
    found: list[dict[str, Any]] = [{}] * len(prompts)
    waiting, lock = iter(range(len(prompts))), threading.Lock()
    failures: list[BaseException] = []

    def work() -> None:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            sampling = {"temperature": temperature, "max_new_tokens": max_new}
            begin = time.perf_counter()
            try:
                answer = json.loads(
                    post(arm.url + "/generate", {"input_ids": prompts[number], "sampling_params": sampling})
                )
            except Exception as error:  # reported below, with the arm
                failures.append(error)
                return
            meta = answer["meta_info"]
            found[number] = {
                "ids": answer["output_ids"],
                "n": meta["completion_tokens"],
                "verify": meta.get("spec_verify_ct"),
                "cached": meta.get("cached_tokens"),
                "sec": round(time.perf_counter() - begin, 5),
            }

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - begin
    if failures:
        raise RuntimeError(f"{arm.name}: {len(failures)} requests failed, the first by {failures[0]!r}")
    return {"wall_s": round(wall, 4), "requests": found}


def figures(found: dict[str, Any], concurrency: int) -> dict[str, Any]:
    """Derive the figures of a pass."""
    requests = found["requests"]
    tokens = sum(item["n"] for item in requests)
    steps = sum(item["verify"] or 0 for item in requests)
    return {
        "prompts": len(requests),
        "tokens": tokens,
        "verify_steps": steps,
        "cached_tokens": sum(item["cached"] or 0 for item in requests),
        "tok_per_s": round(tokens / found["wall_s"], 1),
        "tokens_per_verify": round((tokens - len(requests)) / steps, 4) if steps else None,
        "step_ms": round(1000 * found["wall_s"] * min(concurrency, len(requests)) / (steps or tokens), 4),
    }


class Shard:
    """A file with one line per finished pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[tuple[Any, ...]] = set()
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                row = json.loads(line)
                self.done.add(self.key(row))

    @staticmethod
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        """Return what makes a pass the same pass."""
        return tuple(row[name] for name in ("target", "arm", "concurrency", "temperature", "start", "pass"))

    def add(self, row: dict[str, Any]) -> None:
        """Append a pass, and show it without its answers."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.done.add(self.key(row))
        print(json.dumps({name: value for name, value in row.items() if name != "requests"}), flush=True)


def measure(args: argparse.Namespace, arms: list[Arm], prompts: list[list[int]]) -> None:
    """Warm and measure every arm at every concurrency, in the start's order."""
    shard, deadline = Shard(args.shard), time.time() + args.seconds
    levels = [int(level) for level in args.concurrency.split(",")]
    order = arms if args.start % 2 else arms[::-1]
    warm: set[tuple[str, int]] = set()
    for concurrency in levels:
        for number in range(args.passes):
            for arm in order if number % 2 == 0 else order[::-1]:
                row: dict[str, Any] = {
                    "target": args.target,
                    "arm": arm.name,
                    "budget": arm.budget,
                    "concurrency": concurrency,
                    "temperature": args.temperature,
                    "start": args.start,
                    "pass": number + 1,
                }
                if Shard.key(row) in shard.done:
                    continue
                if time.time() > deadline:
                    print("deadline: left out", arm.name, concurrency, flush=True)
                    continue
                arm.select()
                if (arm.name, concurrency) not in warm:
                    warm.add((arm.name, concurrency))
                    count = min(len(prompts), max(args.warm, 2 * concurrency))
                    run_pass(arm, prompts[:count], concurrency, args.temperature, min(args.max_new, 64))
                found = run_pass(arm, prompts, concurrency, args.temperature, args.max_new)
                shard.add({**row, **figures(found, concurrency), "max_new_tokens": args.max_new, **found})


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--shard", type=Path, required=True, help="file that finished passes are appended to")
    parser.add_argument("--target", required=True, help="name of the target in the results")
    parser.add_argument("--start", type=int, default=1, help="number of this start of the servers")
    parser.add_argument("--arm", action="append", required=True, help="NAME=URL[,budget=N|auto|chain,run_dir=DIR]")
    parser.add_argument("--prompts", type=Path, default=Path(__file__).parent / "prompts.jsonl")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--limit", type=int, default=10**9)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--warm", type=int, default=8, help="prompts of a warming pass, at least")
    parser.add_argument("--max-new", type=int, default=200)
    parser.add_argument("--wait-for", type=Path, help="start when this file exists (prompts are prepared meanwhile)")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing new after so many seconds")
    args = parser.parse_args()
    prompts = load(args.prompts, args.limit, args.tokenizer)
    while args.wait_for is not None and not args.wait_for.exists():
        time.sleep(0.2)
    measure(args, [Arm.parse(text) for text in args.arm], prompts)


if __name__ == "__main__":
    main()
