"""``ddtree-ops baseline ...`` and ``ddtree-ops compare``: parse, call, render; imported by :mod:`.cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .cli import Context, _Group, cli, common

_FILE = click.Path(path_type=Path)


@cli.group(cls=_Group)
def baseline() -> None:
    """Exact offline decoding (plain, DFlash, DDTree), traces, and results of other implementations."""


@baseline.command("record")
@common
@click.option("--out", "-o", type=_FILE, required=True, help="Trace to write (ddtree-trace/1, JSON lines).")
@click.option("--local", is_flag=True, help="On this machine instead of a host; needs --python.")
@click.option("--python", metavar="PATH", help="Interpreter with torch and transformers (default: the service's).")
@click.option("--target", metavar="DIR", help="Target model on the host (default: the service's).")
@click.option("--drafter", metavar="DIR", help="DFlash drafter on the host (default: the service's).")
@click.option("--prompts", type=_FILE, help="JSON lines of one's own instead of the bundled prompts.")
@click.option("--regime", type=click.Choice(["chat", "code", "math", "all"]), help="Bundled prompts to use.")
@click.option("--count", type=click.IntRange(0), help="How many prompts (of each regime); 0: all.")
@click.option("--raw", is_flag=True, help="Raw text, not through the chat template.")
@click.option(
    "--budget", metavar="N[,N…]", help="Draft nodes; the largest is run, of all the exact walk is taken. [32]"
)
@click.option("--mode", type=click.Choice(["ar", "linear", "tree"]), help="What is decoded with. [tree]")
@click.option("--max-tokens", type=click.IntRange(1, 65536), help="New tokens per prompt, at most. [128]")
@click.option("--temperature", type=click.FloatRange(0, 10), help="0 is greedy. [0]")
@click.option("--seed", type=int, help="Of the sampling. [0]")
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), help="Arithmetic. [bfloat16]")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1. [auto]")
@click.option("--ignore-eos", is_flag=True, help="Go on after the end-of-text token.")
def record(context: Context, **options: Any) -> int:
    """Decode prompts with an own exact implementation and record every verify round."""
    from .workflow import baseline as runs

    given = {name: value for name, value in options.items() if value is not None}
    return runs.record(context, runs.Wanted(**given))


@baseline.command("import")
@common
@click.argument("file", type=_FILE)
@click.option("--out", "-o", type=_FILE, help="Folder for the traces and the summary record.")
def import_results(context: Context, file: Path, out: Path | None) -> int:
    """Read a result FILE of the public DDTree reference, or of z-lab's DFlash benchmark."""
    from .workflow import baseline as runs

    return runs.import_results(context, file, out)


@baseline.command("curve")
@common
@click.argument("file", type=_FILE)
@click.option("--budget", default="", metavar="N[,N…]", help="Budgets wanted (default: all that the recording tells).")
@click.option("--method", type=click.Choice(["walks", "nested"]), help="Insist on one of the two ways.")
@click.option("--out", "-o", type=_FILE, help="Write it as offline.json of a bench folder.")
def curve(context: Context, file: Path, budget: str, method: str | None, out: Path | None) -> int:
    """Tokens per verify step that every smaller budget would have had, from one wide recording."""
    from .workflow import baseline as runs

    return runs.curve(context, file, budget, method or "", out)


@baseline.command("trace")
@common
@click.argument("path")
@click.option("--out", "-o", type=_FILE, required=True, help="Where to put it here.")
def trace(context: Context, path: str, out: Path) -> int:
    """Fetch the trace that a server wrote to PATH on the host (its DDTREE_TRACE)."""
    from .workflow import baseline as runs

    return runs.trace(context, path, out)


@cli.command()
@common
@click.argument("a", type=_FILE)
@click.argument("b", type=_FILE)
def compare(context: Context, a: Path, b: Path) -> int:
    """Compare two traces, L0 (tree from equal logits, bit for bit) to L4 (accept length); exit 8 on a difference."""
    from .workflow import baseline as runs

    return runs.compare(context, a, b)
