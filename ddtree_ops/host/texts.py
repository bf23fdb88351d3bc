"""What tokens say: asked of a server that runs, for people who read a recorded tree."""

from __future__ import annotations

from .http import HttpTrouble
from .load import Row, client_of
from .protocol import Emit, verb


@verb("load_texts")
def load_texts(params: Row, emit: Emit) -> Row:
    """What tokens are as text, each by itself: ``ids`` to ``texts``; no texts where the server cannot tell."""
    ids = [int(token) for token in params.get("ids") or ()]
    body = {"tokens": [[token] for token in ids], "skip_special_tokens": False}
    found = None
    if ids:
        try:
            reply = client_of(params).request("POST", "/detokenize", body, timeout=60.0)
            found = reply.json().get("text") if reply.status == 200 else None
        except (HttpTrouble, AttributeError):
            pass
    if not isinstance(found, list) or len(found) != len(ids):
        return {"texts": []}
    return {"texts": [str(text) for text in found]}
