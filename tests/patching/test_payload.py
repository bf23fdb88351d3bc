"""The payload's hashes, the build id, and what counts as ours on a host."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ddtree_ops.errors import ConfigError
from ddtree_ops.patching import Payload, Recipe, Series, build_id, build_json, load_payload, payload_status
from ddtree_ops.patching.text import sha256


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A kernels folder with a small payload and what must not travel."""
    root = tmp_path / "kernels/ddtree"
    for name, text in (("__init__.py", ""), ("hook.py", "A = 1\n"), ("tree/walk.py", "B = 2\n"), ("_build.json", "{}")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "__pycache__").mkdir()
    (root / "__pycache__/hook.cpython-311.pyc").write_bytes(b"\0")
    (root / "stray.pyc").write_bytes(b"\0")
    return root.parent


def test_shipped_payload_has_the_hook_and_the_beacon(recipe: Recipe) -> None:
    payload = load_payload(recipe)
    assert {"__init__.py", "hook.py", "beacon.py"} <= set(payload.files)
    assert payload.files["__init__.py"].strip() == b"" or payload.files["__init__.py"].startswith(b'"""')


def test_bytecode_caches_and_build_file_stay_behind(recipe: Recipe, kernels: Path) -> None:
    payload = load_payload(recipe, kernels)
    assert list(payload.files) == ["__init__.py", "hook.py", "tree/walk.py"]
    assert "srt/speculative/ddtree/tree/walk.py" in payload.placed()


def test_crlf_link_and_missing_folder_are_refused(recipe: Recipe, kernels: Path, tmp_path: Path) -> None:
    hook = kernels / "ddtree/hook.py"
    hook.write_bytes(b"A = 1\r\n")
    with pytest.raises(ConfigError, match="CRLF"):
        load_payload(recipe, kernels)
    hook.unlink()
    hook.symlink_to("tree/walk.py")
    with pytest.raises(ConfigError, match="link"):
        load_payload(recipe, kernels)
    with pytest.raises(ConfigError, match="the payload is missing"):
        load_payload(recipe, tmp_path)


def test_build_id_depends_on_each_part_and_on_nothing_else(recipe: Recipe, mini: Series, kernels: Path) -> None:
    payload = load_payload(recipe, kernels)
    other = dataclasses.replace(payload, files={**payload.files, "hook.py": b"A = 2\n"})
    moved = dataclasses.replace(payload, files={**payload.files, "hook2.py": payload.files["hook.py"]})
    ids = [build_id("b", mini, payload), build_id("c", mini, payload), build_id("b", "0" * 64, payload)]
    ids += [build_id("b", mini, other), build_id("b", mini, moved)]
    assert len(set(ids)) == 5
    assert build_id("b", mini.hash, load_payload(recipe, kernels)) == ids[0]


def test_build_file_names_files_as_the_beacon_does(recipe: Recipe, mini: Series, kernels: Path) -> None:
    """The beacon looks modules up by their path relative to the package root."""
    payload = load_payload(recipe, kernels)
    text = build_json(
        base_hash="b" * 64,
        series=mini,
        payload=payload,
        patched={"__init__.py": "1" * 64},
        release="0.5.99",
        spec="v2",
        tool_version="0",
    )
    document = json.loads(text)
    assert document["build_id"] == build_id("b" * 64, mini, payload)
    assert document["release_id"] == "0.5.99-" + document["build_id"][:12]
    assert document["files"]["__init__.py"] == "1" * 64
    assert document["files"]["srt/speculative/ddtree/hook.py"] == sha256(b"A = 1\n")
    assert text.endswith(b"}\n")


T = "srt/speculative/ddtree"


@pytest.mark.parametrize(
    ("present", "state"),
    [
        ({}, "absent"),
        ({"srt/speculative/dflash_worker_v2.py": "1"}, "absent"),
        ({f"{T}/hook.py": "new"}, "same"),
        ({f"{T}/hook.py": "new", f"{T}/_build.json": "x"}, "same"),
        ({f"{T}/hook.py": "old", f"{T}/_build.json": "x"}, "other-version"),
        ({f"{T}/_build.json": "x"}, "other-version"),
        ({f"{T}/hook.py": "old"}, "foreign"),
        ({f"{T}/hook.py": "new", f"{T}/more.py": "x"}, "foreign"),
        ({f"{T}/hook.py": "new", "srt/speculative/ddtree_worker.py": "x"}, "foreign"),
        ({"srt/speculative/dd_tree_utils.py": "x"}, "foreign"),
    ],
)
def test_whose_files_are_there(present: dict[str, str], state: str) -> None:
    """Two public proposals add flat ddtree_*.py files (field case B6): they are never taken for ours."""
    payload = Payload(T, {"hook.py": b"n"})
    known = {"new": payload.hashes["hook.py"]}
    assert payload_status(payload, {path: known.get(digest, digest) for path, digest in present.items()}).state == state
