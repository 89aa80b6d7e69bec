"""``/console/lab``: what the load lab has measured, and whether targets were met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import current_app, send_file
from werkzeug.wrappers import Response

from app.console.lab.reports import KINDS, PICTURES, Experiment, find_experiments, find_file
from app.console.page import PageRequest, live_page, route
from app.errors import NotFound
from app.stack.spec import PROJECT_ROOT

#: A picture may be opened by itself; no script in it runs.
FILE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"


def read_lab(asked: PageRequest) -> dict[str, Any]:
    """All experiments, the newest first."""
    found = sorted(find_experiments(folder()), key=lambda one: one.measured_at, reverse=True)
    return {"reports": [(one, one.pictures()[:1]) for one in found]}


def read_experiment(asked: PageRequest) -> dict[str, Any]:
    """One experiment, with its pictures and tables."""
    experiment = Experiment(folder(), asked.values["name"])
    if experiment.find("report.json") is None:
        raise NotFound(f"There is no report named {experiment.name!r:.100}.")
    return {
        "report": experiment,
        "pictures": experiment.pictures(),
        "tables": experiment.tables(),
        "files": experiment.files(".csv", ".md", ".json"),
    }


@route("GET", "/console/lab/<name>/<file>")
def get_file(name: str, file: str) -> Response:
    """A picture, or a file to download."""
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
    results: str = current_app.config["LAB_RESULTS"]
    return PROJECT_ROOT / results


LAB = live_page("/console/lab", "console/lab.html", read_lab, every_seconds=5.0)
EXPERIMENT = live_page("/console/lab/<name>", "console/experiment.html", read_experiment)
