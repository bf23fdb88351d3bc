#!/usr/bin/env python3
"""Resolve server arguments as launch_server does, without starting anything.

    resolve_arguments.py < CASES.json      run with the CPU environment's Python and a patched tree on PYTHONPATH

CASES: [{"argv": [...], "environ": {...}}, ...]; prints for each {"error": text} or {"resolved": {...}}.
"""

import json
import os
import sys

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.server_args import prepare_server_args

SHOWN = (
    "speculative_algorithm",
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "attention_backend",
    "max_running_requests",
    "api_key",
)


def resolve(case):
    before = dict(os.environ)
    os.environ.update(case["environ"])
    try:
        server_args = prepare_server_args(case["argv"])
        server_args.resolve_once()
        view = resolving_view(server_args)
        resolved = {name: getattr(view, name) for name in SHOWN}
        resolved["decode_graphs"] = view.cuda_graph_config.decode.backend
        resolved["key_left_in_environment"] = "SGLANG_DDTREE_API_KEY" in os.environ
        return {"resolved": resolved}
    except ValueError as error:
        return {"error": str(error)}
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    answers = [resolve(case) for case in json.load(sys.stdin)]
    print(json.dumps(answers, default=str))
