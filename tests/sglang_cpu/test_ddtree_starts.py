"""Starting DDTREE: what the argument handler makes of flags, what it refuses, and what older releases are told."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import layers
from tests.sglang_cpu.conftest import PAIR
from tests.sglang_cpu.servers import Environment, make_patched_tree

pytestmark = pytest.mark.sglang

BASE = [
    "--model-path", str(PAIR / "target"), "--device", "cpu", "--dtype", "bfloat16", "--speculative-algorithm", "ddtree",
    "--attention-backend", "torch_native", "--speculative-draft-model-path", str(PAIR / "draft"),
]  # fmt: skip
ON_CPU = {"DDTREE_ALLOW_CPU": "1"}
ACCEPTED: dict[str, tuple[list[str], dict[str, str]]] = {
    "default": ([], {}),
    "flag": (["--speculative-num-draft-tokens", "17"], {}),
    "variable": ([], {"DDTREE_BUDGET": "16", "SGLANG_DDTREE_API_KEY": "s3cret"}),
    "small": ([], {"DDTREE_BUDGET": "4"}),
    "own key": (["--api-key", "given"], {"SGLANG_DDTREE_API_KEY": "s3cret"}),
}
REFUSED: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "contradicting budgets": (
        ["--speculative-num-draft-tokens", "33"], {"DDTREE_BUDGET": "16"},
        ["DDTREE_BUDGET=16", "--speculative-num-draft-tokens=33"],
    ),
    "contradicting blocks": (
        ["--speculative-dflash-block-size", "8"], {}, ["--speculative-dflash-block-size=8", "block_size=16"],
    ),
    "cpu": ([], {"DDTREE_ALLOW_CPU": "0"}, ["CUDA", "cpu"]),
    "pages": (["--page-size", "16"], {}, ["--page-size 16"]),
    "pipeline parallel": (["--pp-size", "2"], {}, ["--pp-size 2", "Leave that out"]),
    "window": (["--speculative-draft-window-size", "128"], {}, ["--speculative-draft-window-size 128"]),
    "draft backend": (["--speculative-draft-attention-backend", "flashinfer"], {}, ["torch_native", "flashinfer"]),
}  # fmt: skip

WRONG_PAIRS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "hidden size": ("draft", {"hidden_size": 128}, ["hidden_size is 128", "256", "--speculative-draft-model-path"]),
    "vocabulary": ("draft", {"vocab_size": 2048}, ["vocab_size is 2048", "1024"]),
    "layers": ("draft", {"num_target_layers": 36}, ["36 layers", "this one has 6"]),
    "layer ids": ("draft", {"dflash_config": {"target_layer_ids": [1, 9, 17]}}, ["layers 9, 17", "0 to 5"]),
    "mask token": ("draft", {"dflash_config": {"mask_token_id": 151669}}, ["mask token 151669", "1024"]),
    "no drafter": (
        "draft", {"dflash_config": None, "block_size": None, "num_target_layers": None}, ["no DFlash drafter"],
    ),
    "window layers": (
        "target", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 3},
        ["3 layers of type sliding_attention", "--speculative-algorithm DFLASH"],
    ),
}  # fmt: skip


def _changed_model(which: str, changes: dict[str, Any], folder: Path) -> list[str]:
    """Write the config of one of the pair's models with changes, and return the flag that names it."""
    folder.mkdir()
    config = json.loads((PAIR / which / "config.json").read_text("utf-8"))
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    kept = {key: value for key, value in config.items() if value is not None or key not in changes}
    (folder / "config.json").write_text(json.dumps(kept), "utf-8")
    return ["--speculative-draft-model-path" if which == "draft" else "--model-path", str(folder)]


