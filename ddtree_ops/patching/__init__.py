"""The patch: recipe of anchors, git-format series, exact application, three-way merge, compatibility matrix.

Values in, values out; nothing here knows a host. What the planner uses::

    recipe = load_recipe(patches / "recipe.yaml")
    series = select_series(patches, anchor_hashes)            # by content
    plan = plan_patch(recipe, series, host_bytes, base=...)   # or PatchConflict, AnchorNotFound, Refused
    payload = load_payload(recipe)
    build_id(base_hash, series, payload)
"""

from __future__ import annotations

from .payload import Payload, build_id, build_json, load_payload, release_id
from .plan import Decision, FileChange, PatchPlan, decide, load_all, plan_patch, select_series
from .recipe import Recipe, load_recipe, recognised_paths, touched_paths
from .series import Series, load_series, make_git_series
from .states import FileStatus, PayloadStatus, payload_status
from .trees import content_hash, open_tree

__all__ = [
    "Decision",
    "FileChange",
    "FileStatus",
    "PatchPlan",
    "Payload",
    "PayloadStatus",
    "Recipe",
    "Series",
    "build_id",
    "build_json",
    "content_hash",
    "decide",
    "load_all",
    "load_payload",
    "load_recipe",
    "load_series",
    "make_git_series",
    "open_tree",
    "payload_status",
    "plan_patch",
    "recognised_paths",
    "release_id",
    "select_series",
    "touched_paths",
]
