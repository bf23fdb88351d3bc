"""``benchmarks/gpu/pad_heads.py``: a model with more heads computes what it computed before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sglang_cpu.runs import PAIR
from tests.sglang_cpu.servers import REPOSITORY, Environment

pytestmark = pytest.mark.sglang

LOGITS = """
import sys
sys.path.insert(0, sys.argv[1])
import cpu_stubs
import torch
from transformers import AutoModelForCausalLM
ids = torch.tensor([[5, 300, 17, 900, 44, 621, 2, 2, 81]])
with torch.inference_mode():
    load = AutoModelForCausalLM.from_pretrained
    first, second = (load(path, dtype=torch.float32).eval()(ids).logits for path in sys.argv[2:])
print(float((first - second).abs().max()), float(first.abs().max()))
"""


def test_padded_heads_change_nothing(cpu_environment: Environment, tmp_path: Path) -> None:
    """Four heads on two for keys and values become six on three; a wrong order of heads would mix groups."""
    script = REPOSITORY / "benchmarks" / "gpu" / "pad_heads.py"
    for name in ("target", "draft"):
        cpu_environment.run("-B", script, PAIR / name, tmp_path / name, "--tp", "3")
        config = json.loads((tmp_path / name / "config.json").read_text("utf-8"))
        assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (6, 3, 64)
    stubs = REPOSITORY / "tests" / "sglang_cpu" / "stubs"
    difference, largest = map(
        float, cpu_environment.run("-B", "-c", LOGITS, stubs, PAIR / "target", tmp_path / "target").split()
    )
    assert largest > 1
    assert difference < 1e-4 * largest
