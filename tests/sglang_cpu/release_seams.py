#!/usr/bin/env python3
"""What DDTREE's request adapters find in an SGLang release that no server runs here; needs it first on PYTHONPATH.

    release_seams.py PAYLOAD_FOLDER        prints JSON; run with the CPU environment's Python

A batch that wants log-probabilities goes through the release's own DFLASH worker as far as the target's prefill, and
through its own function for accepted tokens, on random numbers.
"""

import json
import pathlib
import sys
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))
import cpu_stubs  # noqa: F401  before SGLang, which imports torchvision
import torch


class Reached(Exception):
    """The target's prefill was called; carries what it saw."""


def prefill(logprobs):
    """Return whether the release's worker hands a batch on to the target as one that wants log-probabilities."""
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    def target(batch, **kwargs):
        del kwargs
        raise Reached(batch.return_logprob)

    worker = SimpleNamespace(
        _validate_phase1_sampling_support=logprobs.restore,
        target_worker=SimpleNamespace(forward_batch_generation=target),
    )
    batch = SimpleNamespace(return_logprob=True, forward_mode=SimpleNamespace(is_extend=lambda: True))
    try:
        with logprobs.through_prefill(batch):
            DFlashWorkerV2.forward_batch_generation(worker, batch, on_publish=None)
    except Reached as reached:
        return reached.args[0] and batch.return_logprob
    return False


def accepted(logprobs):
    """Return the largest error of the log-probabilities that the release computes along a path."""
    bs, width, vocab = 2, 5, 11
    path = torch.tensor([[0, 2, 4, 3], [0, 1, 2, 3]])
    logits, target = torch.randn(bs * width, vocab), torch.randint(0, vocab, (bs, width))
    temperatures = torch.tensor([[0.7], [1.0]])
    batch = SimpleNamespace(
        seq_lens=torch.tensor([3, 4]),
        sampling_info=SimpleNamespace(is_all_greedy=False, temperatures=temperatures),
        top_logprobs_nums=[2, 0],
        token_ids_logprobs=[None, [1, 2]],
    )
    out = SimpleNamespace(next_token_logits=logits)
    logprobs.add(batch, out, target, path)
    law = torch.log_softmax(logits.view(bs, width, vocab) / temperatures[:, None], -1)
    rows = law.gather(1, path[:, :, None].expand(-1, -1, vocab))
    expected = rows.gather(2, target.gather(1, path)[:, :, None]).squeeze(2)
    return float((out.next_token_logprobs - expected).abs().max())


def main(payload):
    sys.path.insert(0, payload)
    from ddtree.adapters import grammar, logprobs
    from sglang.version import __version__

    found = {"version": __version__, "logprobs": logprobs.served(), "grammars": grammar.served()}
    json.dump({**found, "prefill": prefill(logprobs), "error": accepted(logprobs)}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
