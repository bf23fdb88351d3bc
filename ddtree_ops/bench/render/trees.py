"""A recorded draft tree as a drawing: depth from left to right, siblings from best to worst, the accepted path bold.

Reads ``ddtree-trace/1`` (one JSON object per line). A file that is not that, or whose indices do not fit together, is
refused by name; a report then says so instead of drawing a guess.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from markupsafe import Markup

from ...errors import ConfigError
from ...model import Value
from .svg import document, el, tip
from .text import visible

SCHEMA = "ddtree-trace/1"
MOST_BYTES = 64 * 1024 * 1024
MOST_NODES = 1024
TEXTS = "texts.json"  # beside the traces: what tokens say, by id
MOST_TOKENS = 4096
_ROW, _GAP, _LABEL = 25.0, 30.0, 7.6


class Round(Value, frozen=True, kw_only=True):
    """What of one verify round is drawn. ``texts``: the nodes' tokens decoded, empty where nobody decoded them."""

    req: str
    round: int
    start: int
    token: tuple[int, ...]
    parent: tuple[int, ...]
    depth: tuple[int, ...]
    rank: tuple[int, ...]
    accepted: tuple[int, ...]
    bonus_out: int
    mode: str = ""  # tree, chain, linear, ar; empty: not told
    texts: tuple[str, ...] = ()
    bonus_text: str = ""

    def label(self, node: int) -> str:
        """A node's token as text, else as an id."""
        return _token(self.texts[node]) if self.texts else str(self.token[node])


class Sample(Value, frozen=True, kw_only=True):
    """The round that is drawn, and what it stands for."""

    round: Round
    file: str
    rounds: int
    mean_accepted: float


def sample(paths: Sequence[Path]) -> Sample | None:
    """A typical round: among those that leave the chain of best candidates, the one nearest to the mean acceptance.

    Raises :class:`ConfigError` for a file that is not a trace.
    """
    found = [(one, path.name) for path in sorted(paths) for one in rounds(path) if one.mode in ("", "tree")]
    if not found:
        return None
    mean = statistics.fmean(len(one.accepted) - 1 for one, _ in found)
    branching = [pair for pair in found if any(pair[0].rank[node] for node in pair[0].accepted[1:])]
    chosen, file = min(branching or found, key=lambda pair: (abs(len(pair[0].accepted) - 1 - mean), pair[0].round))
    texts = _texts(paths[0].parent / TEXTS)
    return Sample(round=_told(chosen, texts), file=file, rounds=len(found), mean_accepted=mean)


def tokens_of(folder: Path) -> set[int]:
    """Tokens of the recorded trees of a result folder, of at most ``MOST_TOKENS``; those of :func:`sample` first."""
    paths = list((folder / "traces").glob("*.jsonl"))
    try:
        chosen = sample(paths)
        found = {*chosen.round.token, chosen.round.bonus_out} if chosen else set()
        for path in paths:
            for one in rounds(path):
                if len(found) > MOST_TOKENS:
                    return found
                found.update((*one.token, one.bonus_out))
    except ConfigError:
        return set()  # the report says what is wrong with the trace
    return found


