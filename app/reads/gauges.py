"""Readings for the metrics, from counters and the ends of indexes, never from a whole table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row

from app.reads.demand import QUEUE_HEADS
from app.reads.waits import FRESH_SECONDS
from models.jobs.held_back import QUARANTINED, QUOTA_CLOSED, THROTTLED
from models.jobs.states import JobStatus
from models.leadership import LAST_SIGN, RELIEVES, SILENT
from models.pools import POOLS
from models.presence import ALIVE
from models.store.snapshots import OLDEST_SNAPSHOT
from models.tallies import TOTALS, TallyKind
from tasks.retry.guards import BUDGET_WINDOW_SECONDS

#: More dead letters than this are not counted: the number is bad enough.
DEAD_LETTERS_COUNTED = 10_000
STATES = tuple(status.value for status in JobStatus)

#: With what is subtracted from it: read apart, a counter could fall.
READ_COUNTS = f"""
    SELECT pool, {", ".join(f"sum({state}) AS {state}" for state in STATES)},
           (SELECT coalesce(sum(total), 0) FROM tallies
            WHERE kind = '{TallyKind.DISCARDED}' AND name = pool) AS discarded
    FROM job_counts WHERE tenant_id = 0 GROUP BY pool ORDER BY pool
"""
#: Slot-seconds that a pool owes the tenant of a head ``seen``, as the leader wrote it a moment ago.
OWED = f"""
    SELECT (overall.pass - share.pass) * share.weight
    FROM shares AS share
    JOIN shares AS overall ON overall.tenant_id = 0 AND overall.pool = share.pool
    WHERE share.tenant_id = seen.tenant_id AND share.pool = seen.pool
      AND share.updated_at > now() - interval '{FRESH_SECONDS} seconds'
"""
#: Heads of queues that are read at once. The heads of all pools come in turns: with more, the
#: age of some queue is that of the oldest so far.
MOST_HEADS = 2_000
READ_AGES = f"""{QUEUE_HEADS}
    SELECT pool, extract(epoch FROM now() - min(since)) AS age_seconds,
           sum(count(*)) OVER () >= {MOST_HEADS} AS cut, max(({OWED})) AS owed_seconds
    FROM (SELECT * FROM head LIMIT {MOST_HEADS}) AS seen GROUP BY pool
"""
READ_DUE_AGES = """
    SELECT pool.name, extract(epoch FROM now() - due.execute_at)::float8
    FROM unnest(%(pools)s::text[]) AS pool (name), LATERAL (
        SELECT execute_at FROM jobs WHERE status = 'scheduled' AND pool = pool.name
        ORDER BY execute_at LIMIT 1) AS due
    WHERE due.execute_at < now()
"""
READ_DEAD_LETTERS = f"""
    SELECT type, count(*) AS letters FROM (
        SELECT type FROM jobs WHERE status = 'dead'
        ORDER BY tenant_id, id LIMIT {DEAD_LETTERS_COUNTED}) AS dead
    GROUP BY type ORDER BY type
"""
IN_BUDGET_WINDOW = f"bucket > now() - interval '{BUDGET_WINDOW_SECONDS:g} seconds'"
#: Predictions that were compared with the start within the last hour, and their mean error.
FORECASTS = f"kind = '{TallyKind.FORECAST}' AND bucket > now() - interval '1 hour'"
FORECAST_ERROR = f"sum(amount) / {TallyKind.FORECAST.per_unit}.0 / sum(total)"
#: Circuits and restrictions, and the counts they are decided by.
READ_TROUBLE = f"""
    SELECT 'circuit' AS kind, dependency AS name,
           CASE state WHEN 'open' THEN 1 WHEN 'half_open' THEN 0.5 ELSE 0 END AS value
    FROM circuits
    UNION ALL
    SELECT 'quarantine', name, 1 FROM ({QUARANTINED}) AS quarantined
    UNION ALL
    SELECT 'throttle', pool, count(*) FROM ({THROTTLED}) AS throttled GROUP BY pool
    UNION ALL
    SELECT 'violation', name, sum(amount) FROM tallies
    WHERE kind = '{TallyKind.VIOLATION}' AND bucket > now() - interval '1 hour' GROUP BY name
    UNION ALL
    SELECT 'retry', '', coalesce(sum(amount), 0) FROM tallies
    WHERE kind = '{TallyKind.RETRY}' AND {IN_BUDGET_WINDOW}
    UNION ALL
    SELECT 'runs', '', coalesce(sum(total), 0) FROM tallies
    WHERE kind = '{TallyKind.TYPE}' AND {IN_BUDGET_WINDOW}
    UNION ALL
    SELECT 'forecast', name, sum(total) FROM tallies
    WHERE {FORECASTS} GROUP BY name
    UNION ALL
    SELECT 'forecast_error', name, round({FORECAST_ERROR}, 4) FROM tallies
    WHERE {FORECASTS} GROUP BY name
    UNION ALL
    SELECT 'degraded', '', count(*) FROM leaders AS leader
    WHERE {SILENT}
      AND EXISTS (SELECT 1 FROM leaders WHERE {RELIEVES})
    ORDER BY 1, 2
