#!/usr/bin/env python3
"""Verify steps that a tree of a given budget needs for given answers, without a serving engine.

    offline_steps.py PAIR_DIR BUDGET < ANSWERS.json        run with the CPU environment's Python

ANSWERS: [{"prompt": [ids ...], "answer": [ids ...]}, ...]; prints a list of step counts in that order. The drafter runs
over the answers themselves (tests/models/evaluate_pair.py), so a server that drafts, verifies and commits rightly needs
the same number of steps, up to the rounding of bfloat16.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "models"))
import evaluate_pair
import torch
from pytiny_model import load_drafter, load_target


def main(pair, budget):
    torch.set_num_threads(1)
    target, drafter = load_target(pair / "target"), load_drafter(pair / "draft")
    counts = []
    for case in json.load(sys.stdin):
        answer = case["answer"]
        scores, order, _ = evaluate_pair.draft_table(target, drafter, case["prompt"], answer, budget)

        def hit(i, answer=answer, scores=scores, order=order):
            truth = answer[i + 1 : i + drafter.block]
            ranks = [order[i][d].index(token) if token in order[i][d] else None for d, token in enumerate(truth)]
            return evaluate_pair.accepted(scores[i], ranks, budget)

        counts.append(evaluate_pair.walk(len(answer), hit)[0])
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
