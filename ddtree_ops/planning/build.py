"""What would be built: base content, series and payload, and the identity that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import __version__
from ..model import Copy, Deployment
from ..patching import payload as payloads
from ..patching.payload import Payload
from ..patching.plan import PatchPlan
from ..patching.series import Series


@dataclass(frozen=True)
class Build:
    """One build: its parts and its names. ``files`` are the bytes to write, relative to the package root."""

    release: str
    base_hash: str
    patch_hash: str
    series: str
    build_id: str
    release_id: str
    payload: Payload = field(repr=False)
    patch: PatchPlan = field(repr=False)
    build_json: bytes = field(repr=False)

    @property
    def payload_files(self) -> dict[str, bytes]:
        """The payload and its ``_build.json``."""
        return {**self.payload.placed(), f"{self.payload.target}/{payloads.BUILD_FILE}": self.build_json}


def patch_hash(series: Series | None, patch: PatchPlan) -> str:
    """The series' hash when every file is its recorded result, else the hash of what the patch made here."""
    recorded = series is not None and all(change.how == "recorded" for change in patch.changes)
    return series.hash if series is not None and recorded else patch.hash


def make_build(live: Copy, series: Series | None, patch: PatchPlan, payload: Payload) -> Build:
    """The build that a pristine ``live`` copy, this patch and this payload give."""
    release = (series.meta.release if series is not None else "") or live.version_claimed or "unknown"
    patched = patch_hash(series, patch)
    build = payloads.build_id(live.content_hash, patched, payload)
    document = payloads.build_json(
        base_hash=live.content_hash,
        series=patched,
        payload=payload,
        patched=dict(patch.after),
        release=release,
        spec=patch.spec,
        tool_version=__version__,
        series_name=series.name if series is not None else "",
    )
    return Build(
        release=release,
        base_hash=live.content_hash,
        patch_hash=patched,
        series=series.name if series is not None else "",
        build_id=build,
        release_id=payloads.release_id(release, build),
        payload=payload,
        patch=patch,
        build_json=document,
    )


def is_current(deployment: Deployment, payload: Payload) -> bool:
    """Whether what is deployed is what this version of the tool would build on the same base."""
    return payloads.build_id(deployment.base_hash, deployment.patch_hash, payload) == deployment.build_id
