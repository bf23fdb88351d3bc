"""Where copies are looked for, what earlier runs left, and model folders."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.host import journal, models, search, state
from ddtree_ops.host.look import Look
from tests.host import material

# -- search --


def searched(root: Path, **params: Any) -> tuple[set[str], set[str], Look]:
    """Environments and package folders (relative to ``root``) that the search finds below it."""
    look = Look({"roots": [str(root)], **params})
    found = search.search(look, [])

    def below(paths: tuple[str, ...]) -> set[str]:
        return {os.path.relpath(path, root) for path in paths}

    return below(found.environments), below(found.package_folders), look


def test_layouts_of_source_trees(tmp_path: Path) -> None:
    """A checkout, an unpacked sdist, the src layout, and a package folder that simply lies there."""
    for place in (
        "a/sglang/python/sglang",
        "sdist/sglang-0.5.10/sglang",
        "fork/python/src/sglang",
        "deep/er/still/sglang",
    ):
        material.write(tmp_path / place, material.package())
    (tmp_path / "notes/sglang/docs").mkdir(parents=True)  # a folder of that name is not yet a copy
    _, packages, _ = searched(tmp_path)
    assert packages == {
        "a/sglang/python/sglang",
        "sdist/sglang-0.5.10/sglang",
        "fork/python/src/sglang",
        "deep/er/still/sglang",
    }


def test_environments_are_not_searched_inside(tmp_path: Path) -> None:
    """An environment is one find, however much lies in it; caches and .git are passed over."""
    material.write(tmp_path / "env", {"pyvenv.cfg": "", "lib/python3.11/site-packages/sglang/srt/x.py": ""})
    material.write(tmp_path / "conda/env/conda-meta", {"history": ""})
    material.write(tmp_path / "node_modules/sglang", material.package())
    environments, packages, _ = searched(tmp_path)
    assert environments == {"env", "conda/env"}
    assert packages == set()


def test_the_search_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge disk: the search stops, and says that it did and what to do."""
    monkeypatch.setattr(search, "MOST_FOLDERS", 3)
    for number in range(5):
        (tmp_path / f"d{number}").mkdir()
    _, _, look = searched(tmp_path)
    assert any("stopped after 3 folders" in text for text in look.warnings)


def test_file_servers_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network mount is left out (a dead file server hangs whoever asks), and named where it is a root."""
    material.write(tmp_path / "nfs/sglang", material.package())
    monkeypatch.setattr(search, "network_mounts", lambda: {str(tmp_path / "nfs")})
    assert searched(tmp_path)[1] == set()
    _, packages, look = searched(tmp_path / "nfs")
    assert packages == set()
    assert any("was not searched" in text for text in look.warnings)
    assert searched(tmp_path / "nfs", extra_roots=[str(tmp_path / "nfs")])[1] == {"sglang"}


# -- state folder --


def test_state_of_a_host_without_any(tmp_path: Path) -> None:
    """Nothing deployed, nothing locked; the folder does not exist and is not made."""
    found = state.describe(Look({"state_root": str(tmp_path / "state")}))
    assert (found["lock"], found["deployment"], found["interrupted"]) == (None, None, None)
    assert found["state_root_writable"]
    assert not (tmp_path / "state").exists()


def test_interrupted_run_and_dead_lock(tmp_path: Path) -> None:
    """A helper that died: the lock is there but dead, its journal has no end; reading changes neither."""
    root = tmp_path / "state"
    run = journal.Journal.create(journal.path_of(str(root), "r1"))
    run.append("begin", who="me", message="deploy")
    run.append("op", op="derive_tree")
    material.write(
        root / "lock", {"owner.json": json.dumps({"run_id": "r1", "pid": 2**22 + 1, "who": "me", "since": 1.0})}
    )
    before = material.manifest(root)
    found = state.describe(Look({"state_root": str(root)}))
    assert found["lock"]["run_id"] == "r1"
    assert not found["lock"]["alive"]
    assert (found["interrupted"]["run_id"], found["interrupted"]["last_step"]) == ("r1", "derive_tree")
    assert material.manifest(root) == before


def test_living_run_is_no_interrupted_one(tmp_path: Path) -> None:
    """While the lock's owner lives, its open journal is simply a run at work."""
    root = tmp_path / "state"
    journal.Journal.create(journal.path_of(str(root), "r1")).append("begin", who="me", message="deploy")
    material.write(root / "lock", {"owner.json": json.dumps({"run_id": "r1", "pid": os.getpid()})})
    found = state.describe(Look({"state_root": str(root)}))
    assert found["lock"]["alive"]
    assert found["interrupted"] is None


def test_damaged_state_is_a_warning(tmp_path: Path) -> None:
    """A deployment.json that is no JSON, a journal with a broken chain: said, and the look goes on."""
    root = tmp_path / "state"
    material.write(root, {"deployment.json": "{", "journal/r1.jsonl": '{"n": 5}\n{"n": 6}\n'})
    look = Look({"state_root": str(root)})
    found = state.describe(look)
    assert found["deployment"] is None
    assert "chain of hashes breaks" in found["interrupted"]["message"]
    assert any("deployment.json is damaged" in text for text in look.warnings)


# -- models --


def test_model_folder(tmp_path: Path) -> None:
    """Configuration as it is, the tokenizer's hash, and the weights' size."""
    folder = material.write(
        tmp_path / "m", {"config.json": '{"hidden_size": 5}', "tokenizer.json": "{}", "a.safetensors": "xyz"}
    )
    found = models.describe(Look({}), "target", str(folder))
    assert (found["exists"], found["config"], found["weights_bytes"], found["error"]) == (
        True,
        {"hidden_size": 5},
        3,
        "",
    )
    assert found["tokenizer_sha256"] == hashlib.sha256(b"{}").hexdigest()


def test_model_by_name_in_the_cache(tmp_path: Path) -> None:
    """A Hugging Face name: the snapshot that refs/main names, in the cache that the service's environment sets."""
    cache = tmp_path / "hf/hub/models--Qwen--Qwen3-8B"
    material.write(cache, {"refs/main": "abc", "snapshots/abc/config.json": "{}", "snapshots/old/config.json": "{}"})
    look = Look({"service_environment": {"HF_HOME": str(tmp_path / "hf")}})
    assert models.describe(look, "target", "Qwen/Qwen3-8B")["path"] == str(cache / "snapshots/abc")
    assert "not in the host's Hugging Face cache" in models.describe(look, "draft", "z-lab/none")["error"]


def test_model_folders_in_trouble(tmp_path: Path) -> None:
    """Missing folder, missing and broken configuration, a relative path: each in its own words."""
    look = Look({})
    broken = material.write(tmp_path / "broken", {"config.json": "{"})
    (tmp_path / "empty").mkdir()
    assert "does not exist" in models.describe(look, "target", str(tmp_path / "gone"))["error"]
    assert "cannot be read" in models.describe(look, "target", str(broken))["error"]
    assert "no config.json" in models.describe(look, "target", str(tmp_path / "empty"))["error"]
    assert "neither an absolute path" in models.describe(look, "target", "a/b/c")["error"]
