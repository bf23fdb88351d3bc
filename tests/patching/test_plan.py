"""From a host's files to a plan: recorded, merged, nothing to do, or refused with base, ours, theirs and the line."""

from __future__ import annotations

import ast
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.errors import AnchorNotFound, PatchConflict, Refused
from ddtree_ops.patching import PatchPlan, Recipe, Series, decide, make_git_series, plan_patch, select_series
from ddtree_ops.patching.series import series_files
from ddtree_ops.patching.text import sha256
from tests.patching import minisglang
from tests.patching.conftest import PATCHES
from tests.patching.minisglang import FILES, RUN, SPEC, replaced

Files = Mapping[str, bytes]


def done(files: Files, plan: PatchPlan) -> dict[str, bytes]:
    """The files after the plan."""
    return {**files, **{change.path: change.after_bytes for change in plan.changes}}


def test_pristine_files_get_the_recorded_result(recipe: Recipe, mini: Series) -> None:
    plan = plan_patch(recipe, mini, FILES)
    assert {change.path: change.how for change in plan.changes} == dict.fromkeys((SPEC, RUN, "__init__.py"), "recorded")
    for change in plan.changes:
        recorded = mini.file(change.path)
        assert recorded is not None
        assert (change.before_sha, change.after_sha) == (recorded.before, recorded.after)
        assert sha256(change.after_bytes) == change.after_sha
    assert plan.diff.count("diff --git") == 3
    assert decide(recipe, mini, FILES).outcome == "APPLY"


def test_patched_source_does_what_it_says(recipe: Recipe, mini: Series) -> None:
    """The small tree is runnable: DDTREE reaches the hook, everything else is as before."""
    after = done(FILES, plan_patch(recipe, mini, FILES))
    calls: list[tuple[object, ...]] = []
    hook = types.SimpleNamespace(
        handle_server_args=lambda *a: calls.append(("args", *a)),
        create_worker=lambda *a: calls.append(("worker", *a)),
        verify_width=lambda *a: calls.append(("width", *a)),
        make_dummy_verify_input=lambda *a: calls.append(("dummy", *a)),
        make_capture_verify_input=lambda *a: calls.append(("capture", a[1])),
    )
    imports = "from sglang.srt.speculative.ddtree import hook"
    scope: dict[str, Any] = {"hook": hook}
    for path in (SPEC, RUN):
        exec(compile(after[path].decode().replace(imports, "pass"), path, "exec"), scope)
    ddtree, dflash = (scope["SpeculativeAlgorithm"][name] for name in ("DDTREE", "DFLASH"))
    assert ddtree.is_dflash()
    assert not ddtree.has_draft_kv()
    assert dflash.has_draft_kv()
    ddtree.handle_server_args("a")
    ddtree.create_worker("b")
    ddtree.get_num_tokens_per_req_for_target_verify(7, True)
    scope["create_dummy_verify_input"](ddtree, "mask", 7, False)
    runner = scope["DecodeCudaGraphRunner"]()
    for draft in (False, True):
        runner.model_runner = types.SimpleNamespace(spec_algorithm=ddtree, is_draft_worker=draft)
        assert runner.get_spec_info(5) == (5 if draft else None)
    assert calls == [("args", "a"), ("worker", "b"), ("width", 7, True), ("dummy", 7, "mask", False), ("capture", 5)]
    assert dflash.handle_server_args("a") == ["dflash"]
    assert dflash.get_num_tokens_per_req_for_target_verify(7, True) == 7
    assert scope["helper"]([1, 2]) == 3


def test_second_run_is_a_noop(recipe: Recipe, mini: Series) -> None:
    after = done(FILES, plan_patch(recipe, mini, FILES))
    decision = decide(recipe, mini, after)
    assert decision.outcome == "NOOP"
    assert decision.plan is not None
    assert decision.plan.noop
    assert decision.plan.diff == ""
    assert {status.state for status in decision.statuses} == {"patched"}


def test_half_patched_is_finished_as_one(recipe: Recipe, mini: Series) -> None:
    """Some files patched, some pristine (a run that was cut): the rest follows, the done ones stay."""
    after = done(FILES, plan_patch(recipe, mini, FILES))
    plan = plan_patch(recipe, mini, {**FILES, SPEC: after[SPEC]})
    assert [change.path for change in plan.changes] == [RUN, "__init__.py"]
    assert plan.hash == plan_patch(recipe, mini, FILES).hash


FAR = ("def helper(values):\n    total = 0\n", "def helper(values):\n    total = 100\n")


def test_local_edit_far_away_merges_the_same_with_and_without_base(recipe: Recipe, mini: Series) -> None:
    ours = replaced(*FAR)
    alone, three_way = plan_patch(recipe, mini, ours), plan_patch(recipe, mini, ours, base=FILES)
    assert alone.changes == three_way.changes
    change = next(change for change in alone.changes if change.path == SPEC)
    assert change.how == "merged"
    recorded = done(FILES, plan_patch(recipe, mini, FILES))[SPEC]
    assert change.after_bytes == recorded.replace(FAR[0].encode(), FAR[1].encode())
    assert decide(recipe, mini, ours).outcome == "MERGE"
    assert decide(recipe, mini, done(ours, alone)).outcome == "NOOP"


