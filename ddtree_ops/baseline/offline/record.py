"""Record an offline run as ``ddtree-trace/1``: ``python -m ddtree_ops.baseline.offline``.

Needs torch, transformers and this project on the path (of it ``ddtree_ops/baseline``, ``kernels/ddtree/tree`` and what
they import); no SGLang. Budgets: one run at the largest (``--mode tree``), and for greedy runs the exact walk of every
budget over the same answers. Exit status: 0 recorded, 2 not understood (stderr says what), 8 the control failed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .. import tolerance
from ..trees import trace
from .config import Unsupported, read_config
from .prompts import Prompt, read_prompts, stop_tokens

DTYPES = ("bfloat16", "float16", "float32")
CONTROL_FAILED = 8
Tell = Callable[[dict[str, Any]], None]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="python -m ddtree_ops.baseline.offline", description=__doc__)
    found.add_argument("--target", type=Path, required=True, help="folder of the target model")
    found.add_argument("--drafter", type=Path, help="folder of the DFlash drafter (not for --mode ar)")
    found.add_argument("--prompts", type=Path, required=True, help="JSON lines: input_ids, text or prompt, or messages")
    found.add_argument("--chat", action="store_true", help="put texts into the chat template, but those with raw: true")
    found.add_argument("--limit", type=int, help="use the first N prompts")
    found.add_argument("--mode", choices=["ar", "linear", "tree"], default="tree")
    found.add_argument(
        "--budgets", default="32", help="nodes without the root, for example 8,16,32; the largest is run"
    )
    found.add_argument("--max-tokens", type=int, default=128)
    found.add_argument("--temperature", type=float, default=0.0)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--ignore-eos", action="store_true", help="go on after the end-of-text token")
    found.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    found.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    found.add_argument("--threads", type=int, help="CPU threads of torch")
    found.add_argument("--no-control", action="store_true", help="no control pass, and so no curve")
    found.add_argument("--out", default="-", help="file (.gz: compressed), or - for stdout")
    found.add_argument("--tied", type=Path, help=argparse.SUPPRESS)  # when stdin closes: remove this folder and end
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    args = parser().parse_args(argv)
    if args.tied:
        threading.Thread(target=_until_left, args=(args.tied,), daemon=True).start()
    try:
        with _sink(args.out) as (write, tell):
            return record(args, write, tell)
    except Unsupported as error:
        print(f"error: {error}", file=sys.stderr)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        print(f"error: {_out_of_memory(error)}", file=sys.stderr)
    return 2


def _out_of_memory(error: Exception) -> str:
    return f"{str(error).splitlines()[0]} A server may hold the memory: stop it, or use --device cpu"


def _until_left(folder: Path) -> None:
    """Wait until whoever started us is gone, then leave nothing behind."""
    while os.read(0, 1024):  # not sys.stdin: a thread inside its lock cannot be left at the end
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(3)


@contextmanager
def _sink(out: str) -> Iterator[tuple[Callable[[str], None], Tell]]:
    """Where records go, and where progress goes: beside them on stdout as records of another kind, else to stderr."""
    if out == "-":

        def write(line: str) -> None:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

        yield write, lambda event: write(json.dumps({"kind": "progress", **event}))
        return
    draft = Path(out + ".part")
    with gzip.open(draft, "wt", encoding="utf-8") if out.endswith(".gz") else draft.open("w", encoding="utf-8") as file:
        yield _writer(file), lambda event: print(event["text"], file=sys.stderr, flush=True)
    draft.replace(out)


def _writer(file: IO[str]) -> Callable[[str], None]:
    def write(line: str) -> None:
        file.write(line + "\n")

    return write


def record(args: argparse.Namespace, write: Callable[[str], None], tell: Tell) -> int:
    """Record what the arguments ask for; returns the exit status."""
    budgets = _budgets(args.budgets)
    prompts = read_prompts(args.prompts, args.target, chat=args.chat, limit=args.limit)
    tell({"text": f"loading {args.target}", "done": 0, "total": len(prompts)})
    decoder = _load(args)
    block = decoder.drafter.config.block if decoder.drafter is not None else 1
    budget = {"ar": 0, "linear": block - 1, "tree": max(budgets)}[args.mode]
    write(trace.to_line(_header(args, decoder, block, budget)))
    stop = frozenset() if args.ignore_eos else stop_tokens(args.target)
    total, failed = [0, 0], 0
    began = time.monotonic()
    for number, prompt in enumerate(prompts):
        answer, verdict = _one(args, decoder, prompt, budget, budgets, stop, write)
        total = [total[0] + answer.rounds, total[1] + len(answer.ids) - 1]
        failed += verdict == "differs"
        text = f"{prompt.id}: {len(answer.ids)} tokens, {answer.rounds} steps"
        text += f"; {total[1] / max(1, total[0]):.3f} tokens per verify step so far, {verdict}"
        tell({"text": text, "done": number + 1, "total": len(prompts)})
    tell({"text": f"done in {time.monotonic() - began:.1f} s", "done": len(prompts), "total": len(prompts)})
    if failed:
        print(f"error: {failed} answers are not the target's greedy ones, beyond near ties", file=sys.stderr)
        return CONTROL_FAILED
    return 0


def _one(
    args: argparse.Namespace,
    decoder: Any,
    prompt: Prompt,
    budget: int,
    budgets: Sequence[int],
    stop: frozenset[int],
    write: Callable[[str], None],
) -> tuple[Any, str]:
    """Decode one prompt, write its records; returns the answer and what the control says of it."""
    from .check import control, walks
    from .decode import Answer, Options

    options = Options(args.mode, budget, args.max_tokens, args.temperature, args.seed, stop)
    answer, req = Answer(), f"offline-{prompt.id}"
    digest = trace.prompt_digest(prompt.ids)
    request = trace.TraceRequest(req, len(prompt.ids), digest, args.temperature, prompt.id, prompt.regime)
    write(trace.to_line(request))
    for found in decoder.decode(req, prompt.ids, options, answer):
        write(trace.to_line(found))
    extra: dict[str, Any] = {"seconds": round(answer.seconds, 3)}
    verdict = "no control"
    if args.temperature <= 0 and not args.no_control:
        extra["control"], context = control(decoder, prompt.ids, answer.ids)
        verdict = extra["control"]["verdict"] = judge(extra["control"], args.dtype)
        if context is not None and args.mode != "ar" and len(answer.ids) > 1:
            extra["walks"] = walks(decoder, prompt.ids, answer.ids, context, budgets, args.max_tokens)
    write(trace.to_line(trace.TraceAnswer(req, answer.ids, answer.rounds, answer.finish, extra=extra)))
    return answer, verdict


def judge(control: dict[str, Any], dtype: str) -> str:
    """``equal``, ``near tie`` or ``differs``: how an answer stands to the target's own greedy one."""
    if control["first"] is None:
        return "equal"
    return "near tie" if control["distance"] <= tolerance.near_tie(dtype, control["top"]) else "differs"


