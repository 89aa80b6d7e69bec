"""``/console/lab``: what the load lab has measured, and whether the bars were reached."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flask import Blueprint, current_app, send_file
from werkzeug.wrappers import Response

from app.api.auth.access import Access, open_to
from app.console.lab.reports import (
    KINDS,
    PICTURES,
    LabReport,
    Unreadable,
    find_file,
    find_names,
    is_experiment,
    list_files,
    read_report,
    read_tables,
    results_folder,
)
from app.console.page import LivePage, PageRequest
from app.errors import NotFound

lab = Blueprint("lab", __name__)

DOWNLOADS = (".csv", ".md", ".json")
#: A picture may be looked at by itself; whatever is in it, it stays a picture.
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


@dataclass(frozen=True, slots=True)
class ReportView:
    """An experiment as the pages show it."""

    name: str
    #: None if it cannot be read.
    document: LabReport | None
    #: Why not.
    trouble: str = ""

    @property
    def title(self) -> str:
        """What it is called."""
        given = self.document.title if self.document else ""
        return given or self.name.replace("-", " ").capitalize()

    @property
    def measured_at(self) -> datetime:
        """When; what cannot be read comes last."""
        if self.document is None:
            return datetime.min.replace(tzinfo=UTC)
        return self.document.measured_at

    @property
    def missed(self) -> int:
        """Bars that were not reached."""
        return len(self.document.bars) - self.document.reached if self.document else 0


def view_of(name: str) -> ReportView:
    """The experiment of that name, readable or not."""
    try:
        return ReportView(name, read_report(folder(), name))
    except Unreadable as error:
        return ReportView(name, None, str(error))


def read_lab(asked: PageRequest) -> dict[str, Any]:
    """All experiments, the newest first."""
    views = [view_of(name) for name in find_names(folder())]
    newest = sorted(views, key=lambda view: view.measured_at, reverse=True)
    return {"reports": [(view, pictures_of(view)[:1]) for view in newest]}


def read_experiment(asked: PageRequest) -> dict[str, Any]:
    """One experiment, with its pictures and tables."""
    name = asked.values["name"]
    if not is_experiment(folder(), name):
        raise NotFound(f"The lab has left no report of the name {name!r:.100}.")
    view = view_of(name)
    return {
        "report": view,
        "pictures": pictures_of(view),
        "tables": read_tables(folder(), name),
        "files": [each for kind in DOWNLOADS for each in list_files(folder(), name, kind)],
    }


def pictures_of(view: ReportView) -> list[tuple[str, str]]:
    """Files and captions: those that the report names, or all that are there."""
    told = view.document.pictures if view.document else []
    if told:
        found = [(one.file, one.caption) for one in told]
        return [each for each in found if find_file(folder(), view.name, each[0])]
    return [(file, "") for kind in PICTURES for file, _ in list_files(folder(), view.name, kind)]


@lab.get("/console/lab/<name>/<file>")
@open_to(Access.CONSOLE)
def get_file(name: str, file: str) -> Response:
    """A picture to look at, or figures to keep."""
    path = find_file(folder(), name, file)
    if path is None:
        raise NotFound
    response = send_file(
        path,
        mimetype=KINDS[path.suffix],
        as_attachment=path.suffix not in PICTURES,
        download_name=f"{name}-{file}",
        max_age=0,
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = FILE_POLICY
    return response


def folder() -> Path:
    """Where the lab writes."""
    return results_folder(current_app.config["LAB_RESULTS"])


LAB = LivePage("/console/lab", "console/lab.html", read_lab, every_seconds=5.0)
EXPERIMENT = LivePage("/console/lab/<name>", "console/experiment.html", read_experiment)
