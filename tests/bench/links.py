"""A connection to a host without a host: the program's verbs run in this process, errors come back as they would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddtree_ops.errors import from_remote
from ddtree_ops.host import load  # noqa: F401  registers the verbs
from ddtree_ops.host.protocol import HostError, dispatch


class DirectLink:
    """``call`` as in ``remote.channel.Link``; ``events`` keeps what was emitted."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def call(
        self,
        verb: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = 600.0,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        def emit(event: dict[str, Any]) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        try:
            return dispatch(verb, params or {}, emit)
        except HostError as error:
            raise from_remote(error.as_dict()) from error
