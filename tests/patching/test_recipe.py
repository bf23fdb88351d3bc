"""The recipe file: strict, and its errors name file, line, key and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_ops.errors import ConfigError
from ddtree_ops.patching import Recipe, load_recipe, touched_paths
from tests.patching.conftest import PATCHES

TEXT = (PATCHES / "recipe.yaml").read_text(encoding="utf-8")


def broken(tmp_path: Path, old: str, new: str) -> tuple[ConfigError, int]:
    """The error for the recipe with one text replaced, and the line on which it was replaced."""
    assert old in TEXT
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert str(path) in caught.value.where
    assert caught.value.exit_code == 2
    return caught.value, TEXT[: TEXT.index(old)].count("\n") + 1


def test_the_shipped_recipe_loads(recipe: Recipe) -> None:
    assert {family.id for family in recipe.families} == {"v1", "v2"}
    assert "srt/speculative/spec_info.py" in touched_paths(recipe)


def test_unknown_key_names_line_and_allowed_keys(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    position: before\n", "    possition: before\n")
    assert f":{line}: " in error.where
    assert "possition" in error.what
    assert "position" in error.why
    assert "statement" in error.why


def test_wrong_value_names_line_and_key(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    position: before\n", "    position: above\n")
    assert f":{line}: edits[0].position" in error.where
    assert "above" in error.what


def test_wrong_type(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    why: All places", "    why: [1]\n    #")
    assert f":{line}: edits[1].why" in error.where


def test_duplicate_key_is_refused_although_yaml_takes_the_last(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    position: before\n", "    position: before\n    position: after\n")
    assert error.where.endswith(f":{line + 1}")
    assert "twice" in error.what


def test_duplicate_edit_id(tmp_path: Path) -> None:
    error, _ = broken(tmp_path, "  - id: is-dflash", "  - id: member")
    assert "'member' occurs twice" in error.what


def test_family_with_unknown_edit(tmp_path: Path) -> None:
    error, line = broken(
        tmp_path, "    edits: [member, is-dflash, no-draft-kv", "    edits: [membr, is-dflash, no-draft-kv"
    )
    assert f":{line}: families[0].edits[0]" in error.where
    assert "member" in error.why


def test_edit_that_no_family_uses(tmp_path: Path) -> None:
    error, _ = broken(tmp_path, "no-draft-kv, arguments-v2", "arguments-v2")
    assert error.what == "no family uses the edit 'no-draft-kv'"


def test_inserted_text_that_is_no_python(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    insert: DDTREE = auto()", "    insert: DDTREE = auto(")
    assert f":{line}: edits[0].insert" in error.where
    assert "not valid Python" in error.what


def test_statement_that_is_two(tmp_path: Path) -> None:
    error, line = broken(tmp_path, "    statement: NONE = auto()", '    statement: "NONE = auto(); A = 1"')
    assert f":{line}: edits[0].statement" in error.where


def test_file_in_two_patches(tmp_path: Path) -> None:
    error, _ = broken(tmp_path, "      - __init__.py\n", "      - __init__.py\n      - srt/speculative/spec_info.py\n")
    assert "already in patch" in error.what


def test_edit_of_a_file_that_no_patch_has(tmp_path: Path) -> None:
    error, _ = broken(tmp_path, "      - __init__.py\n", "      - other.py\n")
    assert error.what == "no patch has the file __init__.py"


@pytest.mark.parametrize(
    ("text", "what"), [("a: [1", "not valid YAML"), ("", "expected `object`"), ("- 1\n", "expected")]
)
def test_not_a_recipe_at_all(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=what):
        load_recipe(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        load_recipe(tmp_path / "recipe.yaml")
