"""What the metrics are read from: counters and the ends of indexes, never a whole table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

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
#: The head of each line by id; with lanes and priorities it may be younger than the oldest, so
#: all of them are looked at, each one step along the index.
READ_AGES = """
    WITH RECURSIVE head AS (
        SELECT pool.name AS pool, first.dependency, first.priority, first.since
        FROM unnest(%(pools)s::text[]) AS pool (name), LATERAL (
            SELECT dependency, priority, greatest(created_at, execute_at) AS since FROM jobs
            WHERE status = 'queued' AND pool = pool.name
            ORDER BY dependency, priority DESC, id LIMIT 1) AS first
        UNION ALL
        SELECT head.pool, next.dependency, next.priority, next.since FROM head, LATERAL (
            (SELECT dependency, priority, greatest(created_at, execute_at) AS since FROM jobs
             WHERE status = 'queued' AND pool = head.pool AND dependency = head.dependency
               AND priority < head.priority
             ORDER BY priority DESC, id LIMIT 1)
            UNION ALL
            (SELECT dependency, priority, greatest(created_at, execute_at) AS since FROM jobs
             WHERE status = 'queued' AND pool = head.pool AND dependency > head.dependency
             ORDER BY dependency, priority DESC, id LIMIT 1)
            LIMIT 1) AS next
    )
    SELECT pool, extract(epoch FROM now() - min(since)) FROM head GROUP BY pool
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
    ORDER BY 1, 2
"""
READ_PROCESSES = f"""
    SELECT name, kind, pools, slots, busy, db_size, db_in_use, db_waiters
    FROM processes
    WHERE heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds' ORDER BY name
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


def read_gauges(taken: Connection) -> Readings:
    """Everything that the metrics tell."""
    pools = {"pools": list(POOLS)}
    trouble: dict[str, dict[str, float]] = {}
    for kind, name, value in taken.exec_driver_sql(READ_TROUBLE):
        trouble.setdefault(kind, {})[name] = float(value)
    return Readings(
        counts={
            row[0]: {state: int(n) for state, n in zip(STATES, row[1:], strict=True)}
            for row in taken.exec_driver_sql(READ_COUNTS)
        },
        line_seconds={row[0]: float(row[1]) for row in taken.exec_driver_sql(READ_AGES, pools)},
        due_seconds={row[0]: float(row[1]) for row in taken.exec_driver_sql(READ_DUE_AGES, pools)},
        dead_letters={row[0]: row[1] for row in taken.exec_driver_sql(READ_DEAD_LETTERS)},
        processes=[tuple(row) for row in taken.exec_driver_sql(READ_PROCESSES)],
        trouble=trouble,
    )
