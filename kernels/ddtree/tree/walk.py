"""Acceptance oracles: which path of a tree the target confirms, in two independent ways."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .definition import NO_NODE, Tree


def accept(tree: Tree, target: Sequence[int], stops: Collection[int] = ()) -> tuple[tuple[int, ...], int]:
    """Walk by parents; ``target[i]`` is the token the target puts after node ``i``.

    Returns ``(path, bonus)``: the accepted nodes, root first, and the target's token after the last of them. At the
    current node take the target's token and go to the child that carries it; stop where there is none. With greedy
    tokens the output equals greedy decoding; with tokens *sampled* from the target at every node it has exactly the
    target's distribution. A token of ``stops`` ends the path as its bonus: nothing is committed behind it.
    """
    path = [0]
    while True:
        here = path[-1]
        if target[here] in stops:
            return tuple(path), target[here]
        following = [i for i in range(1, len(tree)) if tree.parent[i] == here and tree.token[i] == target[here]]
        if not following:
            return tuple(path), target[here]
        path.append(following[0])


def links(tree: Tree) -> tuple[list[int], list[int]]:
    """Return ``(next_token, next_sibling)``: first child and next sibling of every node, -1 where there is none."""
    next_token = [NO_NODE] * len(tree)
    next_sibling = [NO_NODE] * len(tree)
    last_child: dict[int, int] = {}
    for node in range(1, len(tree)):
        parent = tree.parent[node]
        if parent in last_child:
            next_sibling[last_child[parent]] = node
        else:
            next_token[parent] = node
        last_child[parent] = node
    return next_token, next_sibling


def accept_by_links(
    token: Sequence[int], next_token: Sequence[int], next_sibling: Sequence[int], target: Sequence[int]
) -> tuple[tuple[int, ...], int]:
    """The walk as SGLang's greedy verify kernel does it, over child and sibling links."""
    path = [0]
    while True:
        here = path[-1]
        child = next_token[here]
        while child != NO_NODE and token[child] != target[here]:
            child = next_sibling[child]
        if child == NO_NODE:
            return tuple(path), target[here]
        path.append(child)
