"""How a tenant's jobs come and go: rates, and how long they take by type.

Two bounded walks: the newest jobs of the tenant by their ids, and those that ended last. A
tenant that is faster than the walk is long gets its rate from the time that the walk covers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from app.reads.search import id_before
from models.jobs.ids import ABOVE_ALL

#: Whole minutes that are drawn.
MINUTES = 15
#: Jobs that are looked at on the way in and on the way out.
MOST_SUBMITTED = 5_000
MOST_ENDED = 2_000
#: Types that are told apart.
MOST_TYPES = 20

#: The tenant is a range of one, or the planner might walk everybody's ids.
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
READ_ENDED = f"""
    SELECT type, status::text, finished_at,
           extract(epoch FROM finished_at - started_at)::float8 AS run_seconds,
           extract(epoch FROM finished_at - created_at)::float8 AS whole_seconds
    FROM jobs WHERE tenant_id = %(tenant)s AND ended_xid IS NOT NULL AND finished_at IS NOT NULL
    ORDER BY ended_xid DESC, id DESC LIMIT {MOST_ENDED}
"""
READ_NOW = "SELECT now()"


@dataclass(frozen=True, slots=True)
class RateSeries:
    """Jobs that passed somewhere."""

    #: By whole minute.
    minutes: dict[datetime, int]
    #: In the last minute.
    recent: int
    #: The earliest that was looked at, if there may be earlier ones in the time that is drawn.
    since: datetime | None = None

    def per_second(self, now: datetime) -> float:
        """Over the last minute, or over as much of it as was looked at."""
        seconds = 60.0
        if self.since is not None:
            seconds = min(seconds, max(0.001, (now - self.since).total_seconds()))
        return self.recent / seconds

    def drawn(self, minutes: Sequence[datetime]) -> list[int | None]:
        """Jobs in each minute; None where not all were looked at."""
        return [
            None if self.since is not None and minute <= self.since else self.minutes.get(minute, 0)
            for minute in minutes
        ]


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that came to an end."""

    type: str
    status: str
    finished_at: datetime
    #: Its last run; None if it never ran.
    run_seconds: float | None
    #: From its submission.
    whole_seconds: float


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took: of a hundred, 50, 95 and 99 took no longer."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """What the last jobs of a type took."""

    type: str
    jobs: int
    succeeded: int
    running: Spread | None
    whole: Spread | None


@dataclass(frozen=True, slots=True)
class TenantFlow:
    """What came in, what came out, and how long it took."""

    in_per_second: float
    out_per_second: float
    types: Sequence[TypeFigures]
    chart: dict[str, Any]


def read_flow(connection: Connection, tenant_id: int) -> TenantFlow:
    """The last quarter of an hour."""
    now: datetime = connection.exec_driver_sql(READ_NOW).scalar_one()
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
    rows = connection.exec_driver_sql(READ_ENDED, {"tenant": tenant_id}).all()
    return flow_of(came, [Ended(**row._mapping) for row in rows], now)


def flow_of(came: RateSeries, ended: Sequence[Ended], now: datetime) -> TenantFlow:
    """The figures of one moment."""
    minutes = whole_minutes(now)
    went = ends(ended, now)
    return TenantFlow(
        came.per_second(now),
        went.per_second(now),
        figures(ended),
        {
            "unit": "jobs a minute",
            "series": [
                {"name": name, "x": [m.isoformat() for m in minutes], "y": stream.drawn(minutes)}
                for name, stream in (("submitted", came), ("ended", went))
            ],
        },
    )


def whole_minutes(now: datetime) -> list[datetime]:
    """The last minutes that are over, oldest first."""
    this = now.replace(second=0, microsecond=0)
    return [this - timedelta(minutes=n) for n in range(MINUTES, 0, -1)]


def ends(ended: Sequence[Ended], now: datetime) -> RateSeries:
    """The ends of jobs, newest first, as a stream."""
    minutes = Counter(one.finished_at.replace(second=0, microsecond=0) for one in ended)
    recent = sum(one.finished_at > now - timedelta(minutes=1) for one in ended)
    cut = len(ended) >= MOST_ENDED
    return RateSeries(dict(minutes), recent, min(one.finished_at for one in ended) if cut else None)


def figures(ended: Sequence[Ended]) -> list[TypeFigures]:
    """By type, those with most jobs first; what was cancelled or expired does not count."""
    by_type: dict[str, list[Ended]] = {}
    for one in ended:
        if one.status in ("succeeded", "dead"):
            by_type.setdefault(one.type, []).append(one)
    ranked = sorted(by_type.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        TypeFigures(
            name,
            len(those),
            sum(one.status == "succeeded" for one in those),
            spread([one.run_seconds for one in those if one.run_seconds is not None]),
            spread([one.whole_seconds for one in those]),
        )
        for name, those in ranked[:MOST_TYPES]
    ]


def spread(seconds: Sequence[float]) -> Spread | None:
    """By the nearest rank: each is a time that was measured."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(part: float) -> float:
        return ordered[math.ceil(part * len(ordered)) - 1]

    return Spread(rank(0.50), rank(0.95), rank(0.99))
