#!/usr/bin/env python3
"""Offline greedy acceptance of the pytiny pair: the linear DFlash block against DDTree trees.

    evaluate_pair.py [--pair DIR] [--prompts FILE] [--new 128] [--dtype bfloat16|float32] [--out FILE] [--texts]

Greedy verification reproduces the target's greedy answer whatever is drafted. So the answer is generated once, and a
scheme commits at each verify step the longest prefix of the true continuation that it proposed, plus one token of the
target (the bonus). Figure: tokens per verify step, bonus included; the first token of an answer comes from prefill
and is not counted.

linear   the most probable token of each masked position (what SGLang runs as DFLASH)
tree-B   the first B nodes in the order (score descending, rank tuple lexicographically ascending, a prefix before its
         extension); score = sum over depths of round(log-probability * 2**32); the ranks of one depth are ordered by
         (logit descending, token id ascending); B counts draft nodes, the root is not one of them

Needs torch, safetensors and tokenizers; no serving engine and no transformers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from pytiny_model import Drafter, Target, load_drafter, load_target
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
BUDGETS = (8, 16, 32)
SHIFT = 32


def tree_nodes(scores: list[list[int]], budget: int) -> list[tuple[int, ...]]:
    """Rank tuples of the tree, in its canonical order. scores[d][r]: integer score of rank r at depth d."""
    depths, width = len(scores), len(scores[0])
    heap, nodes = [(-scores[0][0], (0,))], []
    while heap and len(nodes) < budget:
        negative, ranks = heapq.heappop(heap)
        nodes.append(ranks)
        depth, rank = len(ranks), ranks[-1]
        if rank + 1 < width:
            step = scores[depth - 1][rank] - scores[depth - 1][rank + 1]
            heapq.heappush(heap, (negative + step, (*ranks[:-1], rank + 1)))
        if depth < depths:
            heapq.heappush(heap, (negative - scores[depth][0], (*ranks, 0)))
    return nodes


def accepted(scores: list[list[int]], true_ranks: list[int | None], budget: int) -> int:
    """Draft tokens accepted along the true continuation; budget 0 stands for the linear block."""
    path: list[int] = []
    chosen = set(tree_nodes(scores, budget)) if budget else None
    for rank in true_ranks:
        if rank is None or (chosen is None and rank != 0):
            break
        path.append(rank)
        if chosen is not None and tuple(path) not in chosen:
            return len(path) - 1
    return len(path)


def loops(tokens: list[int], longest_period: int = 24, repeats: int = 3) -> bool:
    """Does the answer end in a loop: its last ``repeats`` pieces of one length equal?"""
    for period in range(1, longest_period + 1):
        tail = tokens[-period * repeats :]
        if len(tail) == period * repeats and all(tail[i] == tail[i % period] for i in range(len(tail))):
            return True
    return False


def distinct(tokens: list[int], n: int = 4) -> float:
    """Share of different n-grams among all n-grams."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / max(1, len(grams))


@torch.inference_mode()
def draft_table(
    target: Target, drafter: Drafter, prompt: list[int], answer: list[int], width: int
) -> tuple[list[list[list[int]]], list[list[list[int]]], list[float]]:
    """For every token of the answer as anchor: integer scores and token ids by depth and rank.

    Also the target's distance, in nats, between its best and second best token at every answer position."""
    device = target.lm_head.weight.device
    sequence = torch.tensor([prompt + answer], device=device)
    final, features = target.hidden(sequence, drafter.taps)
    assert features is not None
    top = target.lm_head(final[0, len(prompt) - 1 : -1]).float().log_softmax(-1).topk(2).values
    gaps = (top[:, 0] - top[:, 1]).tolist()
    anchors = torch.arange(len(prompt), len(prompt) + len(answer), device=device)[None]
    embedded = target.model.embed_tokens(drafter.block_ids(sequence, anchors))
    states = drafter(features, embedded, anchors, target.rope())[0, :, 1:]
    logits = F.linear(states, target.lm_head.weight).float()
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    values, order = values[..., :width], order[..., :width]
    log_probability = values - logits.logsumexp(-1, keepdim=True)
    scores = (log_probability.double() * (1 << SHIFT)).round().long()
    return scores.tolist(), order.tolist(), gaps


def walk(length: int, hit: Callable[[int], int]) -> tuple[int, int]:
    """(verify steps, tokens committed) for an answer of ``length`` tokens; token 0 comes from prefill."""
    at = steps = 0
    while at < length - 1:
        at += min(hit(at), length - 2 - at) + 1
        steps += 1
    return steps, at


