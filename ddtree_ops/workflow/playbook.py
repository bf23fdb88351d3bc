"""Playbooks: the steps of a run as data, read strictly and checked for order before anything happens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import ConfigError
from ..patching.strict import Document, read_document
from ..resources import data_dir

OnFailure = Literal["rollback", "leave"]


class StepKind(msgspec.Struct, frozen=True, kw_only=True):
    """What the tool knows about a step that playbooks may name.

    ``after``: steps that must stand before it when they are in the list at all. ``needs``: one that must be there.
    ``options``: its parameters with the type of each. ``service``: belongs to the service, so a failure there is a
    failed health check (exit 6 or 9).
    """

    name: str
    title: str
    required: bool = False
    after: tuple[str, ...] = ()
    needs: str = ""
    options: Mapping[str, type] = {}
    service: bool = False


DEPLOY_STEPS = (
    StepKind(name="derive", title="Derive the source tree", required=True),
    StepKind(name="payload", title="Add the DDTree package", required=True, after=("derive",)),
    StepKind(name="patch", title="Apply and commit the patch", required=True, after=("derive", "payload")),
    StepKind(name="unit", title="Write the service unit", after=("derive",)),
    StepKind(name="takeover", title="Take over from the old server"),
    StepKind(name="editable", title="Install editable", required=True, after=("patch", "takeover")),
    StepKind(name="probe", title="Probe the import", required=True, after=("editable",)),
    StepKind(name="baseline", title="Record a baseline", after=("probe", "unit"), needs="unit", service=True),
    StepKind(name="start", title="Start the service", after=("probe", "unit", "baseline"), needs="unit", service=True),
    StepKind(
        name="ready",
        title="Wait until it serves",
        after=("start",),
        needs="start",
        options={"timeout": int, "silence": int},
        service=True,
    ),
    StepKind(name="identity", title="Prove what runs", after=("ready",), needs="start", service=True),
    StepKind(
        name="smoke",
        title="Smoke bench",
        after=("ready",),
        needs="start",
        options={"max_tokens": int, "prompts": int, "requests": int},
        service=True,
    ),
    StepKind(
        name="gate",
        title="Measure and judge the gates",
        after=("ready", "identity", "smoke"),
        needs="start",
        options={"file": str},
        service=True,
    ),
    StepKind(name="enable", title="Start at boot", after=("start",), needs="start", service=True),
    StepKind(
        name="run",
        title="Run a command",
        options={"title": str, "argv": list, "undo": list, "timeout": int, "cwd": str},
    ),
)

ROLLBACK_STEPS = (
    StepKind(name="undo", title="Undo the deployment", required=True),
    StepKind(name="prove", title="Prove the state before it", required=True, after=("undo",)),
    StepKind(name="purge", title="Remove the state folder", after=("prove",)),
)
KINDS = {"deploy": DEPLOY_STEPS, "rollback": ROLLBACK_STEPS}
#: The playbooks that are packaged.
NAMES = (*KINDS, "bench")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a playbook with its parameters."""

    kind: StepKind
    params: dict[str, Any] = {}

    @property
    def title(self) -> str:
        """What progress shows."""
        return str(self.params.get("title") or self.kind.title)


class Playbook(msgspec.Struct, frozen=True, kw_only=True):
    """A checked playbook."""

    name: str
    origin: str
    steps: tuple[Step, ...]
    on_failure: OnFailure = "rollback"

    def has(self, name: str) -> bool:
        """Whether a step of this name is in the list."""
        return any(step.kind.name == name for step in self.steps)

    def with_gate(self, file: Path) -> Playbook:
        """The same with the gate of the command line, after everything that looks at the service and before it is
        enabled; a gate of the playbook gives way."""
        steps = list(self.without("gate").steps)
        kind = next(kind for kind in DEPLOY_STEPS if kind.name == "gate")
        last = max((i for i, step in enumerate(steps) if step.kind.name in kind.after), default=len(steps) - 1)
        steps.insert(last + 1, Step(kind=kind, params={"file": str(file)}))
        return msgspec.structs.replace(self, steps=tuple(steps))

    def without(self, *names: str) -> Playbook:
        """The same playbook less some steps."""
        return msgspec.structs.replace(self, steps=tuple(s for s in self.steps if s.kind.name not in names))


class _Raw(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    steps: list[dict[str, Any]]
    on_failure: OnFailure = "rollback"


def load(name: str, path: Path | None = None, beside: Path | None = None) -> Playbook:
    """Read ``playbooks/<name>.yaml`` (or ``path``) and check it.

    Raises:
        ConfigError: file, line and key for an unknown step or option, a wrong type, a required step that is missing, or
            two steps in an order that cannot work.
    """
    document = read_document(path or data_dir("playbooks", beside) / f"{name}.yaml")
    raw = document.convert(_Raw)
    kinds = {kind.name: kind for kind in KINDS[name]}
    steps = tuple(_step(document, index, item, kinds) for index, item in enumerate(raw.steps))
    _check_order(document, steps, KINDS[name])
    return Playbook(name=raw.name, origin=document.origin, steps=steps, on_failure=raw.on_failure)


def _step(document: Document, index: int, item: dict[str, Any], kinds: Mapping[str, StepKind]) -> Step:
    at = f"$.steps[{index}]"
    kind = kinds.get(str(item.get("step")))
    if kind is None:
        document.fail(f"unknown step {item.get('step')!r}", at, why="steps: " + ", ".join(kinds))
    params = {key: value for key, value in item.items() if key != "step"}
    for key, value in params.items():
        allowed = kind.options.get(key)
        if allowed is None:
            options = ", ".join(kind.options) or "none"
            document.fail(f"the step {kind.name} has no option {key!r}", f"{at}.{key}", why=f"its options: {options}")
        if not isinstance(value, allowed) or isinstance(value, bool):
            document.fail(f"{key} must be {allowed.__name__}, not {type(value).__name__}", f"{at}.{key}")
    if kind.name == "gate" and not params.get("file"):
        document.fail("the step gate needs file, the gates to judge", at)
    if kind.name == "run" and not params.get("argv"):
        document.fail("the step run needs argv, a list of words", at)
    return Step(kind=kind, params=params)


def _check_order(document: Document, steps: tuple[Step, ...], kinds: tuple[StepKind, ...]) -> None:
    position: dict[str, int] = {}
    for index, step in enumerate(steps):
        if step.kind.name != "run" and step.kind.name in position:
            document.fail(f"the step {step.kind.name} stands twice", f"$.steps[{index}]")
        position.setdefault(step.kind.name, index)
    for kind in kinds:
        if kind.required and kind.name not in position:
            raise ConfigError(
                f"the step {kind.name} may not be dropped",
                where=f"{document.origin}: steps",
                why=f"without '{kind.title}' nothing that follows means anything",
                next_step="put it back; the packaged playbook shows where",
            )
        if kind.needs and kind.name in position and kind.needs not in position:
            document.fail(
                f"the step {kind.name} needs the step {kind.needs}",
                f"$.steps[{position[kind.name]}]",
                why=f"a playbook may leave out both, but not {kind.needs} alone",
            )
        for earlier in kind.after:
            if kind.name in position and position.get(earlier, -1) > position[kind.name]:
                document.fail(f"the step {kind.name} must come after {earlier}", f"$.steps[{position[kind.name]}]")
