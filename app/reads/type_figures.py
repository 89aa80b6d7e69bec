"""Percentiles of waits and run times by job type over the last hour, from the workers' counts."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from app.policy.histogram import Bin, gather
from models.tallies import MICROSECONDS, TallyKind, parse_run_name

READ_BINS = f"""
    SELECT kind, name, sum(total)::bigint AS total, sum(amount)::float8 AS microseconds
    FROM tallies
    WHERE kind IN ('{TallyKind.RUN}', '{TallyKind.WAIT}') AND bucket > now() - interval '1 hour'
    GROUP BY kind, name
"""


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """A job type as it ran lately; seconds, None where nothing was counted."""

    type: str
    runs: int
    wait_p50: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p99: float | None


def read_type_figures(connection: Connection) -> list[TypeFigures]:
    """Types that ran within the hour, those with most runs first."""
    bins: dict[str, dict[str, list[Bin]]] = {}
    for row in connection.exec_driver_sql(READ_BINS):
        job_type, _, number, _ = parse_run_name(row.name)
        counted = (number, float(row.total), row.microseconds / MICROSECONDS)
        bins.setdefault(job_type, {}).setdefault(row.kind, []).append(counted)
    figures = []
    for job_type, kinds in bins.items():
        runs, waits = (gather(kinds.get(kind, ())) for kind in (TallyKind.RUN, TallyKind.WAIT))
        parts = [of.quantile(share) for of in (waits, runs) for share in (0.5, 0.99)]
        figures.append(TypeFigures(job_type, round(runs.runs), *parts))
    return sorted(figures, key=lambda one: (-one.runs, one.type))
