"""A result folder as pictures and pages: everything that people read is made here, from values alone."""

from __future__ import annotations

from pathlib import Path

from ..results import Folder, open_folder

__all__ = ["write_reports"]


def write_reports(source: Folder | Path) -> tuple[Path, Path]:
    """Write ``report.md`` and ``report.html`` into the folder; returns their paths.

    Raises :class:`ConfigError` when a file of the folder is damaged; a trace that is damaged is only noted.
    """
    from . import document, html, markdown

    folder = open_folder(source) if isinstance(source, Path) else source
    report = document.read(folder)
    page = html.render(report).encode("utf-8", "replace")
    return folder.write("report.md", markdown.render(report).encode("utf-8", "replace")), folder.write(
        "report.html", page
    )
