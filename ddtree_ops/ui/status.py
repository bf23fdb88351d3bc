"""``status`` and ``verify`` for people."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model import Deployment
from . import decoding

_STYLE = {"active": "green", "failed": "bold red", "inactive": "yellow"}


def status_code(found: Mapping[str, Any]) -> int:
    """9 when a service is deployed and not healthy, else 0."""
    service = found.get("service")
    return 9 if service is not None and not service.get("health", {}).get("ok") else 0


def show_status(console: Console, found: Mapping[str, Any]) -> None:
    """One host: deployment, service, processes, counters."""
    console.print(Text(str(found["host"]), style="bold cyan"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for label, text in _rows(found):
        table.add_row(f"  {label}", text)
    console.print(table)


def show_verified(console: Console, host: str, deployment: Deployment, evidence: Mapping[str, Any]) -> None:
    """The good end of ``verify``."""
    processes = evidence.get("processes", ())
    running = f", {len(processes)} processes run it" if processes else ""
    text = f"{host}: as deployed; build {deployment.build_id[:12]}, {len(deployment.files)} files{running}"
    console.print(Text(text, style="green"), soft_wrap=True)


def _rows(found: Mapping[str, Any]) -> list[tuple[str, Text]]:
    rows: list[tuple[str, Text]] = [("verdict", Text(str(found["verdict"])))]
    rows += [("warning", Text(str(text), style="yellow")) for text in found.get("warnings", ())]
    if found.get("lock"):
        lock = found["lock"]
        held = "held" if lock["alive"] else "left behind"
        rows.append(
            ("lock", Text(f"{held} by {lock['who']} (run {lock['run_id']}): {lock['message']}", style="yellow"))
        )
    if found.get("interrupted"):
        run = found["interrupted"]
        text = f"run {run['run_id']} was interrupted after {run['last_step']}; next: ddtree-ops recover"
        rows.append(("interrupted", Text(text, style="bold yellow")))
    deployment = found.get("deployment")
    if not deployment:
        rows.append(("deployed", Text("nothing")))
        return rows
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(deployment["created"]))
    rows.append(("deployed", Text(f"{deployment['release_id']} by {deployment['strategy']}, {when}")))
    rows.append(("tree", Text(deployment["tree"])))
    service = found.get("service")
    if service:
        rows += _service(deployment, service, found.get("beacons") or ())
    return rows


def _service(deployment: Mapping[str, Any], service: Mapping[str, Any], beacons: Any) -> list[tuple[str, Text]]:
    state, health = service["state"], service.get("health", {})
    words = (
        f"{deployment['unit']} is {state['active']}, {state['enabled'] or 'not enabled'}, port {deployment['port']} "
    )
    text = Text(words, style=_STYLE.get(state["active"], ""))
    text.append("answers" if health.get("ok") else f"does not answer: {health.get('text') or health.get('status')}")
    rows = [("service", text)]
    for process in service.get("processes", ()):
        age = time.time() - process["started"] if process["started"] else 0
        rows.append(
            (
                "process",
                Text(f"{process['pid']}  {process['command'][:60]}  {process['rss'] / 1e6:,.0f} MB  {age:,.0f} s"),
            )
        )
    for line in service.get("errors", ())[-3:]:
        rows.append(("error", Text(str(line), style="red")))
    rows += decoding.rows(beacons)
    return rows