def _budgets(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise Unsupported(f"--budgets {text}: not numbers") from None
    if not found or found[0] < 1:
        raise Unsupported(f"--budgets {text}: at least one node each")
    return found


def _load(args: argparse.Namespace) -> Any:
    import torch

    from .decode import Decoder
    from .drafter import load_drafter
    from .target import Target

    if args.threads:
        torch.set_num_threads(args.threads)
    name = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise Unsupported(f"--device {name}: {str(error).splitlines()[0]}") from None
    dtype = getattr(torch, args.dtype)
    target = Target.load(args.target, device, dtype)
    if args.mode == "ar":
        return Decoder(target, None)
    if args.drafter is None:
        raise Unsupported(f"--mode {args.mode} needs --drafter")
    return Decoder(target, load_drafter(args.drafter, target.config, device, dtype))


def _header(args: argparse.Namespace, decoder: Any, block: int, budget: int) -> trace.TraceHeader:
    import torch
    import transformers

    return trace.TraceHeader(
        model=str(args.target),
        draft=str(args.drafter or ""),
        engine="ddtree-ops offline",
        version=f"torch {torch.__version__}, transformers {transformers.__version__}",
        block_size=block,
        budget=budget,
        dtype=args.dtype,
        extra={
            "mode": args.mode,
            "device": str(decoder.target.device),
            "seed": args.seed,
            "max_tokens": args.max_tokens,
            "temperature": args.temperature,
            "budgets": _budgets(args.budgets),
            "target_layers": read_config(args.target).get("num_hidden_layers"),
        },
    )