"""
#: Measured durations, and where new jobs go.
READ_TYPES = """
    SELECT type, p95_seconds, declared_pool, pool FROM job_types
    WHERE p95_seconds IS NOT NULL ORDER BY type
"""
#: Counters and histograms, see ``models.tallies``.
READ_TOTALS = f"""
    SELECT kind, name, sum(total)::bigint AS total, sum(amount)::bigint AS amount FROM tallies
    WHERE kind = ANY (ARRAY{list(TOTALS)}) GROUP BY kind, name ORDER BY kind, name
"""
READ_SILENCE = f"""
    SELECT greatest(extract(epoch FROM now() - {LAST_SIGN}), 0)::float8 FROM leaders AS leader
    WHERE leader.role = 'scheduler'
"""
READ_REFUSED = "SELECT code, refused FROM refusals WHERE tenant_id = 0 ORDER BY code"
#: Limits in force, by dependency and kind; learned ones count for an hour.
READ_QUOTAS = """
    SELECT dependency, kind, least(declared, learned) AS most, remaining FROM (
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
READ_QUOTA_STATES = f"SELECT dependency, refused, {QUOTA_CLOSED} AS closed FROM quotas ORDER BY 1"
READ_PROCESSES = f"""
    SELECT name, kind, pools, slots, busy, db_size, db_in_use, db_waiters
    FROM processes
    WHERE {ALIVE} ORDER BY name
"""
#: What the autoscaler wants, and the longest recent wait for a slot that it has seen.
READ_DESIRED = """
    SELECT pool, workers,
           CASE WHEN updated_at > now() - interval '10 seconds' THEN oldest_seconds ELSE 0 END
               AS oldest_seconds,
           living
    FROM desired_workers
"""

#: More schedules than this are not counted.
SCHEDULES_COUNTED = 100_000
READ_SCHEDULES = f"""
    SELECT CASE WHEN paused THEN 'paused' WHEN next_at IS NULL THEN 'ended' ELSE 'active' END
               AS state,
           count(*) AS schedules
    FROM (SELECT paused, next_at FROM schedules LIMIT {SCHEDULES_COUNTED}) AS counted GROUP BY 1
"""
#: How late the oldest tick is that nobody has made yet.
READ_TICK_AGE = """
    SELECT greatest(extract(epoch FROM now() - next_at), 0) FROM schedules
    WHERE NOT paused ORDER BY next_at LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class GaugeReadings:
    """The system at one moment."""

    #: Jobs by pool and state.
    counts: dict[str, dict[str, int]]
    #: Age of the oldest queued job and of the oldest that is due to be queued, by pool.
    queue_seconds: dict[str, float]
    due_seconds: dict[str, float]
    dead_letters: dict[str, int]
    #: Rows of READ_PROCESSES.
    processes: Sequence[Any]
    #: By kind and name: see READ_TROUBLE.
    trouble: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Submissions that were refused, by code.
    refused: dict[str, int] = field(default_factory=dict)
    #: Workers that the autoscaler wants, and those that there are, by pool.
    desired: dict[str, int] = field(default_factory=dict)
    living: dict[str, int] = field(default_factory=dict)
    #: Rows of READ_TYPES.
    types: Sequence[Any] = ()
    #: Rows of READ_QUOTAS and READ_QUOTA_STATES.
    quotas: Sequence[Any] = ()
    quota_states: Sequence[Any] = ()
    #: Schedules by state, and how late their oldest tick is.
    schedules: dict[str, int] = field(default_factory=dict)
    tick_seconds: float = 0.0
    #: Age of the oldest open snapshot.
    snapshot_seconds: float = 0.0
    snapshot_transactions: int = 0
    #: Dead letters that were discarded, by pool.
    discarded: dict[str, int] = field(default_factory=dict)
    #: What each pool owes the tenant it owes most, in slot-seconds.
    owed_seconds: dict[str, float] = field(default_factory=dict)
    #: Since a scheduler led; None if none ever did.
    silent_seconds: float | None = None
    #: By kind and name: how often, and how much.
    totals: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def total(self, kind: TallyKind) -> dict[str, tuple[int, int]]:
        """How often it happened and how much that was, by name."""
        return self.totals.get(kind, {})

    def admitted(self) -> dict[str, int]:
        """Jobs that were submitted or replayed, by pool.

        Each is counted where it is. Counts of ends never fall, when rows are retired or replayed;
        one that was discarded has ended twice.
        """
        return {
            pool: sum(by_state.values()) - self.discarded.get(pool, 0)
            for pool, by_state in self.counts.items()
        }


def slots_of(readings: GaugeReadings, pools: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Slots of living workers and how many of them are busy, by pool."""
    slots = dict.fromkeys(pools, (0, 0))
    for process in readings.processes:
        for pool in process.pools if process.kind == "worker" else ():
            if pool in slots:
                size, busy = slots[pool]
                slots[pool] = (size + process.slots, busy + process.busy)
    return slots


def read_gauges(connection: Connection) -> GaugeReadings:
    """Everything that the metrics show."""
    desired = connection.exec_driver_sql(READ_DESIRED).all()
    trouble: dict[str, dict[str, float]] = {}
    for row in connection.exec_driver_sql(READ_TROUBLE):
        trouble.setdefault(row.kind, {})[row.name] = float(row.value)
    snapshot = connection.exec_driver_sql(OLDEST_SNAPSHOT).one()
    totals: dict[str, dict[str, tuple[int, int]]] = {}
    for row in connection.exec_driver_sql(READ_TOTALS):
        totals.setdefault(row.kind, {})[row.name] = (row.total, row.amount)
    heads = read_heads(connection)
    counts = connection.exec_driver_sql(READ_COUNTS).all()
    return GaugeReadings(
        counts={row.pool: {each: int(getattr(row, each)) for each in STATES} for row in counts},
        discarded={row.pool: int(row.discarded) for row in counts},
        queue_seconds=ages_of(heads, {row.pool: row.oldest_seconds for row in desired}),
        owed_seconds={row.pool: row.owed_seconds or 0.0 for row in heads},
        silent_seconds=connection.exec_driver_sql(READ_SILENCE).scalar(),
        totals=totals,
        due_seconds=read_pairs(connection, READ_DUE_AGES, pools=list(POOLS)),
        dead_letters=read_pairs(connection, READ_DEAD_LETTERS),
        processes=connection.exec_driver_sql(READ_PROCESSES).all(),
        trouble=trouble,
        refused=read_pairs(connection, READ_REFUSED),
        desired={row.pool: row.workers for row in desired},
        living={row.pool: row.living for row in desired},
        types=connection.exec_driver_sql(READ_TYPES).all(),
        quotas=connection.exec_driver_sql(READ_QUOTAS).all(),
        quota_states=connection.exec_driver_sql(READ_QUOTA_STATES).all(),
        schedules=read_pairs(connection, READ_SCHEDULES),
        tick_seconds=float(connection.exec_driver_sql(READ_TICK_AGE).scalar() or 0.0),
        snapshot_seconds=snapshot.seconds,
        snapshot_transactions=snapshot.transactions,
    )


def read_pairs(connection: Connection, statement: str, **asked: object) -> dict[str, Any]:
    """A statement of two columns: its second by its first."""
    return dict(map(tuple, connection.exec_driver_sql(statement, asked)))


def read_heads(connection: Connection) -> Sequence[Row[Any]]:
    """What the heads of each pool's queue show."""
    asked = {"pools": list(POOLS), "after": [0] * len(POOLS)}
    return connection.exec_driver_sql(READ_AGES, asked).all()


def ages_of(heads: Sequence[Row[Any]], watched: Mapping[str, float]) -> dict[str, float]:
    """Age of the oldest queued job of each pool.

    With more heads than are read it may be more; then it is at least what the autoscaler has
    seen, which reads the whole queue in turns.
    """
    return {
        row.pool: max(float(row.age_seconds), watched.get(row.pool, 0.0) if row.cut else 0.0)
        for row in heads
    }
