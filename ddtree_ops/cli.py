"""The command line: parse, call, render. No logic here, and no heavy import before a command runs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from . import __version__

F = TypeVar("F", bound=Callable[..., Any])

_EPILOG = """\b
Examples:
  ddtree-ops locate-source --host pro6000     which SGLang is real, and what can be done
  ddtree-ops plan --host pro6000 --diff       what a deploy would change; writes nothing
  ddtree-ops deploy --host pro6000            do it, prove it, and keep the way back
"""


class Context:
    """What the global options say; made once per run."""

    def __init__(self, options: dict[str, Any]) -> None:
        from .ui.console import Output

        self.hosts: tuple[str, ...] = options["host"]
        self.inventory: Path | None = options["inventory"]
        self.ssh_config: Path | None = options["ssh_config"]
        self.host_key: str | None = options["accept_new_host_key"]
        self.output = Output(
            json=options["json"],
            verbosity=-1 if options["quiet"] else options["verbose"],
            color=not options["no_color"],
        )


_COMMON = (
    click.option("--host", "-H", multiple=True, metavar="HOST", help="Inventory name or address; repeatable."),
    click.option("--inventory", "-i", type=click.Path(path_type=Path), help="Inventory file."),
    click.option("--ssh-config", type=click.Path(path_type=Path), help="ssh_config to use instead of ~/.ssh/config."),
    click.option("--accept-new-host-key", metavar="SHA256:…", help="Accept a key not yet known, if it has this hash."),
    click.option("--json", is_flag=True, help="One JSON document on stdout; never changes anything by itself."),
    click.option("--quiet", "-q", is_flag=True, help="Only results and errors."),
    click.option("--verbose", "-v", count=True, help="-v details, -vv each operation, -vvv each event."),
    click.option("--no-color", is_flag=True, help="No colours."),
)


def common(function: F) -> F:
    """Add the options that every command has; they arrive as one :class:`Context`."""

    @functools.wraps(function)
    def wrapper(**kwargs: Any) -> Any:
        names = ("host", "inventory", "ssh_config", "accept_new_host_key", "json", "quiet", "verbose", "no_color")
        context = Context({name: kwargs.pop(name) for name in names})
        sys.exit(guarded(lambda: function(context, **kwargs), context))

    return functools.reduce(lambda f, option: option(f), reversed(_COMMON), wrapper)  # type: ignore[return-value]


def guarded(call: Callable[[], int | None], context: Context) -> int:
    """Run a command; every failure becomes a message and an exit code, never a traceback."""
    from .errors import as_error

    try:
        return call() or 0
    except (Exception, KeyboardInterrupt) as error:
        failure = as_error(error)
    if context.output.json:
        context.output.document("error", {"error": failure.as_dict()})
    context.output.error(failure)
    return failure.exit_code


consent = click.option("--yes", "-y", is_flag=True, envvar="DDTREE_OPS_YES", help="Consent without being asked.")


class _Group(click.Group):
    """Commands in the order in which they are used, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """A command of two words, ``bench diff``, goes before the one of its first word, which takes no argument."""
        name = " ".join(args[:2])
        return (name, self.commands[name], args[2:]) if name in self.commands else super().resolve_command(ctx, args)


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddtree-ops")
def cli() -> None:
    """Bring DDTree speculative decoding into an existing SGLang over SSH, and take it back byte for byte."""


@cli.command()
@common
@click.option("--name", help="Name of the new inventory entry (default: the host's name).")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Inventory to add the entry to (default: stdout)."
)
def init(context: Context, name: str | None, output: Path | None) -> int:
    """Write an inventory entry from a server that runs on a host."""
    from .workflow import inspect

    return inspect.init(context, name, output)


@cli.command("locate-source")
@common
@click.option("--takeover", metavar="UNIT", help="The unit whose environment is the service's.")
def locate_source(context: Context, takeover: str | None) -> int:
    """Find the SGLang that is really imported, and say what can be done about it."""
    from .workflow import inspect

    return inspect.locate(context, takeover)


