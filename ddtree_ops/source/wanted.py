"""What the caller wants, and the series it has: the inputs of the verdict beside the facts."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..model import Value


class WantedService(Value, frozen=True, kw_only=True):
    """The service that is to run, as far as it decides which SGLang is meant.

    ``environment`` is a prefix or an interpreter of the inventory, ``takeover`` the unit (or pid) to replace; both may
    be empty.
    """

    environment: str = ""
    takeover: str = ""
    port: int = 0
    working_directory: str = ""
    variables: dict[str, str] = msgspec.field(default_factory=dict)


class SeriesKey(Value, frozen=True, kw_only=True):
    """What recognises a series of ``patches/``: the content it was made from, and its files before and after."""

    name: str  # folder, "sglang-0.5.20"
    release: str
    spec: Literal["v1", "v2"]
    content_hash: str
    before: dict[str, str] = msgspec.field(default_factory=dict)  # what it changes and what identifies it -> SHA-256
    after: dict[str, str] = msgspec.field(default_factory=dict)  # what it changes -> SHA-256