def evaluate(
    target: Target, drafter: Drafter, prompts: list[list[int]], new_tokens: int, budgets: tuple[int, ...] = BUDGETS
) -> dict[str, Any]:
    """All figures for tokenised prompts, and the answers."""
    began, width, block = time.time(), max(budgets), drafter.block
    answers = target.generate(prompts, new_tokens)
    schemes = {"linear": 0, **{f"tree-{b}": b for b in budgets}}
    total = {name: [0, 0] for name in schemes}
    alive = {name: [0, 0] for name in schemes}
    per_prompt: list[dict[str, Any]] = []
    all_gaps: list[float] = []
    first_rank = [0] * (block - 1)
    anchors_seen = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        scores, order, gaps = draft_table(target, drafter, prompt, answer, width)
        all_gaps += gaps
        ranks: list[list[int | None]] = []
        for i in range(len(answer)):
            truth = answer[i + 1 : i + block]
            ranks.append([order[i][d].index(t) if t in order[i][d] else None for d, t in enumerate(truth)])
        for row in ranks[: max(0, len(answer) - block)]:
            anchors_seen += 1
            for d, rank in enumerate(row):
                first_rank[d] += rank == 0
        looping = loops(answer)
        record: dict[str, Any] = {"tokens": len(answer), "distinct_4": round(distinct(answer), 3), "loops": looping}
        for name, budget in schemes.items():
            steps, tokens = walk(len(answer), lambda i, b=budget: accepted(scores[i], ranks[i], b))  # noqa: B023
            record[name] = round(tokens / max(1, steps), 3)
            for book in (total,) if looping else (total, alive):
                book[name][0] += steps
                book[name][1] += tokens
        per_prompt.append(record)
    all_gaps.sort()
    count = max(1, len(all_gaps))
    mean = {name: round(tokens / max(1, steps), 3) for name, (steps, tokens) in total.items()}
    return {
        "prompts": len(per_prompt),
        "tokens": total["linear"][1],
        "tokens_per_verify_step": mean,
        "gain_over_linear": {n: round(v / max(mean["linear"], 1e-9) - 1, 3) for n, v in mean.items()},
        "without_looping_answers": {n: round(t / max(1, s), 3) for n, (s, t) in alive.items()},
        "looping_answers": sum(r["loops"] for r in per_prompt),
        "mean_distinct_4": round(sum(r["distinct_4"] for r in per_prompt) / max(1, len(per_prompt)), 3),
        "top1_by_depth": [round(x / max(1, anchors_seen), 3) for x in first_rank],
        "gap_nats": {
            "median": round(median(all_gaps), 3) if all_gaps else None,
            "share_zero": round(sum(g == 0 for g in all_gaps) / count, 4),
            "share_below_0.01": round(sum(g < 0.01 for g in all_gaps) / count, 4),
            "share_below_0.1": round(sum(g < 0.1 for g in all_gaps) / count, 4),
        },
        "seconds": round(time.time() - began, 1),
        "per_prompt": per_prompt,
        "answers": answers,
    }


def read_prompts(path: Path) -> list[dict[str, str]]:
    """Prompts as {"id", "text"} objects, one per line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", type=Path, default=HERE / "pytiny")
    parser.add_argument("--prompts", type=Path, default=HERE / "prompts.jsonl")
    parser.add_argument("--new", type=int, default=128, help="new tokens per prompt")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--texts", action="store_true", help="print prompts with answers")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    tokenizer = Tokenizer.from_file(str(args.pair / "target" / "tokenizer.json"))
    target = load_target(args.pair / "target", args.device, dtype)
    drafter = load_drafter(args.pair / "draft", args.device, dtype)
    rows = read_prompts(args.prompts)
    encoded = [e.ids for e in tokenizer.encode_batch([r["text"] for r in rows], add_special_tokens=False)]
    result = evaluate(target, drafter, encoded, args.new)
    answers = result.pop("answers")
    for row, record, prompt in zip(rows, result["per_prompt"], encoded, strict=True):
        record["id"], record["prompt_tokens"] = row["id"], len(prompt)
    if args.texts:
        for row, answer in zip(rows, answers, strict=True):
            print(f"--- {row['id']}\n{row['text']}\x1b[32m{tokenizer.decode(answer)}\x1b[0m")
    result = {"dtype": args.dtype, "device": args.device, "torch": torch.__version__, "new": args.new, **result}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
