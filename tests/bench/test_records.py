"""Prompts: the bundled ones, and files in the forms people have them in."""

from __future__ import annotations

import json

import pytest

from ddtree_ops.bench import library, records
from ddtree_ops.errors import ConfigError


def read(tmp_path, text):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, "utf-8")
    return records.read(path)


def lines(*items):
    return "".join(json.dumps(item) + "\n" for item in items)


@pytest.mark.parametrize("regime", library.REGIMES)
def test_bundled_prompts_are_enough_and_have_both_forms(regime):
    """32 or more, none twice, the same order each time; chat form for a template, raw form without."""
    found = library.prompts(regime)
    assert len(found) >= 32
    assert len({one.text for one in found}) == len(found)
    assert all(one.messages and one.text and one.regime == regime for one in found)
    assert library.prompts(regime, 5) == found[:5]
    assert [one["text"] for one in library.bundled(regime)] == [one.text for one in found]


def test_the_hash_names_what_was_asked():
    """Any change of any prompt or of the order shows."""
    found = library.prompts("math")
    assert records.digest(found) == records.digest(library.prompts("math"))
    assert records.digest(found) != records.digest(found[::-1])
    assert len(records.digest(found)) == 64


@pytest.mark.parametrize(
    ("item", "request_"),
    [
        ({"text": "raw"}, {"text": "raw"}),
        ({"prompt": "hi"}, {"messages": [{"role": "user", "content": "hi"}]}),
        ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "user", "content": "hi"}]}),
        ({"input_ids": [1, 2]}, {"input_ids": [1, 2]}),
        (
            {"conversations": [{"from": "gpt", "value": "…"}, {"from": "system", "value": "be brief"},
                               {"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
            {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]},
        ),
        (
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
             "body": {"model": "m", "messages": [{"role": "user", "content": "hi"},
                                                 {"role": "assistant", "content": "known answer"}]}},
            {"messages": [{"role": "user", "content": "hi"}]},
        ),
        ({"body": {"prompt": "raw"}}, {"text": "raw"}),
    ],
)  # fmt: skip
def test_forms(tmp_path, item, request_):
    """ShareGPT up to the first human turn; an answer that a data set has is not asked for."""
    (found,) = read(tmp_path, lines(item))
    asked = found.request(3)
    assert asked.pop("index") == 3
    asked.pop("id")
    assert asked == request_


def test_ids_and_regimes(tmp_path):
    """From `id` or `custom_id`, `regime` or `kind`; else numbered, in the regime `own`."""
    found = read(tmp_path, lines({"text": "a", "id": 7}, {"body": {"prompt": "b"}, "custom_id": "x"},
                                 {"text": "c", "kind": "code"}, {"text": "d", "regime": "chat"}))  # fmt: skip
    assert [(one.id, one.regime) for one in found] == [
        ("7", "own"), ("x", "own"), ("code/3", "code"), ("chat/4", "chat"),
    ]  # fmt: skip


def test_a_json_array_and_a_byte_order_mark(tmp_path):
    """ShareGPT comes as one array; Windows editors add a mark."""
    assert len(read(tmp_path, json.dumps([{"text": "a"}, {"text": "b"}]))) == 2
    assert read(tmp_path, "\ufeff" + lines({"text": "a"}))[0].text == "a"


def test_a_chat_has_a_raw_form_for_a_model_without_a_template(tmp_path):
    """It ends where the assistant is to speak."""
    (found,) = read(
        tmp_path, lines({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]})
    )
    assert found.text == "System: s\nUser: u\nAssistant:"
    assert found.raw().request(0) == {"index": 0, "id": "own/1", "text": found.text}


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ('{"text": "a"}\n\n{"x": 1}\n', ":3", "none of"),
        ("nope\n", ":1", "not JSON"),
        ('{"text": "  "}\n', ":1", "`text`"),
        ('{"text": 3}\n', ":1", "`text`"),
        ('{"messages": []}\n', ":1", "`messages`"),
        ('{"messages": [{"role": "tool", "content": "x"}]}\n', ":1", "tool"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}\n', ":1", "user"),
        ('{"messages": [{"role": "user", "content": null}]}\n', ":1", "`content`"),
        ('{"conversations": [{"from": "gpt", "value": "x"}]}\n', ":1", "human"),
        ('{"body": {"model": "m"}}\n', ":1", "`body`"),
        ('{"input_ids": [1, true]}\n', ":1", "`input_ids`"),
        ('{"input_ids": [-1]}\n', ":1", "`input_ids`"),
        ("[1]", "record 1", "object"),
        ('[{"text": "a"}, 3]', "record 2", "object"),
        ('{"id":"a","text":"x"}\n{"id":"a","text":"y"}\n', "", "twice"),
        ("\n", "", "no prompts"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_line(tmp_path, text, where, words):
    """Nothing is skipped or guessed."""
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, text)
    assert caught.value.where.endswith(where)
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path):
    """Missing, or another encoding."""
    with pytest.raises(ConfigError, match="cannot be read"):
        records.read(tmp_path / "missing.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "\xe4"}\n')
    with pytest.raises(ConfigError, match="UTF-8"):
        records.read(tmp_path / "latin.jsonl")
