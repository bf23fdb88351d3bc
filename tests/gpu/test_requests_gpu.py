"""What single requests may ask for, on a GPU: nothing waits, and answers are those of plain decoding.

Needs what ``test_server_gpu`` needs. The questions, and the rule for near ties, are those of ``tests/sglang_cpu``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gpu.test_server_gpu import TREE, is_up, pytestmark, server
from tests.sglang_cpu import asking
from tests.sglang_cpu.asking import PROMPTS, Question
from tests.sglang_cpu.servers import Server

__all__ = ["pytestmark"]

NEAR_TIE = 0.5
"""Log-probabilities of bfloat16 logits of about 30: two steps are a quarter, and two tokens can move apart."""
SEEDED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 40, "ignore_eos": True}


def _end(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-4000:]


def test_no_wish_waits_for_the_device(tmp_path: Path) -> None:
    """torch's detector ends the server at the first operation that waits, once everything has been compiled."""
    log = tmp_path / "log"
    with server(TREE, log, DDTREE_SYNC_DEBUG="error") as (process, url):
        assert is_up(process, url), _end(log)
        asked = Server(url, log)
        base = [{"output_ids": answer["output_ids"], "text": answer["text"]} for answer in asked.generate(PROMPTS, 48)]
        wishes = asking.questions(base)
        for name in ("lengths", "stop tokens", "penalties", "penalties, the other way round", "bias", "budgets"):
            wishes[name].ask(asked)
            assert process.poll() is None, (name, _end(log))
        logprobs = {"return_logprob": True, "top_logprobs_num": 3}
        answers = Question(PROMPTS[:3], [{"max_new_tokens": 20, "ignore_eos": True}] * 3, logprobs).ask(asked)
        assert all(len(answer["meta_info"]["output_top_logprobs"]) == 20 for answer in answers)
        own = [{**SEEDED, "sampling_seed": 5 + n} for n in range(3)]
        alone = [Question([text], [one]).ask(asked)[0] for text, one in zip(PROMPTS[:3], own, strict=True)]
        again = [Question([text], [one]).ask(asked)[0] for text, one in zip(PROMPTS[:3], own, strict=True)]
        assert [answer["output_ids"] for answer in again] == [answer["output_ids"] for answer in alone]
        Question(PROMPTS[:6], [*own, *[SEEDED] * 3]).ask(asked)
        assert process.poll() is None, _end(log)


def test_answers_are_those_of_plain_decoding(tmp_path: Path) -> None:
    """Penalties, stops, ends, bias, grammars, budgets: greedy, and judged by the plain server's own distances."""
    kept, asking.NEAR_TIE = asking.NEAR_TIE, NEAR_TIE
    flags = ("--grammar-backend", "xgrammar")
    try:
        with server(TREE, tmp_path / "plain", "--disable-overlap-schedule", *flags, plain=True) as (process, url):
            assert is_up(process, url), _end(tmp_path / "plain")
            asked = Server(url, tmp_path / "plain")
            wishes = asking.questions(asked.generate(PROMPTS, 48))
            plain = {name: wish.ask(asked, with_gaps=True) for name, wish in wishes.items()}
        with server(TREE, tmp_path / "log", *flags) as (process, url):
            assert is_up(process, url), _end(tmp_path / "log")
            asked = Server(url, tmp_path / "log")
            found = {name: asking.differences(plain[name], wish.ask(asked)) for name, wish in wishes.items()}
            assert process.poll() is None, _end(tmp_path / "log")
    finally:
        asking.NEAR_TIE = kept
    for name, (equal, near, real) in found.items():
        print(f"{name}: {equal} of {len(plain[name])} equal", *near, *real, sep="\n  ")
    assert not [line for _, _, real in found.values() for line in real]
    assert sum(equal for equal, _, _ in found.values()) > 20
