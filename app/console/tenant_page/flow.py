"""A tenant's throughput: jobs submitted and ended per minute, and durations by type.

If a query covers less than a minute, the rate is that of the time it covers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection

from app.reads.search import id_before
from models.jobs.ids import ABOVE_ALL

#: Whole minutes that are drawn.
MINUTES = 15
#: Submitted and ended jobs that are read.
MOST_SUBMITTED = 5_000
MOST_ENDED = 2_000
#: Types that are listed.
MOST_TYPES = 20

#: The tenant is a range of one, or the planner might walk the ids of all tenants.
READ_SUBMITTED = f"""
    SELECT date_trunc('minute', created_at) AS minute, count(*)::int AS jobs,
           count(*) FILTER (WHERE created_at > now() - interval '1 minute')::int AS recent,
           min(created_at) AS earliest
    FROM (SELECT created_at FROM jobs
          WHERE tenant_id >= %(tenant)s AND (tenant_id, id) >= (%(tenant)s, %(since)s::uuid)
            AND (tenant_id, id) < (%(tenant)s, %(above)s::uuid)
          ORDER BY tenant_id DESC, id DESC LIMIT {MOST_SUBMITTED}) AS newest
    GROUP BY 1 ORDER BY 1
"""
#: ``run_seconds`` of the last run, NULL if it never ran; ``whole_seconds`` from its submission.
READ_ENDED = f"""
    SELECT type, status::text, finished_at,
           extract(epoch FROM finished_at - started_at)::float8 AS run_seconds,
           extract(epoch FROM finished_at - created_at)::float8 AS whole_seconds
    FROM jobs WHERE tenant_id = %(tenant)s AND ended_xid IS NOT NULL AND finished_at IS NOT NULL
    ORDER BY ended_xid DESC, id DESC LIMIT {MOST_ENDED}
"""


@dataclass(frozen=True, slots=True)
class RateSeries:
    """Jobs submitted or ended over time."""

    #: By whole minute.
    minutes: dict[datetime, int]
    #: In the last minute.
    recent: int
    #: The earliest that was read, if there may be earlier ones in the charted time.
    since: datetime | None = None

    def per_second(self, now: datetime) -> float:
        """Over the last minute, or as much of it as was read."""
        seconds = 60.0
        if self.since is not None:
            seconds = min(seconds, max(0.001, (now - self.since).total_seconds()))
        return self.recent / seconds

    def drawn(self, minutes: Sequence[datetime]) -> list[int | None]:
        """Jobs in each minute; None where not all were read."""
        return [
            None if self.since is not None and minute <= self.since else self.minutes.get(minute, 0)
            for minute in minutes
        ]


class Spread(NamedTuple):
    """Percentiles of durations."""

    p50: float
    p95: float
    p99: float


class FlowReadings(NamedTuple):
    """What the figures are made of."""

    came: RateSeries
    #: Rows of READ_ENDED, newest first.
    ended: Sequence[Any]
    now: datetime


def read_flow(connection: Connection, tenant_id: int) -> FlowReadings:
    """The last quarter of an hour."""
    now: datetime = connection.exec_driver_sql("SELECT now()").scalar_one()
    since = now - timedelta(minutes=MINUTES + 1)
    asked = {"tenant": tenant_id, "since": id_before(since), "above": ABOVE_ALL}
    rows = connection.exec_driver_sql(READ_SUBMITTED, asked).all()
    minutes = {row.minute: row.jobs for row in rows}
    cut = sum(minutes.values()) >= MOST_SUBMITTED
    came = RateSeries(
        minutes,
        sum(row.recent for row in rows),
        min(row.earliest for row in rows) if cut else None,
    )
    return FlowReadings(
        came, connection.exec_driver_sql(READ_ENDED, {"tenant": tenant_id}).all(), now
    )


def flow_of(came: RateSeries, ended: Sequence[Any], now: datetime) -> dict[str, Any]:
    """The figures at one moment."""
    minutes = whole_minutes(now)
    went = ends(ended, now)
    series = [
        {"name": name, "x": [m.isoformat() for m in minutes], "y": rates.drawn(minutes)}
        for name, rates in (("submitted", came), ("ended", went))
    ]
    return {
        "in_per_second": came.per_second(now),
        "out_per_second": went.per_second(now),
        "types": figures(ended),
        "chart": {"unit": "jobs per minute", "series": series},
    }


def whole_minutes(now: datetime) -> list[datetime]:
    """The last minutes that are over, oldest first."""
    this = now.replace(second=0, microsecond=0)
    return [this - timedelta(minutes=n) for n in range(MINUTES, 0, -1)]


def ends(ended: Sequence[Any], now: datetime) -> RateSeries:
    """Ended jobs, newest first, over time."""
    minutes = Counter(one.finished_at.replace(second=0, microsecond=0) for one in ended)
    recent = sum(one.finished_at > now - timedelta(minutes=1) for one in ended)
    cut = len(ended) >= MOST_ENDED
    return RateSeries(dict(minutes), recent, min(one.finished_at for one in ended) if cut else None)


def figures(ended: Sequence[Any]) -> list[dict[str, Any]]:
    """By type, those with most jobs first, without cancelled and expired jobs."""
    by_type: dict[str, list[Any]] = {}
    for one in ended:
        if one.status in ("succeeded", "dead"):
            by_type.setdefault(one.type, []).append(one)
    ranked = sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {
            "type": name,
            "jobs": len(those),
            "succeeded": sum(one.status == "succeeded" for one in those),
            "running": spread([one.run_seconds for one in those if one.run_seconds is not None]),
            "whole": spread([one.whole_seconds for one in those]),
        }
        for name, those in ranked[:MOST_TYPES]
    ]


def spread(seconds: Sequence[float]) -> Spread | None:
    """By nearest rank: each is one of the measured values."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(part: float) -> float:
        return ordered[math.ceil(part * len(ordered)) - 1]

    return Spread(rank(0.50), rank(0.95), rank(0.99))
