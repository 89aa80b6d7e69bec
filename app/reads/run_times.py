"""Run times of what is ahead of a job, and how far its tenant is ahead of the others.

For :mod:`app.reads.waits`, whose row of facts the functions take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from app.policy.durations import Durations, Observed, expected, mixed
from app.policy.fairshare import Tier, default_seconds
from app.policy.forecast import debt_seconds
from models.tallies import MICROSECONDS, TallyKind

#: Run times of types within the last hour, by bin; and their mean in the last hour they ran.
READ_RUNS = f"""
    SELECT split_part(name, ':', 3) AS type, sum(total)::float8 AS runs,
           sum(amount)::float8 / {MICROSECONDS} AS seconds, true AS recent
    FROM tallies
    WHERE kind = '{TallyKind.RUN}' AND bucket > now() - interval '1 hour'
      AND split_part(name, ':', 3) = ANY (%(types)s::text[])
    GROUP BY name
    UNION ALL
    SELECT type, greatest(runs, 1), greatest(runs, 1) * mean_seconds, false
    FROM job_types WHERE type = ANY (%(types)s::text[]) AND mean_seconds IS NOT NULL
"""


def read_types(
    connection: Connection, row: Row[Any], ahead: Iterable[str], own: Sequence[Row[Any]]
) -> dict[str, Durations]:
    """Run times of the types that are ahead or in flight, and of the job's own."""
    running = {each.type: each.running for each in own}
    names = {row.type, *ahead, *running}
    recent: dict[str, list[Observed]] = {}
    for name, seconds in zip(row.types or (), row.runs or (), strict=True):
        recent.setdefault(name, []).append((1.0, seconds))
    shared: dict[bool, dict[str, list[Observed]]] = {True: {}, False: {}}
    for each in connection.exec_driver_sql(READ_RUNS, {"types": list(names)}):
        shared[each.recent].setdefault(each.type, []).append((each.runs, each.seconds))
    default = default_seconds(row.pool)

    def of_type(name: str) -> Durations:
        lately = shared[True].get(name) or shared[False].get(name, [])
        return expected(recent.get(name, []), lately, default, running.get(name, ()))

    return {name: of_type(name) for name in names}


def ahead_of(
    row: Row[Any],
    types: Mapping[str, Durations],
    ahead: Mapping[str, int],
    own: Sequence[Row[Any]],
) -> Durations:
    """Run times of what has to start before it, or to end: ``own``, at a cap."""
    waiting = Counter(ahead or {row.type: 1})
    waiting.update({each.type: each.jobs for each in own})
    found = mixed((jobs, types[name]) for name, jobs in waiting.items())
    return found or types[row.type]


def debt_of(
    row: Row[Any], types: Mapping[str, Durations], own: Sequence[Row[Any]], share: float
) -> float:
    """Seconds until it is the tenant's turn, by the passes that the scheduler compares."""
    if row.ahead_of_others is None or row.tier == Tier.FREE or row.sliced:
        return 0.0
    had = float(row.ahead_of_others * row.share_weight)
    in_flight = [types[each.type].mean for each in own for _ in range(each.jobs)]
    return debt_seconds(share, row.shared, had, in_flight, row.usual_seconds or 0.0)
