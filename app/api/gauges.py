"""What the metrics are read from: counters and the ends of indexes, never a whole table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from app.admission.silence import SILENT
from app.scaling.demand import LINE_HEADS
from models.pools import POOLS
from models.presence import PRESENCE_LOST_SECONDS
from tasks.retry import budget

#: More dead letters than this are not counted: the number is bad enough.
DEAD_LETTERS_COUNTED = 10_000
STATES = (
    "scheduled",
    "queued",
    "dispatched",
    "running",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
)

READ_COUNTS = """
    SELECT pool, sum(scheduled), sum(queued), sum(dispatched), sum(running), sum(succeeded),
           sum(dead), sum(cancelled), sum(expired)
    FROM job_counts WHERE tenant_id = 0 GROUP BY pool ORDER BY pool
"""
#: Heads of lines that one look goes over. The heads of all pools come in turns: with more, the
#: age of some line is that of the oldest so far.
MOST_HEADS = 2_000
READ_AGES = f"""{LINE_HEADS}
    SELECT pool, extract(epoch FROM now() - min(since)), sum(count(*)) OVER () >= {MOST_HEADS}
    FROM (SELECT * FROM head LIMIT {MOST_HEADS}) AS seen GROUP BY pool
"""
READ_DUE_AGES = """
    SELECT pool.name, extract(epoch FROM now() - due.execute_at)
    FROM unnest(%(pools)s::text[]) AS pool (name), LATERAL (
        SELECT execute_at FROM jobs WHERE status = 'scheduled' AND pool = pool.name
        ORDER BY execute_at LIMIT 1) AS due
    WHERE due.execute_at < now()
"""
READ_DEAD_LETTERS = f"""
    SELECT type, count(*) FROM (
        SELECT type FROM jobs WHERE status = 'dead'
        ORDER BY tenant_id, id LIMIT {DEAD_LETTERS_COUNTED}) AS dead
    GROUP BY type ORDER BY type
"""
#: What the warden holds against whom, and what it looks at.
READ_TROUBLE = f"""
    SELECT 'circuit', dependency,
           CASE state WHEN 'open' THEN 1 WHEN 'half_open' THEN 0.5 ELSE 0 END
    FROM circuits
    UNION ALL
    SELECT 'quarantine', name, 1 FROM verdicts WHERE kind = 'quarantine'
    UNION ALL
    SELECT 'throttle', split_part(name, ':', 2), count(*) FROM verdicts
    WHERE kind = 'throttle' GROUP BY 2
    UNION ALL
    SELECT 'violation', name, sum(bad) FROM tallies
    WHERE kind = 'violation' AND bucket > now() - interval '1 hour' GROUP BY name
    UNION ALL
    SELECT 'retry', '', coalesce(sum(bad), 0) FROM tallies
    WHERE kind = 'retry' AND bucket > now() - interval '{budget.WINDOW_SECONDS:g} seconds'
    UNION ALL
    SELECT 'runs', '', coalesce(sum(total), 0) FROM tallies
    WHERE kind = 'hour' AND bucket > now() - interval '{budget.WINDOW_SECONDS:g} seconds'
    UNION ALL
    SELECT 'forecast', name, sum(total) FROM tallies
    WHERE kind = 'forecast' AND bucket > now() - interval '1 hour' GROUP BY name
    UNION ALL
    SELECT 'forecast_error', name, round(sum(bad) / 1000.0 / sum(total), 4) FROM tallies
    WHERE kind = 'forecast' AND bucket > now() - interval '1 hour' GROUP BY name
    UNION ALL
    SELECT 'degraded', '', count(*) FROM leaders AS leader
    WHERE {SILENT}
      AND EXISTS (SELECT 1 FROM leaders WHERE role = 'relief' AND expires_at > now())
    ORDER BY 1, 2
"""
#: Measured durations, and where new jobs go.
READ_TYPES = """
    SELECT type, p95_seconds, declared_pool, pool FROM job_types
    WHERE p95_seconds IS NOT NULL ORDER BY type
"""
READ_REFUSED = "SELECT code, refused FROM refusals WHERE tenant_id = 0 ORDER BY code"
#: Limits in force, by dependency and kind; those that were learned count for an hour.
READ_QUOTAS = """
    SELECT dependency, kind, least(declared, learned), remaining FROM (
        SELECT dependency, kind, declared,
               (CASE WHEN fresh THEN reading -> kind ->> 0 END)::float8 AS learned,
               (CASE WHEN fresh THEN reading -> kind ->> 1 END)::float8 AS remaining
        FROM (SELECT *, read_at > now() - interval '1 hour' AS fresh FROM quotas) AS quota,
             LATERAL (VALUES ('requests', requests_per_minute), ('tokens', NULL),
                             ('tokens_in', tokens_in_per_minute),
                             ('tokens_out', tokens_out_per_minute)) AS limits (kind, declared)
    ) AS known
    WHERE num_nonnulls(declared, learned) > 0 ORDER BY 1, 2
"""
READ_TAPS = "SELECT dependency, refused, closed_until > now() FROM quotas ORDER BY 1"
READ_PROCESSES = f"""
    SELECT name, kind, pools, slots, busy, db_size, db_in_use, db_waiters
    FROM processes
    WHERE heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds' ORDER BY name