def test_local_lines_above_shift_everything(recipe: Recipe, mini: Series) -> None:
    ours = replaced(
        "from enum import Enum, auto\n",
        "from enum import Enum, auto\n\nLOCAL = 1\n\n\ndef local():\n    return LOCAL\n",
    )
    change = plan_patch(recipe, mini, ours).changes[0]
    assert change.after_bytes.replace(b"\n\nLOCAL = 1\n\n\ndef local():\n    return LOCAL", b"") == mini.result(
        SPEC, FILES[SPEC]
    )


def test_wrong_base_bytes_are_not_believed(recipe: Recipe, mini: Series) -> None:
    ours = replaced(*FAR)
    assert plan_patch(recipe, mini, ours, base={SPEC: b"x = 1\n"}).changes == plan_patch(recipe, mini, ours).changes


SAME_REGION = (
    "        assert not self.is_none()\n\n        if self.is_dflash():\n            # V2",
    "        assert not self.is_none()\n        trace(server_args)\n        if self.is_dflash():\n            # V2",
)


@pytest.mark.parametrize("with_base", [False, True])
def test_local_edit_in_the_same_region_is_refused(recipe: Recipe, mini: Series, with_base: bool) -> None:
    ours = replaced(*SAME_REGION)
    with pytest.raises(PatchConflict) as caught:
        plan_patch(recipe, mini, ours, base=FILES if with_base else None)
    error = caught.value
    details = error.details
    assert error.exit_code == 4
    assert details["file"] == SPEC
    assert details["function"] == "SpeculativeAlgorithm.create_worker"
    assert "trace(server_args)" in details["ours"]
    assert "trace(server_args)" not in details["base"]
    assert "hook.create_worker(server_args)" in details["theirs"]
    assert "hook.create_worker(server_args)" not in details["base"]
    shown = details["ours"].splitlines()
    lines = ours[SPEC].decode().splitlines()
    assert lines[details["line"] - 1 : details["line"] - 1 + len(shown)] == shown
    assert error.where == f"{SPEC}:{details['line']} in SpeculativeAlgorithm.create_worker"


def test_changed_anchor_statement_is_refused_with_all_three_sides(recipe: Recipe, mini: Series) -> None:
    ours = replaced("            # V2 drives", "            # v2 drives")
    ours = replaced(
        "        if self.is_dflash():\n            # v2",
        "        if self.is_dflash() and True:\n            # v2",
        files=ours,
    )
    with pytest.raises(PatchConflict) as caught:
        plan_patch(recipe, mini, ours)
    assert "if self.is_dflash() and True:" in caught.value.details["ours"]
    assert "if self.is_dflash():" in caught.value.details["base"]
    assert 'if self.name == "DDTREE":' in caught.value.details["theirs"]
    assert "statement `if self.is_dflash(): ...` does not" in caught.value.why


def test_all_conflicting_files_are_listed(recipe: Recipe, mini: Series) -> None:
    ours = replaced(
        "        spec_info = None\n        if self",
        "        spec_info = 0\n        if self",
        RUN,
        files=replaced(*SAME_REGION),
    )
    decision = decide(recipe, mini, ours)
    assert decision.outcome == "REFUSE"
    assert decision.error is not None
    assert [item["file"] for item in decision.error.details["files"]] == [SPEC, RUN]


def test_moved_method_is_found_by_name_not_by_context(recipe: Recipe, mini: Series) -> None:
    """An operator moved a look-alike of create_worker above the real one. A patch tool that looks for context puts the
    dispatch into the look-alike; here it stays in the named class (field case B3, shifted context)."""
    text = FILES[SPEC].decode()
    start, stop = text.index("class Unrelated:"), text.index("def helper")
    unrelated = text[start:stop]
    moved = text.replace(unrelated, "").replace("class SpeculativeAlgorithm", unrelated + "class SpeculativeAlgorithm")
    change = plan_patch(recipe, mini, {**FILES, SPEC: moved.encode()}).changes[0]
    tree = ast.parse(change.after_bytes)
    holders = {node.name for node in tree.body if "hook.create_worker" in ast.unparse(node)}  # type: ignore[attr-defined]
    assert holders == {"SpeculativeAlgorithm"}


def test_text_that_merges_but_means_something_else_is_refused(recipe: Recipe, mini: Series) -> None:
    """Far from the hunk's lines, an early return makes the dispatch dead code: clean merge, refused by the check."""
    ours = replaced("        log = []\n", "        return []\n")
    with pytest.raises(PatchConflict, match="arguments-v2"):
        plan_patch(recipe, mini, ours, base=FILES)