def deploy_options(function: F) -> F:
    """The options that `plan` and `deploy` share."""
    options = (
        click.option("--budget", type=click.IntRange(1, 1023), help="Draft nodes per step, without the root."),
        click.option(
            "--takeover", metavar="UNIT", help="Unit to replace: stopped and disabled, brought back on failure."
        ),
        click.option("--no-service", is_flag=True, help="Tree, patch, editable install and import probe only."),
        click.option("--baseline", is_flag=True, help="Start our unit once without speculation and keep its answers."),
        click.option("--playbook", type=click.Path(path_type=Path), help="Steps to use instead of the packaged ones."),
        click.option("--gate", type=click.Path(path_type=Path), help="Gates to judge; undone if one fails."),
        click.option("--diff", is_flag=True, help="Show the patch and the unit as a diff."),
    )
    return functools.reduce(lambda f, option: option(f), reversed(options), function)


@cli.command()
@common
@deploy_options
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Save the plan; `deploy --plan FILE` holds to it."
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit 10 when changes are pending.")
def plan(context: Context, output: Path | None, detailed_exitcode: bool, **options: Any) -> int:
    """Show what a deploy would do. Writes nothing on the host."""
    from .workflow import deploy as runs

    return runs.show_plan(context, runs.Options(**options), output=output, detailed=detailed_exitcode)


@cli.command()
@common
@deploy_options
@consent
@click.option("--check", is_flag=True, help="The same as `plan`: nothing is written.")
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="Hold to a saved plan; refuse if the host moved."
)
def deploy(context: Context, yes: bool, check: bool, plan_file: Path | None, **options: Any) -> int:
    """Patch, install, serve and prove DDTREE on a host; undone by itself when it fails."""
    from .workflow import deploy as runs

    if check:
        return runs.show_plan(context, runs.Options(**options), plan_file=plan_file)
    return runs.deploy(context, runs.Options(**options), yes=yes, plan_file=plan_file)


@cli.command()
@common
@consent
@click.option("--budget", metavar="N[,N…]|auto", help="Draft nodes per step, without the root; auto finds the best.")
@click.option("--arms", metavar="ar,dflash,ddtree", help="What is compared: plain decoding, DFLASH, DDTREE.")
@click.option("--concurrency", metavar="N[,N…]", help="Requests at once; each is measured apart.")
@click.option("--regime", metavar="chat,code,math|all", help="Bundled prompts to use; each is measured apart.")
@click.option("--prompts", type=click.Path(path_type=Path), help="JSON lines of one's own instead of the bundled ones.")
@click.option("--count", type=click.IntRange(0), help="Prompts per regime and round; 0: all.")
@click.option("--max-tokens", type=click.IntRange(1, 4096), help="Completion tokens per request, at most.")
@click.option("--temperature", type=click.FloatRange(0, 10), help="0 is greedy; only that can be checked for identity.")
@click.option("--starts", type=click.IntRange(1, 20), help="Starts of each arm's server, in ABBA order.")
@click.option("--repeat", type=click.IntRange(1, 50), help="Measured rounds per start.")
@click.option("--warm-within", type=click.FloatRange(0, 1), help="Warm-up ends when two rounds are so close.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results.")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on in the folder of a bench that was cut.")
@click.option("--against-service", is_flag=True, help="Only what runs now, in short; nothing is stopped.")
@click.option("--gate", type=click.Path(path_type=Path), help="Gates that must hold, else exit 8.")
@click.option("--trace", is_flag=True, help="Record draft trees and accepted paths (ddtree-trace/1).")
def bench(
    context: Context,
    yes: bool,
    out: Path | None,
    resume: Path | None,
    against_service: bool,
    gate: Path | None,
    trace: bool,
    **load: Any,
) -> int:
    """Measure plain decoding, DFLASH and DDTREE side by side on the host: speed, acceptance, token identity.

    The deployed service is stopped for it and started again at the end. What is not given here, playbooks/bench.yaml
    says. With --against-service only the running service is measured, in the short form.
    """
    from .workflow import bench as runs

    options = runs.Options(
        given=runs.given(load, trace), out=out, resume=resume, gate=gate, against_service=against_service, yes=yes
    )
    return runs.bench(context, options)


