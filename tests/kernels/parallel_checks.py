"""Checks of what tensor-parallel ranks share, by real processes that talk through gloo.

    parallel_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python. A stand-in for SGLang's group coordinator passes every call on to torch.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.adapters import parallel
from ddtree.adapters.parallel import AGREE_EVERY, Followed, Ranks
from ddtree.control.choice import AUTO, Choice, Chooser
from ddtree.control.ladder import Ladder

SIZE = 3


class Group:
    """What ``Ranks`` uses of SGLang's ``GroupCoordinator``."""

    def __init__(self) -> None:
        self.world_size, self.rank_in_group = dist.get_world_size(), dist.get_rank()
        self.ranks = list(range(self.world_size))

    def all_gather_object(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value)
        return found

    def broadcast_object(self, value: Any, src: int) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=src)
        return box[0]

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        dist.broadcast(tensor, src=src)
        return tensor

    def all_gather_into_tensor(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        dist.all_gather_into_tensor(out, mine)


def _start(task: str, rank: int, store: str, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=SIZE)
    try:
        queue.put((rank, TASKS[task](Ranks(Group()))))
    except Exception:
        queue.put((rank, traceback.format_exc()))
    dist.barrier()
    dist.destroy_process_group()


def _everywhere(task: str, **variables: str) -> list[Any]:
    """Run a task in ``SIZE`` processes; its results by rank."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    os.environ.update(variables)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [context.Process(target=_start, args=(task, rank, store, queue)) for rank in range(SIZE)]
        for process in processes:
            process.start()
        for name in variables:
            del os.environ[name]
        try:
            found = dict(queue.get(timeout=120) for _ in processes)
        finally:
            for process in processes:
                process.join(30)
                process.kill()
    for answer in found.values():
        assert not (isinstance(answer, str) and answer.startswith("Traceback")), answer
    return [found[rank] for rank in range(SIZE)]


def _agree(ranks: Ranks) -> list[tuple[int, ...]]:
    """Wish for something else on every rank, and for something new at step 10."""
    return [ranks.agree((100 * (ranks.rank + 1) + (step >= 10), ranks.rank)) for step in range(40)]


def check_the_first_rank_decides_for_all_at_the_same_step(device: str) -> None:
    """Ranks that take up a new budget at different steps build different trees, and wait for each other for ever."""
    found = _everywhere("agree")
    assert found[0] == found[1] == found[2]
    assert found[0][0] == (100, 0)
    change = next(step for step, values in enumerate(found[0]) if values == (101, 0))
    assert 10 < change <= 10 + 2 * AGREE_EVERY
    assert set(found[0]) == {(100, 0), (101, 0)}


class _Automatic:
    """A controller that wants another budget on every rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.asked = rank, 0

    def choose(self, batch: int) -> Choice:
        self.asked += 1
        return Choice(33, 20 + self.rank + batch, False, "cost")


def _choose(ranks: Ranks) -> tuple[list[Choice], int]:
    chooser = Chooser(32, 15)
    automatic = _Automatic(ranks.rank)
    chooser.use(Ladder.of([16, 24, 33]), Followed(automatic, chooser))
    found = []
    for step in range(60):
        budget = 7 if step + ranks.rank > 20 else None  # the file's change is seen one step apart
        control = SimpleNamespace(budget=AUTO if step >= 40 else budget, mode="tree")
        found.append(ranks.choose(chooser, 1 if step < 50 else 2, control, None))
    return found, automatic.asked


def check_choices_follow_the_first_rank(device: str) -> None:
    """Control file and measured controller of other ranks have no say; widths are chosen alike."""
    found = _everywhere("choose")
    assert found[0][0] == found[1][0] == found[2][0]
    choices = found[0][0]
    assert (choices[0].budget, choices[0].width) == (32, 33)
    assert (choices[35].budget, choices[35].width) == (7, 16)
    assert (choices[49].budget, choices[49].width) == (21, 24)
    assert choices[-1].budget == 22
    assert [asked for _, asked in found] == [20, 0, 0]  # only while the choice is left to it


def _tokens(ranks: Ranks) -> dict[str, list[int]]:
    sampled = torch.arange(4) + 10 * ranks.rank
    narrow = SimpleNamespace(
        next_token_ids=torch.tensor([1 + ranks.rank, 2], dtype=torch.int32),
        next_draft_input=SimpleNamespace(bonus_tokens=torch.tensor([1 + ranks.rank, 2])),
    )
    tokens = torch.tensor([5 + ranks.rank])
    shared = SimpleNamespace(next_token_ids=tokens, next_draft_input=SimpleNamespace(bonus_tokens=tokens))
    ranks.same_tokens(sampled)
    ranks.same_first_tokens(narrow)
    ranks.same_first_tokens(shared)
    ranks.same_first_tokens(SimpleNamespace(next_token_ids=None))
    return {
        "sampled": sampled.tolist(),
        "narrow": narrow.next_token_ids.tolist() + narrow.next_draft_input.bonus_tokens.tolist(),
        "shared": tokens.tolist(),
        "object": ranks.share({"rank": ranks.rank})["rank"],
    }


def check_samples_are_the_first_rank_s(device: str) -> None:
    """Also where the next step's tokens are another tensor of another type."""
    expected = {"sampled": [0, 1, 2, 3], "narrow": [1, 2, 1, 2], "shared": [5], "object": 0}
    assert _everywhere("tokens") == [expected] * SIZE


def _shard(ranks: Ranks) -> list[Any]:
    """Shards of 10 tokens padded to 12, the last rank's shorter; then a head that every rank holds whole."""
    first = 4 * ranks.rank
    indices = SimpleNamespace(org_vocab_start_index=first, num_org_elements_padded=4)
    found: list[Any] = [ranks.shard(SimpleNamespace(shard_indices=indices), min(4, 10 - first))]
    for bad in (
        SimpleNamespace(),
        SimpleNamespace(shard_indices=SimpleNamespace(**{**vars(indices), "org_vocab_start_index": 0})),
    ):
        try:
            ranks.shard(bad, 4)
            found.append("accepted")
        except ValueError as error:
            found.append(str(error))
    return found


def check_shards_are_those_of_the_head(device: str) -> None:
    """Offsets from the head itself; a head that is not split would give every token as often as there are ranks."""
    for rank, (shard, *refusals) in enumerate(_everywhere("shard")):
        assert (shard.first, shard.rows, shard.most_rows, shard.vocab) == (4 * rank, 4 if rank < 2 else 2, 4, 10)
        assert all("do not divide the vocabulary" in text for text in refusals), refusals


def _compare(ranks: Ranks) -> list[str | None]:
    """Equal arrays, arrays of which one rank's differs in one element, arrays of another shape."""
    assert ranks.compares
    rows = torch.arange(12).view(3, 4)
    odd = rows.clone()
    odd[2, 3] += ranks.rank == 1
    cases: list[torch.Tensor] = [rows, odd, rows[: 3 - (ranks.rank == 2)]]
    found: list[str | None] = []
    for case in cases:
        try:
            ranks.compare(root=rows, path=case)
            found.append(None)
        except RuntimeError as error:
            found.append(str(error))
    try:
        ranks.must_equal("whether it rains", ranks.rank > 0)
    except RuntimeError as error:
        found.append(str(error))
    return found


def check_the_first_difference_ends_every_rank(device: str) -> None:
    """A rank that goes on alone waits for the others for ever; the message names rank, array and step."""
    for answers in _everywhere("compare", **{parallel.ENV_COMPARE: "1"}):
        assert answers[0] is None
        assert "rank 1 and rank 0 differ in 'path' at step 2" in str(answers[1])
        assert "rank 2 and rank 0 differ in 'path' at step 3" in str(answers[2])
        assert "whether it rains differs between tensor-parallel ranks: [False, True, True]" in str(answers[3])


def check_one_rank_exchanges_nothing(device: str) -> None:
    """Without tensor parallelism there is no group to talk through, and nothing may be lost on the way."""
    ranks = Ranks(SimpleNamespace(world_size=1, rank_in_group=0))
    chooser = Chooser(32, 15)
    chooser.use(Ladder.of([16, 33]), _Automatic(0))
    tokens = torch.tensor([3])
    assert ranks.shard(object(), 7) is None
    assert ranks.same_tokens(tokens) is tokens
    assert ranks.agree((4, 5)) == (4, 5)
    assert ranks.choose(chooser, 1, SimpleNamespace(budget=AUTO, mode="tree"), None).budget == 21
    assert not ranks.compares


TASKS: dict[str, Callable[[Ranks], Any]] = {
    "agree": _agree,
    "choose": _choose,
    "tokens": _tokens,
    "shard": _shard,
    "compare": _compare,
}
CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    run(CHECKS, "cpu")
