#!/usr/bin/env python3
"""How far apart two tokens are on float32 logits of a target, in steps of the served 16-bit type.

    near_ties.py MODEL_DIR < CASES.json        run with the CPU environment's Python

CASES: [{"context": [ids ...], "left": id, "right": id}, ...]; prints {"distance", "step", "steps"} for each.
One step is the spacing of bfloat16 at the magnitude of the larger of the two logits. Two servers that batch
differently may choose differently within two steps, a "near tie"; further apart, one of them is wrong.
"""

import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))
import cpu_stubs  # noqa: F401  before transformers, which imports torchvision
import torch
from transformers import AutoModelForCausalLM

BFLOAT16_FRACTION_BITS = 7


def main(model_dir):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    answers = []
    for case in json.load(sys.stdin):
        ids = torch.tensor([case["context"]])
        with torch.inference_mode():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
        left, right = float(logits[case["left"]]), float(logits[case["right"]])
        step = 2.0 ** (math.floor(math.log2(max(abs(left), abs(right)))) - BFLOAT16_FRACTION_BITS)
        answers.append({"distance": abs(left - right), "step": step, "steps": abs(left - right) / step})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