def test_crlf_host_stays_crlf(recipe: Recipe, mini: Series) -> None:
    ours = {path: data.replace(b"\n", b"\r\n") for path, data in FILES.items()}
    decision = decide(recipe, mini, ours)
    assert decision.outcome == "MERGE"
    assert {status.state for status in decision.statuses} == {"crlf"}
    assert decision.plan is not None
    for change in decision.plan.changes:
        assert change.after_bytes == mini.result(change.path, FILES[change.path]).replace(b"\n", b"\r\n")


def test_crlf_with_local_edit(recipe: Recipe, mini: Series) -> None:
    ours = {path: data.replace(b"\n", b"\r\n") for path, data in replaced(*FAR).items()}
    for base in (None, FILES):
        change = plan_patch(recipe, mini, ours, base=base).changes[0]
        assert change.after_bytes.count(b"\n") == change.after_bytes.count(b"\r\n")
        assert b"total = 100\r\n" in change.after_bytes


def test_native_ddtree_is_refused(recipe: Recipe, mini: Series) -> None:
    """A later release, or a foreign patch, that has the member already (field case B9)."""
    ours = replaced("    EAGLE = auto()\n", "    EAGLE = auto()\n    DDTREE = auto()\n")
    with pytest.raises(Refused, match="already has a DDTREE") as caught:
        plan_patch(recipe, mini, ours)
    assert caught.value.reason == "ddtree_native"


def test_another_version_of_our_patch_is_refused(recipe: Recipe, mini: Series) -> None:
    after = done(FILES, plan_patch(recipe, mini, FILES))
    ours = replaced("hook.verify_width(num_draft_tokens, is_draft_worker)", "hook.width(num_draft_tokens)", files=after)
    decision = decide(recipe, mini, ours)
    assert decision.error is not None
    assert decision.error.reason == "patched_other_version"
    assert {status.path: status.state for status in decision.statuses}[SPEC] == "patched-other-version"


def test_patched_with_local_edits_is_not_patched_twice(recipe: Recipe, mini: Series) -> None:
    after = done(FILES, plan_patch(recipe, mini, FILES))
    decision = decide(recipe, mini, replaced(*FAR, files=after))
    assert decision.outcome == "NOOP"
    assert decision.statuses[0].detail == "with local edits"


def test_absent_file(recipe: Recipe, mini: Series) -> None:
    ours = {path: data for path, data in FILES.items() if path != RUN}
    with pytest.raises(AnchorNotFound, match="does not exist in this SGLang"):
        plan_patch(recipe, mini, ours)


def test_unparsable_host_file(recipe: Recipe, mini: Series) -> None:
    with pytest.raises(AnchorNotFound, match="is not valid Python"):
        plan_patch(recipe, mini, {**FILES, SPEC: FILES[SPEC] + b"def (\n"})


def test_unknown_release_is_made_from_the_recipe(recipe: Recipe, mini: Series) -> None:
    plan = plan_patch(recipe, None, FILES)
    assert {change.how for change in plan.changes} == {"created"}
    assert plan.series == ""
    assert plan.after == plan_patch(recipe, mini, FILES).after


def test_release_without_the_surface(recipe: Recipe) -> None:
    """0.5.10 and older have no DFLASH: the refusal says which anchor each family misses."""
    ours = replaced("            from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2\n", "")
    with pytest.raises(AnchorNotFound, match="does not know this SGLang") as caught:
        plan_patch(recipe, None, ours)
    assert set(caught.value.details["families"]) == {"v1", "v2"}


def test_select_by_content(recipe: Recipe, mini: Series, mini_folder: Path) -> None:
    folder = mini_folder.parent
    hashes = {path: sha256(data) for path, data in FILES.items()}
    chosen = select_series(folder, hashes)
    assert chosen is not None
    assert chosen.name == mini.name
    after = done(FILES, plan_patch(recipe, mini, FILES))
    assert select_series(folder, {path: sha256(data) for path, data in after.items()}) is not None
    one = select_series(folder, {**dict.fromkeys(hashes, None), RUN: hashes[RUN]})
    assert one is not None
    assert select_series(folder, dict.fromkeys(hashes, None)) is None
    assert select_series(folder, dict.fromkeys(hashes, "0" * 64)) is None


def test_two_series_that_fit_alike_are_no_answer(recipe: Recipe, mini_folder: Path) -> None:
    """Same files under two release names: choosing one would be a guess."""
    twin = make_git_series(recipe, minisglang.tree(version="0.5.98"))
    folder = mini_folder.parent / twin.name
    folder.mkdir()
    for name, data in series_files(twin).items():
        (folder / name).write_bytes(data)
    assert select_series(mini_folder.parent, {path: sha256(data) for path, data in FILES.items()}) is None


def test_small_tree_is_none_of_the_committed_releases() -> None:
    assert select_series(PATCHES, {path: sha256(data) for path, data in minisglang.FILES.items()}) is None
