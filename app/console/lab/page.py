"""``/console/lab``: what the load lab has measured, and whether targets were met."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import current_app, send_file
from werkzeug.wrappers import Response

from app.console.lab import reports
from app.console.page import PageRequest, live_page, route
from app.errors import NotFound
from app.stack.spec import PROJECT_ROOT

DOWNLOADS = (".csv", ".md", ".json")
#: A picture may be opened by itself; no script in it runs.
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


@dataclass(frozen=True, slots=True)
class ReportView:
    """An experiment as pages show it."""

    name: str
    #: None if it cannot be read.
    document: reports.LabReport | None
    #: Why not.
    trouble: str = ""

    @property
    def title(self) -> str:
        given = self.document.title if self.document else ""
        return given or self.name.replace("-", " ").capitalize()

    @property
    def measured_at(self) -> datetime:
        """When it was measured; what cannot be read comes last."""
        if self.document is None:
            return datetime.min.replace(tzinfo=UTC)
        return self.document.measured_at

    @property
    def missed(self) -> int:
        return len(self.document.bars) - self.document.reached if self.document else 0


def view_of(name: str) -> ReportView:
    """The experiment of that name, readable or not."""
    try:
        return ReportView(name, reports.read_report(folder(), name))
    except reports.Unreadable as error:
        return ReportView(name, None, str(error))


def read_lab(asked: PageRequest) -> dict[str, Any]:
    """All experiments, the newest first."""
    views = [view_of(name) for name in reports.find_names(folder())]
    newest = sorted(views, key=lambda view: view.measured_at, reverse=True)
    return {"reports": [(view, pictures_of(view)[:1]) for view in newest]}


def read_experiment(asked: PageRequest) -> dict[str, Any]:
    """One experiment, with its pictures and tables."""
    name = asked.values["name"]
    if not reports.is_experiment(folder(), name):
        raise NotFound(f"There is no report named {name!r:.100}.")
    view = view_of(name)
    return {
        "report": view,
        "pictures": pictures_of(view),
        "tables": reports.read_tables(folder(), name),
        "files": [each for kind in DOWNLOADS for each in reports.list_files(folder(), name, kind)],
    }


def pictures_of(view: ReportView) -> list[tuple[str, str]]:
    """Files and captions: those that the report names, or all that there are."""
    named = view.document.pictures if view.document else []
    if named:
        found = [(one.file, one.caption) for one in named]
        return [each for each in found if reports.find_file(folder(), view.name, each[0])]
    return [
        (file, "")
        for kind in reports.PICTURES
        for file, _ in reports.list_files(folder(), view.name, kind)
    ]


@route("GET", "/console/lab/<name>/<file>")
def get_file(name: str, file: str) -> Response:
    """A picture, or a file to download."""
    path = reports.find_file(folder(), name, file)
    if path is None:
        raise NotFound
    response = send_file(
        path,
        mimetype=reports.KINDS[path.suffix],
        as_attachment=path.suffix not in reports.PICTURES,
        download_name=f"{name}-{file}",
        max_age=0,
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = FILE_POLICY
    return response


def folder() -> Path:
    results: str = current_app.config["LAB_RESULTS"]
    return PROJECT_ROOT / results


LAB = live_page("/console/lab", "console/lab.html", read_lab, every_seconds=5.0)
EXPERIMENT = live_page("/console/lab/<name>", "console/experiment.html", read_experiment)