from . import cli_bench  # noqa: E402, F401  # `bench diff` and `bench report`, which ask no host


@cli.command()
@common
def status(context: Context) -> int:
    """What is deployed, what runs, what is pending."""
    from .workflow import service

    return service.status(context)


@cli.command()
@common
def verify(context: Context) -> int:
    """Compare disk and processes with the deployment; exit 10 on drift."""
    from .workflow import service

    return service.verify(context)


@cli.command()
@common
@click.option("--follow", "-f", is_flag=True, help="Keep printing until interrupted.")
@click.option("--lines", "-n", default=100, show_default=True, type=click.IntRange(1, 100000))
def logs(context: Context, follow: bool, lines: int) -> int:
    """The service's log."""
    from .workflow import service

    return service.logs(context, follow, lines)


def _control(action: str) -> None:
    @cli.command(action, help=f"{action.capitalize()} the deployed service.")
    @common
    @consent
    def command(context: Context, yes: bool) -> int:
        from .workflow import service

        return service.control(context, action, yes)


for _action in ("start", "stop", "restart"):
    _control(_action)


@cli.command()
@common
@consent
@click.option("--force", is_flag=True, help="Also overwrite what others changed in the deployed files since.")
def rollback(context: Context, yes: bool, force: bool) -> int:
    """Take the deployment back, byte for byte, and prove it by one root hash."""
    from .workflow import undo

    return undo.rollback(context, yes, force)


@cli.command()
@common
@consent
def recover(context: Context, yes: bool) -> int:
    """Undo what an interrupted run left behind."""
    from .workflow import undo

    return undo.recover(context, yes)


@cli.command()
@common
@consent
@click.option("--force", is_flag=True, help="Also remove trees that somebody worked in.")
def purge(context: Context, yes: bool, force: bool) -> int:
    """Remove releases, journal and snapshots after a rollback: the last trace."""
    from .workflow import undo

    return undo.purge(context, yes, force)


@cli.group(cls=_Group)
def patch() -> None:
    """Make, check, show and export the patch series."""


@patch.command("create")
@common
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the series (default: patches/sglang-<release>)."
)
def patch_create(context: Context, source: Path, out: Path | None) -> int:
    """Make the series for a pristine SOURCE: a wheel, or a folder that holds sglang/."""
    from .workflow import patches

    return patches.create(context, source, out)


@patch.command("check")
@common
@click.argument("release", required=False)
@click.option("--source", type=click.Path(path_type=Path, exists=True), help="Wheel or tree to check against.")
def patch_check(context: Context, release: str | None, source: Path | None) -> int:
    """Check that series are whole, and (with --source) that the recipe still makes them and they apply."""
    from .workflow import patches

    return patches.check(context, release, source)


@patch.command("show")
@common
@click.argument("release", required=False)
def patch_show(context: Context, release: str | None) -> int:
    """Print the patch of a RELEASE."""
    from .workflow import patches

    return patches.show(context, release)


@patch.command("export")
@common
@click.argument("release")
@click.argument("folder", type=click.Path(path_type=Path))
def patch_export(context: Context, release: str, folder: Path) -> int:
    """Write the series of a RELEASE, payload included, for `git am`."""
    from .workflow import patches

    return patches.export(context, release, folder)


@cli.group(cls=_Group)
def config() -> None:
    """The configuration in force."""


@config.command("show")
@common
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
def config_show(context: Context, origin: bool) -> int:
    """Print a host's settings as they are resolved."""
    from .workflow import inspect

    return inspect.show_config(context, origin)


from . import cli_baseline  # noqa: E402, F401  # `baseline` and `compare`; it takes what is defined above


def main() -> None:
    """Entry point of the ``ddtree-ops`` command."""
    cli.main(prog_name="ddtree-ops")