"""
#: What the autoscaler wants, and the longest wait for a slot that it has seen, if that was lately.
READ_DESIRED = """
    SELECT pool, workers,
           CASE WHEN updated_at > now() - interval '10 seconds' THEN oldest_seconds ELSE 0 END,
           living
    FROM desired_workers
"""

#: More schedules than this are not counted.
SCHEDULES_COUNTED = 100_000
READ_SCHEDULES = f"""
    SELECT CASE WHEN paused THEN 'paused' WHEN next_at IS NULL THEN 'ended' ELSE 'active' END,
           count(*)
    FROM (SELECT paused, next_at FROM schedules LIMIT {SCHEDULES_COUNTED}) AS counted GROUP BY 1
"""
#: How late the oldest tick is that nobody has made yet.
READ_TICK_AGE = """
    SELECT greatest(extract(epoch FROM now() - next_at), 0) FROM schedules
    WHERE NOT paused ORDER BY next_at LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Readings:
    """The system at one moment."""

    #: Jobs by pool and state.
    counts: dict[str, dict[str, int]]
    #: Age of the oldest in the line and of the oldest due outside of it, by pool.
    line_seconds: dict[str, float]
    due_seconds: dict[str, float]
    dead_letters: dict[str, int]
    #: Rows of READ_PROCESSES.
    processes: Sequence[Sequence[Any]]
    #: By kind and name: see READ_TROUBLE.
    trouble: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Submissions that were refused, by code.
    refused: dict[str, int] = field(default_factory=dict)
    #: Workers that the autoscaler wants, by pool.
    desired: dict[str, int] = field(default_factory=dict)
    #: Workers that a pool has, as the autoscaler counts them.
    living: dict[str, int] = field(default_factory=dict)
    #: Rows of READ_TYPES.
    types: Sequence[Sequence[Any]] = ()
    #: Rows of READ_QUOTAS and READ_TAPS.
    quotas: Sequence[Sequence[Any]] = ()
    taps: Sequence[Sequence[Any]] = ()
    #: Schedules by state, and how late their oldest tick is.
    schedules: dict[str, int] = field(default_factory=dict)
    tick_seconds: float = 0.0

    def admitted(self) -> dict[str, int]:
        """Jobs that were submitted or replayed, by pool.

        Each is counted where it is. Counts of ends never fall, when rows are retired or replayed.
        """
        return {pool: sum(by_state.values()) for pool, by_state in self.counts.items()}


def slots_of(readings: Readings, pools: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Slots of living workers and how many of them are busy, by pool."""
    slots = dict.fromkeys(pools, (0, 0))
    for _, kind, served, size, busy, *_ in readings.processes:
        for pool in served if kind == "worker" else ():
            if pool in slots:
                slots[pool] = (slots[pool][0] + size, slots[pool][1] + busy)
    return slots


def read_gauges(taken: Connection) -> Readings:
    """Everything that the metrics tell."""
    pools = {"pools": list(POOLS)}
    desired = taken.exec_driver_sql(READ_DESIRED).all()
    trouble: dict[str, dict[str, float]] = {}
    for kind, name, value in taken.exec_driver_sql(READ_TROUBLE):
        trouble.setdefault(kind, {})[name] = float(value)
    return Readings(
        counts={
            row[0]: {state: int(n) for state, n in zip(STATES, row[1:], strict=True)}
            for row in taken.exec_driver_sql(READ_COUNTS)
        },
        line_seconds=read_ages(taken, {row[0]: row[2] for row in desired}),
        due_seconds={row[0]: float(row[1]) for row in taken.exec_driver_sql(READ_DUE_AGES, pools)},
        dead_letters={row[0]: row[1] for row in taken.exec_driver_sql(READ_DEAD_LETTERS)},
        processes=[tuple(row) for row in taken.exec_driver_sql(READ_PROCESSES)],
        trouble=trouble,
        refused={row[0]: row[1] for row in taken.exec_driver_sql(READ_REFUSED)},
        desired={row[0]: row[1] for row in desired},
        living={row[0]: row[3] for row in desired},
        types=[tuple(row) for row in taken.exec_driver_sql(READ_TYPES)],
        quotas=[tuple(row) for row in taken.exec_driver_sql(READ_QUOTAS)],
        taps=[tuple(row) for row in taken.exec_driver_sql(READ_TAPS)],
        schedules={row[0]: row[1] for row in taken.exec_driver_sql(READ_SCHEDULES)},
        tick_seconds=float(taken.exec_driver_sql(READ_TICK_AGE).scalar() or 0.0),
    )


def read_ages(taken: Connection, watched: Mapping[str, float]) -> dict[str, float]:
    """Age of the oldest in each line.

    With more heads than are looked at it may be more; then it is at least what the autoscaler
    has seen, which looks along the whole line in turns.
    """
    asked = {"pools": list(POOLS), "after": [0] * len(POOLS)}
    return {
        pool: max(float(age), watched.get(pool, 0.0) if cut else 0.0)
        for pool, age, cut in taken.exec_driver_sql(READ_AGES, asked)
    }