@pytest.fixture(scope="module")
def answers(
    cpu_environment: Environment, patched_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """All cases resolved in one process of the CPU environment."""
    cases = {name: (extra, variables) for name, (extra, variables, *_) in {**ACCEPTED, **REFUSED}.items()}
    folder = tmp_path_factory.mktemp("models")
    for name, (which, changes, _) in WRONG_PAIRS.items():
        cases[name] = _changed_model(which, changes, folder / name), {}
    script = Path(__file__).with_name("resolve_arguments.py")
    text = json.dumps([{"argv": BASE + extra, "environ": {**ON_CPU, **more}} for extra, more in cases.values()])
    output = cpu_environment.run("-B", script, variables=cpu_environment.variables(patched_tree), text=text)
    return dict(zip(cases, json.loads(output.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("name", "width"), [("default", 33), ("flag", 17), ("variable", 17), ("small", 16)])
def test_arguments_are_resolved(name: str, width: int, answers: dict[str, Any]) -> None:
    """Width is budget + 1 and the block stays the drafter's; decode graphs are off in this version."""
    resolved = answers[name]["resolved"]
    assert resolved["speculative_algorithm"] == "DDTREE"
    assert resolved["speculative_num_draft_tokens"] == width
    assert resolved["speculative_dflash_block_size"] == 16
    assert (resolved["speculative_num_steps"], resolved["speculative_eagle_topk"]) == (1, 1)
    assert resolved["attention_backend"] == "torch_native"
    assert resolved["max_running_requests"] == 48
    assert "disabled" in resolved["decode_graphs"]


def test_api_key_comes_from_the_environment_and_leaves_it(answers: dict[str, Any]) -> None:
    """A key on argv is readable by every user of the host; one that was given there still wins."""
    assert answers["variable"]["resolved"]["api_key"] == "s3cret"
    assert answers["variable"]["resolved"]["key_left_in_environment"] is False
    assert answers["own key"]["resolved"]["api_key"] == "given"


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_to_change(name: str, answers: dict[str, Any]) -> None:
    """Untested combinations must not start, and the message must name the flag."""
    message = answers[name].get("error", answers[name])
    assert "DDTREE" in message
    for word in REFUSED[name][2]:
        assert word in message


@pytest.mark.parametrize("name", WRONG_PAIRS)
def test_models_that_do_not_fit_are_refused_by_their_configs(name: str, answers: dict[str, Any]) -> None:
    """Else found in a forward pass, minutes later, or never: another target's drafter gives right tokens."""
    message = answers[name].get("error", answers[name])
    assert "DDTREE" in message
    for word in WRONG_PAIRS[name][2]:
        assert word in message


def test_release_without_the_v2_worker_is_told_so(cpu_environment: Environment, tmp_path: Path) -> None:
    """On SGLang 0.5.13 the payload imports, and every entry point says in one sentence what is missing."""
    with zipfile.ZipFile(layers.wheel_file("0.5.13.post1")) as wheel:
        wheel.extractall(tmp_path / "wheel")
    (tmp_path / "tree").mkdir()
    tree = make_patched_tree(tmp_path / "wheel" / "sglang", tmp_path / "tree")
    code = (
        "import json, types\n"
        "from sglang.srt.speculative.ddtree import beacon, hook, limits, metrics, settings\n"
        "from sglang.srt.speculative.ddtree.adapters import compat, requests\n"
        "from sglang.srt.speculative.spec_info import SpeculativeAlgorithm\n"
        "algorithm = SpeculativeAlgorithm.from_string('ddtree')\n"
        "answers = [algorithm.is_dflash()]\n"
        "for call in (hook.create_worker, hook.handle_server_args, algorithm.create_worker):\n"
        "    try:\n"
        "        call(types.SimpleNamespace(disable_overlap_schedule=True))\n"
        "        answers.append('no error')\n"
        "    except ValueError as error:\n"
        "        answers.append(str(error))\n"
        "print(json.dumps(answers))\n"
    )
    variables = cpu_environment.variables(tree)
    del variables["SGLANG_USE_CPU_ENGINE"]  # this release knows no CPU engine without its real kernels
    is_dflash, *messages = json.loads(cpu_environment.run("-c", code, variables=variables).splitlines()[-1])
    assert is_dflash is True
    for message in messages:
        assert "spec v1" in message
        assert "0.5.14" in message
