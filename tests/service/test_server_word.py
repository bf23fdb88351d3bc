"""The server's own word about its build: what of its answer is kept, and what contradicts the plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_ops.host import attest, identity

OURS, OTHER = "a" * 64, "b" * 64


def _service(state: dict[str, Any]) -> Any:
    """A service whose server answers with one internal state."""
    answer = {"speculative_algorithm": "DDTREE", "api_key": "s3cret", "internal_states": [state]}
    reply = SimpleNamespace(status=200, json=lambda: answer)
    return SimpleNamespace(client=lambda: SimpleNamespace(url="http://h:1", get=lambda *_, **__: reply))


def _findings(state: dict[str, Any]) -> list[str]:
    findings: list[str] = []
    identity._ask(_service(state), attest.expected_of({"build_id": OURS}), findings)
    return findings


@pytest.mark.parametrize("state", [{"last_gen_throughput": 1.5}, {"ddtree": {"build_id": OURS}}, {"ddtree": None}])
def test_the_right_build_or_none_is_no_finding(state: dict[str, Any]) -> None:
    """Older releases have no place for it: the beacons say it there."""
    assert _findings(state) == []


def test_another_build_is_a_finding() -> None:
    """The run folder could be another server's; its own answer cannot."""
    assert _findings({"ddtree": {"build_id": OTHER}}) == [
        f"the server says it runs build {OTHER[:12]}, not {OURS[:12]}"
    ]


def test_of_an_answer_only_numbers_and_the_build_are_kept() -> None:
    """An internal state holds all server arguments, the API key among them."""
    state = {"last_gen_throughput": 1.5, "api_key": "s3cret", "ddtree": {"build_id": OURS, "counters": {"requests": 1}}}
    found = attest.server_info(_service(state))
    assert found["internal_states"] == [{"last_gen_throughput": 1.5, "build_id": OURS}]
    assert "s3cret" not in str(found)
