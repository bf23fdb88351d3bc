"""Unit and environment files: systemd's quoting rules, and the two templates rendered with them.

Rules (systemd.syntax(7), systemd.service(5), systemd.exec(5)): in ``ExecStart=`` and ``Environment=`` words may stand
in double quotes with C escapes, and ``%`` begins a specifier; in ``ExecStart=`` ``$`` also begins a variable. Paths
such as ``WorkingDirectory=`` and ``EnvironmentFile=`` take the rest of the line, unquoted. An environment file knows
neither specifiers nor variables, and in double quotes a backslash escapes only itself, ``"``, ``$`` and the backtick.
That the process receives exactly what was asked for is tested on a real systemd host (``tests/service/``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..model import PlannedUnit
from ..resources import data_dir
from .settings import ServiceSpec

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def exec_argument(text: str) -> str:
    """One word of ``ExecStart=`` that systemd turns back into exactly ``text``."""
    if _PLAIN.match(text):
        return text
    return f'"{_escape(text).replace("%", "%%").replace("$", "$$")}"'


def executable(path: str) -> str:
    """The first word of ``ExecStart=``: an absolute path, to which variables and prefixes do not apply."""
    if not path.startswith("/") or "$" in path:
        raise ConfigError(
            f"systemd cannot start {path!r}",
            where="environment",
            why="the interpreter must be an absolute path without `$`",
            next_step="name the environment by another path, for instance a symbolic link",
        )
    return exec_argument(path)


def environment_assignment(name: str, value: str) -> str:
    """One quoted word of ``Environment=``; ``$`` has no meaning there."""
    _check_name(name)
    return f'"{_escape(f"{name}={value}").replace("%", "%%")}"'


def path_value(path: str) -> str:
    """A path that takes the rest of the line."""
    if not path.startswith("/") or path != path.strip() or any(ord(c) < 32 for c in path) or path.endswith("\\"):
        raise ConfigError(f"systemd cannot express the path {path!r}", where="unit", next_step="use a plainer path")
    return path.replace("%", "%%")


def environment_file_value(value: str) -> str:
    """A value of an environment file, in double quotes."""
    _check_text(value)
    return '"' + re.sub(r'([\\"`$])', r"\\\1", value) + '"'


def comment(text: str) -> str:
    """A comment's text on one line."""
    return " ".join(text.split())


def _escape(text: str) -> str:
    _check_text(text)
    return "".join(_ESCAPES.get(c, c if ord(c) >= 32 and ord(c) != 127 else f"\\x{ord(c):02x}") for c in text)


def _check_text(text: str) -> None:
    if "\0" in text or any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise ConfigError(
            f"{text!r} cannot be written into a unit",
            where="service",
            why="it holds a zero byte or is not UTF-8",
            next_step="use a path or value without it",
        )


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} is not a name of an environment variable",
            where="service: environment",
            next_step="use letters, digits and underscores, not beginning with a digit",
        )


def render(template: str, values: Mapping[str, Any], folder: Path | None = None) -> str:
    """A template of ``templates/`` with ``values``; a name that the values lack is an error, not an empty string."""
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    source = folder or data_dir("templates")
    environment = SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # systemd files, not HTML: every value passes one of the filters below
    )
    environment.filters.update(
        exec_argument=exec_argument,
        executable=executable,
        path_value=path_value,
        environment_file_value=environment_file_value,
        comment=comment,
    )
    environment.globals["environment_assignment"] = environment_assignment
    try:
        return environment.get_template(template).render(values)
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(
            f"the template cannot be rendered: {error}",
            where=f"{source / template}{line}",
            next_step="compare it with the packaged template of the same name",
        ) from error


def service_unit(spec: ServiceSpec, folder: Path | None = None) -> PlannedUnit:
    """The unit as it will be written: a systemd unit, or the process runner's JSON."""
    text = _systemd_text(spec, folder) if spec.init == "systemd" else _process_text(spec)
    return PlannedUnit(name=spec.unit, path=spec.unit_path, text=text)


def secrets_text(secrets: Mapping[str, str], folder: Path | None = None) -> str:
    """The environment file with the secrets: to be sent and written 0600, never shown or planned."""
    for name in secrets:
        _check_name(name)
    return render("sglang-ddtree.env.j2", {"secrets": sorted(secrets.items())}, folder)


def _systemd_text(spec: ServiceSpec, folder: Path | None) -> str:
    argv = spec.argv()
    return render(
        "sglang-ddtree.service.j2",
        {
            "spec": spec,
            "service_type": "exec" if spec.systemd_version >= 240 else "simple",
            "command": [argv[0], group_flags(argv[1:])],
            "environment": spec.env(),
            "runtime_directory": spec.run_dir.removeprefix("/run/"),
        },
        folder,
    )


def _process_text(spec: ServiceSpec) -> str:
    document = {
        "schema": "ddtree-process/1",
        "unit": spec.unit,
        "release": spec.release_id,
        "build": spec.build_id,
        "argv": list(spec.argv()),
        "environment": spec.env(),
        "secrets_file": spec.secrets_path,
        "run_dir": spec.run_dir,
        "directory": spec.directory,
        "log": spec.log_path,
        "timeout_stop": spec.timeout_stop,
        "restart": {"delay": 10, "interval": 600, "burst": 3},
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def group_flags(args: tuple[str, ...]) -> list[list[str]]:
    """The arguments, a flag and its values per group: one line each in the unit."""
    groups: list[list[str]] = [[]]
    for arg in args:
        if arg.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(arg)
    return groups
