"""Results of the public DDTree reference (liranringel/ddtree): ``benchmark.py --save-path FILE``.

``torch.save`` of ``{"responses": [...], "block_size": ..., "args": {...}, ...}``. Each response has one object per
method: ``baseline`` (plain decoding), ``dflash``, ``ddtree_tb<budget>``, with ``output_ids`` [1, tokens] (prompt
included), ``num_input_tokens``, ``acceptance_lengths`` (per round, the root counted) and, where it was asked to trace,
``round_trees``: ``accepted_indices`` and ``tree`` with ``node_token_ids``, ``node_depths`` (without the root) and
``parents`` (with it, -1 for the root).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .imported import METHOD, Answer, Imported, budget_of, refused
from .trees import trace

SOURCE = "liranringel/ddtree benchmark.py"
_USED = {
    *("output_ids", "num_input_tokens", "acceptance_lengths", "time_per_output_token", "round_trees"),
    *("num_output_tokens", "decode_rounds"),
}


def interpret(path: Path, found: Any) -> Imported:
    """The loaded object as results. Raises :class:`Refused` for what does not fit."""
    if not isinstance(found, dict) or not {"responses", "block_size", "args"} <= found.keys():
        have = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise refused(path, f"a torch file, but not DDTree's results: it holds {have}")
    block, args = found["block_size"], found["args"]
    if not isinstance(block, int) or not isinstance(args, dict) or not isinstance(found["responses"], list):
        raise refused(path, "block_size, args and responses are not a number, a dict and a list")
    methods: dict[str, list[Answer]] = {}
    ignored: set[str] = set()
    for number, response in enumerate(found["responses"]):
        if not isinstance(response, dict):
            raise refused(path, f"response {number} is not a dict of methods")
        for name, one in response.items():
            if not METHOD.match(str(name)):
                raise refused(path, f"response {number} has an unknown method {name!r}")
            fields = vars(one) if hasattr(one, "__dict__") else {}
            ignored |= fields.keys() - _USED
            methods.setdefault(str(name), []).append(_answer(path, f"response {number}, {name}", fields, block))
    if not methods:
        raise refused(path, "it has no responses")
    names = ("model_name_or_path", "draft_name_or_path", "dataset", "temperature", "max_new_tokens", "max_samples")
    conditions = {name: args.get(name) for name in names}
    conditions |= {name: found.get(name) for name in ("target_attn_implementation", "draft_attn_implementation")}
    return Imported(path, SOURCE, block, conditions, methods, ignored=tuple(sorted(ignored)))


def _answer(path: Path, where: str, fields: Mapping[str, Any], block: int) -> Answer:
    ids, start, accepted = (fields.get(name) for name in ("output_ids", "num_input_tokens", "acceptance_lengths"))
    if not _is_rows(ids) or not isinstance(start, int) or not _is_ints(accepted):
        raise refused(
            path, f"{where}: output_ids, num_input_tokens or acceptance_lengths is missing or of another form"
        )
    assert isinstance(ids, list)
    assert isinstance(accepted, list)
    row = ids[0]
    if not 0 < start < len(row) or any(not 1 <= one <= block for one in accepted):
        raise refused(path, f"{where}: the lengths do not fit a prompt of {start} and blocks of {block} tokens")
    if sum(accepted) + 1 < len(row) - start:
        raise refused(path, f"{where}: {len(row) - start} new tokens in rounds that give {sum(accepted) + 1}")
    seconds = fields.get("time_per_output_token")
    trees = fields.get("round_trees")
    if trees is not None and len(trees) != len(accepted):
        raise refused(path, f"{where}: {len(trees)} trees for {len(accepted)} rounds")
    return Answer(row[:start], row[start:], accepted, float(seconds) if isinstance(seconds, float) else None, trees)


def _is_ints(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in found)


def _is_rows(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 1 and _is_ints(found[0])


def records(found: Imported, name: str, answers: Sequence[Answer]) -> list[Any]:
    """The rounds of one method as ``ddtree-trace/1``; candidates, scores and the target's other choices are unknown.

    Raises:
        Refused: a tree does not fit the output.
    """
    temperature = float(found.conditions.get("temperature") or 0.0)
    records: list[Any] = [
        trace.TraceHeader(
            model=str(found.conditions.get("model_name_or_path")),
            draft=str(found.conditions.get("draft_name_or_path")),
            engine="liranringel/ddtree",
            version="",
            block_size=found.block_size or 0,
            budget=budget_of(name) or 0,
            tie_rule="score-desc/rank-lex/prefix-first/float64",
            dtype="bfloat16",
            extra={"mode": "tree", "imported": found.path.name},
        )
    ]
    for number, answer in enumerate(answers):
        req = f"{name}-{number}"
        digest = trace.prompt_digest(answer.prompt)
        records.append(trace.TraceRequest(req, len(answer.prompt), digest, temperature, str(number)))
        records += _rounds(found.path, req, answer, temperature)
        records.append(trace.TraceAnswer(req, answer.output, len(answer.accepted), "unknown"))
    return records


def _rounds(path: Path, req: str, answer: Answer, temperature: float) -> list[Any]:
    """The rounds whose tokens the output still has: it is cut at the first stop token and at the limit."""
    found = []
    at = 0  # of the root, in the new tokens
    for number, (length, recorded) in enumerate(zip(answer.accepted, answer.trees or (), strict=False)):
        if at + length >= len(answer.output):
            break
        one = _round(path, f"{req}, round {number}", recorded, answer.output[at], length)
        token, parent, depth, accepted = one
        path_tokens = [token[node] for node in accepted]
        if path_tokens != answer.output[at : at + length]:
            raise refused(path, f"{req}, round {number}: the accepted nodes are not the output's tokens")
        bonus = answer.output[at + length]
        target = [-1] * len(token)
        for node, after in zip(accepted, [*path_tokens[1:], bonus], strict=True):
            target[node] = after
        found.append(
            trace.TraceRound(
                req=req,
                round=number,
                start=len(answer.prompt) + at,
                bonus_in=answer.output[at],
                ids=[],
                lp_bits=[],
                token=token,
                parent=parent,
                depth=depth,
                rank=[],
                score_q32=[],
                target=target,
                accepted=accepted,
                emitted=[*path_tokens[1:], bonus],
                bonus_out=bonus,
                extra={"mode": "tree", "temperature": temperature},
            )
        )
        at += length
    return found


def _round(path: Path, where: str, recorded: Any, root: int, length: int) -> tuple[list[int], ...]:
    """Token, parent and depth of every node, root first, and the accepted nodes."""
    outer: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    tree: dict[str, Any] = outer["tree"] if isinstance(outer.get("tree"), dict) else {}
    columns: list[Any] = [tree.get(name) for name in ("node_token_ids", "node_depths", "parents")]
    if not all(map(_is_ints, [*columns, outer.get("accepted_indices")])):
        raise refused(path, f"{where}: no tree of node_token_ids, node_depths, parents and accepted_indices")
    tokens, depths, parents = columns
    accepted: list[int] = outer["accepted_indices"]
    if len(parents) != len(tokens) + 1 or len(depths) != len(tokens) or parents[0] != -1:
        raise refused(path, f"{where}: the arrays of its tree do not fit each other")
    if not accepted or accepted[0] != 0 or len(accepted) != length or max(accepted) > len(tokens):
        raise refused(path, f"{where}: the accepted nodes do not begin at the root, or are not as many as counted")
    return [root, *tokens], [0, *parents[1:]], [0, *depths], list(accepted)
