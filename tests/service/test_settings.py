"""Argument vectors and environments, as golden values, and the contradictions that are refused."""

from __future__ import annotations

import msgspec
import pytest

from ddtree_ops.errors import ConfigError
from ddtree_ops.service.settings import ServiceSpec, refuse_contradictions

SPEC = ServiceSpec(
    interpreter="/root/ml-env/bin/python",
    target="/models/Qwen3-8B",
    drafter="/models/Qwen3-8B-DFlash-b16",
    budget=32,
    listen="0.0.0.0",
    port=30000,
    gpus=("0", "1"),
    extra_args=("--tp", "2", "--mem-fraction-static", "0.8"),
    release_id="0.5.20-abcdef012345",
)


def test_the_argument_vector_of_ddtree():
    """The verify width is the budget plus the root."""
    assert SPEC.argv() == (
        "/root/ml-env/bin/python", "-m", "sglang.launch_server",
        "--model-path", "/models/Qwen3-8B",
        "--speculative-algorithm", "DDTREE",
        "--speculative-draft-model-path", "/models/Qwen3-8B-DFlash-b16",
        "--speculative-num-draft-tokens", "33",
        "--host", "0.0.0.0", "--port", "30000",
        "--tp", "2", "--mem-fraction-static", "0.8",
    )  # fmt: skip


def test_the_variants_for_comparison():
    """DFLASH verifies one block; without speculation no speculative flag is left, not even among the extra ones."""
    dflash = SPEC.variant("DFLASH").argv()
    assert dflash[dflash.index("--speculative-algorithm") + 1] == "DFLASH"
    assert dflash[dflash.index("--speculative-num-draft-tokens") + 1] == "16"
    extra = ("--speculative-draft-attention-backend", "triton", "--tp", "2", "--speculative-dflash-block-size=16")
    plain = msgspec.structs.replace(SPEC, extra_args=extra).variant("NONE")
    assert not [word for word in plain.argv() if "speculative" in word or word == "triton"]
    assert plain.argv()[-2:] == ("--tp", "2")
    assert "DDTREE_BUDGET" not in plain.env()


def test_a_comparison_server_with_a_key_does_not_leave_the_host():
    """Only DDTREE's hook takes the key from the environment: the plain variant would stand open to the network."""
    keyed = msgspec.structs.replace(SPEC, secrets=("SGLANG_DDTREE_API_KEY",))
    assert keyed.listen == "0.0.0.0"
    assert keyed.variant("NONE").listen == "127.0.0.1"
    assert SPEC.variant("NONE").listen == "0.0.0.0"


def test_the_environment():
    """JIT caches belong to the release; the operator's values win, except over ours."""
    env = SPEC.env()
    cache = "/var/lib/ddtree-ops/cache/0.5.20-abcdef012345"
    assert env["TRITON_CACHE_DIR"] == f"{cache}/triton"
    assert env["FLASHINFER_WORKSPACE_BASE"] == env["SGLANG_CACHE_DIR"] == cache
    assert (env["DDTREE_BUDGET"], env["DDTREE_RUN_DIR"]) == ("32", "/run/ddtree-ops/sglang-ddtree")
    assert (env["CUDA_VISIBLE_DEVICES"], env["PYTHONSAFEPATH"]) == ("0,1", "1")
    assert env["PATH"].startswith("/root/ml-env/bin:/usr/local/cuda/bin:")
    own = msgspec.structs.replace(SPEC, environment={"PYTHONSAFEPATH": "", "X": "y"}, python_version=(3, 10))
    assert own.env()["PYTHONSAFEPATH"] == ""
    assert "PYTHONSAFEPATH" not in msgspec.structs.replace(own, environment={}).env()


def test_an_automatic_budget_keeps_its_upper_limit_in_the_width():
    """`auto` that lost `budget` would capture and reserve for the payload's default instead of the inventory's."""
    found = msgspec.structs.replace(SPEC, budget=48, auto_budget=True)
    assert found.env()["DDTREE_BUDGET"] == "auto"
    assert found.argv()[found.argv().index("--speculative-num-draft-tokens") + 1] == "49"


@pytest.mark.parametrize("name", ["DDTREE_RUN_DIR", "DDTREE_BUDGET", "SGLANG_DDTREE_API_KEY"])
def test_an_environment_that_contradicts_a_setting_is_refused(name):
    """A budget in two places, or a key in the unit's text."""
    with pytest.raises(ConfigError) as caught:
        msgspec.structs.replace(SPEC, environment={name: "1"}).env()
    assert name in caught.value.what


def test_a_secret_that_is_also_a_plain_variable_is_refused():
    """It would stand in the unit, readable by everybody."""
    with pytest.raises(ConfigError) as caught:
        msgspec.structs.replace(SPEC, environment={"HF_TOKEN": "x"}, secrets=("HF_TOKEN",)).env()
    assert "HF_TOKEN" in caught.value.what


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--port", "1"), ("--port",)),
        (("--port=1",), ("--port",)),
        (("--model", "/x"), ("--model",)),
        (("--speculative-algorithm", "EAGLE"), ("--speculative-algorithm",)),
        (("--speculative-num-draft-tokens=17",), ("--speculative-num-draft-tokens", "budget")),
        (("--speculative-num", "17"), ("--speculative-num", "budget")),
        (("--speculative_num_draft_tokens", "17"), ("budget",)),
        (("--api-key", "sk-1"), ("--api-key", "may not stand")),
        (("--speculative-use-rejection-sampling",), ("may not stand",)),
    ],
)
def test_contradicting_extra_flags_are_refused_and_named(args, words):
    """F7: both sides are named, abbreviations that argparse would accept included."""
    with pytest.raises(ConfigError) as caught:
        refuse_contradictions(args)
    for word in words:
        assert word in caught.value.what + caught.value.why
    assert "sk-1" not in str(caught.value.as_dict())


def test_other_flags_pass():
    """No flag of ours is a prefix of these."""
    refuse_contradictions(
        ("--mem-fraction-static", "0.8", "--model-impl", "auto", "--hostfile", "--speculative-dflash-block-size", "16")
    )


def test_where_the_host_asks():
    """A wildcard is asked on loopback, also for IPv6."""
    urls = [
        msgspec.structs.replace(SPEC, listen=listen).base_url for listen in ("0.0.0.0", "::", "10.0.0.5", "fd00::1")
    ]
    assert urls == ["http://127.0.0.1:30000", "http://[::1]:30000", "http://10.0.0.5:30000", "http://[fd00::1]:30000"]