def _texts(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError("the texts of the traced tokens are damaged", where=str(path), why=str(error)) from error


def _told(one: Round, texts: dict[str, str]) -> Round:
    """With its tokens as texts, where all of them are known and none was recorded."""
    found = tuple(texts.get(str(token), "") for token in one.token)
    if one.texts or not all(str(token) in texts for token in one.token):
        return one
    return msgspec.structs.replace(one, texts=found, bonus_text=texts.get(str(one.bonus_out), ""))


def rounds(path: Path) -> Iterator[Round]:
    """All rounds of a file, of which at most ``MOST_BYTES`` are read."""
    read = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            read += len(line)
            if read > MOST_BYTES or not line.endswith(b"\n"):
                return  # the rest of a large file, or a line that was cut off
            if line.strip():
                yield from _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> Iterator[Round]:
    try:
        data = msgspec.json.decode(line)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema {data.get('schema')!r}, not {SCHEMA}")
        if data.get("kind") != "round":
            return
        extra = data.get("extra") or {}
        told = {name: extra[name] for name in ("mode", "texts", "bonus_text") if name in extra}
        found = msgspec.convert({**data, **told}, Round)
        _check(found)
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError("a trace is damaged", where=where, why=str(error)) from error
    yield found


def _check(one: Round) -> None:
    size = len(one.token)
    if not 1 <= size <= MOST_NODES:
        raise ValueError(f"{size} nodes")
    if {len(one.parent), len(one.depth), len(one.rank), len(one.texts) or size} != {size}:
        raise ValueError("its lists differ in length")
    if any(not 0 <= one.parent[node] < node for node in range(1, size)):
        raise ValueError("a node does not come after its parent")
    if any(one.depth[node] != one.depth[one.parent[node]] + 1 for node in range(1, size)) or one.depth[0]:
        raise ValueError("a depth is not its parent's plus one")
    if not one.accepted or one.accepted[0] or any(not 0 <= node < size for node in one.accepted):
        raise ValueError("the accepted path does not start at the root, or leaves the tree")
    if any(one.parent[after] != node for node, after in zip(one.accepted, one.accepted[1:], strict=False)):
        raise ValueError("the accepted path is no path")


def drawing(one: Round, name: str = "plot-tree-0") -> Markup:
    """The tree as SVG at its natural size; the target's own token is a last, dashed node of the accepted path."""
    layout = _layout(one)
    path = {*one.accepted, len(one.token)}
    order = sorted(range(len(one.token) + 1), key=lambda node: node in path)  # the accepted path is drawn on top
    accepted = len(one.accepted) - 1
    return document(
        name,
        f"Draft tree of {len(one.token) - 1} nodes, {accepted} accepted",
        "Accepted: " + " ".join(one.label(node) for node in one.accepted) + f"; then {bonus(one)} by the target",
        layout.columns[-1],
        _y(max(layout.rows)) + 20,
        [
            el("g", *(_edge(layout, node, node in path) for node in order if node), class_="edges"),
            el("g", *(_node(one, layout, node, node in path) for node in order), class_="nodes"),
        ],
        look="tree",
        fixed=True,
    )


class _Layout(Value, frozen=True, kw_only=True):
    """Places of all nodes, and of the target's own token after them."""

    labels: tuple[str, ...]
    parent: tuple[int, ...]
    depth: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[float, ...]  # where each depth starts; one more for the right edge


def _layout(one: Round) -> _Layout:
    end = one.accepted[-1]
    labels = (*(one.label(node) for node in range(len(one.token))), bonus(one))
    parent, depth = (*one.parent, end), (*one.depth, one.depth[end] + 1)
    rows = _rows(parent, (*one.rank, -1))
    columns = [14.0]
    for level in range(max(depth) + 1):
        widest = max(_width(label) for label, at in zip(labels, depth, strict=True) if at == level)
        columns.append(columns[-1] + widest + _GAP)
    return _Layout(labels=labels, parent=parent, depth=depth, rows=rows, columns=tuple(columns))


def _rows(parent: Sequence[int], rank: Sequence[int]) -> tuple[int, ...]:
    """A row per leaf; a parent lies in the row of its best child, so that the chain of best candidates is straight."""
    children: list[list[int]] = [[] for _ in parent]
    for node in range(1, len(parent)):
        children[parent[node]].append(node)
    rows, free = [0] * len(parent), 0
    stack: list[int] = [0]
    while stack:  # depth first, best child first; a node takes the row that is free when it is first met
        node = stack.pop()
        rows[node] = free
        if not children[node]:
            free += 1
        stack += sorted(children[node], key=lambda child: -rank[child])
    return tuple(rows)


def _width(label: str) -> float:
    return _LABEL * len(label) + 12


def _y(row: int) -> float:
    return 18 + row * _ROW


def _edge(layout: _Layout, node: int, accepted: bool) -> Markup:
    parent = layout.parent[node]
    start = layout.columns[layout.depth[parent]] + _width(layout.labels[parent])
    end, top, low = layout.columns[layout.depth[node]], _y(layout.rows[parent]), _y(layout.rows[node])
    # All edges to one depth turn at the same place, so that siblings hang on one stem.
    d = f"M{start:.1f} {top:.1f}H{end - _GAP / 2:.1f}V{low:.1f}H{end:.1f}"
    last = node == len(layout.parent) - 1
    return el("path", d=d, class_=("bonus" if last else "accepted") if accepted else None)


def _node(one: Round, layout: _Layout, node: int, accepted: bool) -> Markup:
    label, x, y = layout.labels[node], layout.columns[layout.depth[node]], _y(layout.rows[node])
    last = node == len(one.token)
    return el(
        "g",
        tip(_words(one, node, accepted)),
        el("rect", x=x, y=y - 10, width=_width(label), height=20, rx=10 if last else 4),
        el("text", label, x=x + _width(label) / 2, y=y + 4),
        class_=("bonus" if last else "accepted") if accepted else None,
    )


def _words(one: Round, node: int, accepted: bool) -> str:
    if node == len(one.token):
        return f"token {one.bonus_out}: the target's own, by the same verify step"
    state = "root: the last accepted token" if node == 0 else "accepted" if accepted else "not accepted"
    return f"node {node}: token {one.token[node]}, depth {one.depth[node]}, rank {one.rank[node]}; {state}"


def bonus(one: Round) -> str:
    """The target's own token, as text where it was decoded."""
    return _token(one.bonus_text) if one.bonus_text else str(one.bonus_out)


def _token(text: str) -> str:
    """A token's text; blanks at its ends are part of it and are shown."""
    inner = visible(text, 18)
    return inner.replace(" ", "␣") if inner != inner.strip() or not inner else inner


def as_rows(one: Round) -> tuple[tuple[str, ...], ...]:
    """The tree as a table: node, parent, depth, rank, token, text, accepted."""
    path = set(one.accepted)
    return tuple(
        (
            str(node),
            str(one.parent[node]) if node else "",
            str(one.depth[node]),
            str(one.rank[node]),
            str(one.token[node]),
            visible(one.texts[node], 40) if one.texts else "",
            "yes" if node in path else "",
        )
        for node in range(len(one.token))
    )
