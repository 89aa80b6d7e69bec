"""``GET /operator/overview``: tenants, jobs and rates of every cell, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flask import Blueprint, Response, current_app
from sqlalchemy import Connection

from app.api.http.reply import Reply, fields_of
from app.api.http.state import read_state
from app.api.openapi.declared import Returns, for_operators
from app.api.schemas import platform_answers
from app.scheduler.maintenance.recorder import FINE_STEP
from app.tenants.scopes import Scope

overview = Blueprint("overview", __name__)

#: Where an application finds the cells that its process serves; nothing: there are none.
CELLS = "fairline_cells"
#: Rates are those of so many seconds.
RATE_SECONDS = 60

#: Counters only grow. Nothing is known of the rates where nobody takes samples.
READ_FIGURES = f"""
    SELECT (SELECT count(*) FROM tenants) AS tenants, jobs.waiting, jobs.running,
           rates.came AS in_per_minute, rates.ended AS out_per_minute
    FROM (
        SELECT coalesce(sum(scheduled + queued), 0)::bigint AS waiting,
               coalesce(sum(dispatched + running), 0)::bigint AS running
        FROM job_counts WHERE tenant_id = 0
    ) AS jobs, (
        SELECT sum(round(came * 60 / seconds, 1))::float8 AS came,
               sum(round(ended * 60 / seconds, 1))::float8 AS ended
        FROM (
            SELECT max(submitted) - min(submitted) AS came,
                   max(succeeded + dead + cancelled + expired)
                       - min(succeeded + dead + cancelled + expired) AS ended,
                   extract(epoch FROM max(at) - min(at)) AS seconds
            FROM pool_samples
            WHERE step = {FINE_STEP} AND at <= now()
              AND at >= now() - interval '{RATE_SECONDS + FINE_STEP} seconds'
            GROUP BY pool HAVING max(at) > min(at)
        ) AS grown
    ) AS rates
"""


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What a cell has and does."""

    tenants: int
    #: Scheduled or queued.
    waiting: int
    #: Dispatched or running.
    running: int
    #: None: there are no recent samples.
    in_per_minute: float | None
    out_per_minute: float | None


@dataclass(frozen=True, slots=True)
class CellStanding:
    """A cell, and how it is."""

    name: str
    number: int
    region: str
    #: ``open``, or ``draining``: no new tenant is placed there.
    state: str
    #: None: it does not answer.
    figures: CellFigures | None


class CellsOverview(Protocol):
    """The cells that this process serves."""

    def read(self) -> Sequence[CellStanding]:
        """All cells, by number; takes no longer than a request may."""

    def name_of(self, number: int) -> str:
        """The name of the cell of this number; empty: there is none."""


def cells_here() -> CellsOverview | None:
    """The cells that this process serves, if there are any."""
    found: CellsOverview | None = current_app.extensions.get(CELLS)
    return found


def read_figures(connection: Connection) -> CellFigures:
    """The figures of the cell of this database."""
    row = connection.exec_driver_sql(READ_FIGURES).one()
    return CellFigures(**row._mapping)


def sum_figures(figures: Sequence[CellFigures]) -> CellFigures:
    """Of several cells together."""
    came = [one.in_per_minute for one in figures if one.in_per_minute is not None]
    ended = [one.out_per_minute for one in figures if one.out_per_minute is not None]
    return CellFigures(
        sum(one.tenants for one in figures),
        sum(one.waiting for one in figures),
        sum(one.running for one in figures),
        sum(came) if came else None,
        sum(ended) if ended else None,
    )


@overview.get("/operator/overview")
@for_operators(
    Scope.READ, "Every cell and their sums", Returns(200, platform_answers.PlatformOverview)
)
def get_overview() -> Response:
    """Without cells, the sums are those of this installation. A cell that does not respond has no
    figures, and is not in the sums; a tenant that lives in several cells counts in each."""
    cells = cells_here()
    if cells is None:
        with read_state() as connection:
            found, figures = list[CellStanding](), [read_figures(connection)]
    else:
        found = list(cells.read())
        figures = [one.figures for one in found if one.figures is not None]
    document = {
        "cells": [cell_document(one) for one in found],
        "missing": [one.name for one in found if one.figures is None],
        "total": fields_of(platform_answers.Figures, sum_figures(figures)),
    }
    return Reply(document, 200, {"Cache-Control": "no-cache"})


def cell_document(cell: CellStanding) -> dict[str, object]:
    """A cell as operators see it."""
    figures = cell.figures
    return {
        "name": cell.name,
        "number": cell.number,
        "region": cell.region,
        "state": cell.state,
        "figures": None if figures is None else fields_of(platform_answers.Figures, figures),
    }
