"""How long jobs of each type ran, and what the table says of the types."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

from app.policy.histogram import Bin, Histogram, decay, gather
from app.policy.pool_choice import WINDOW_SECONDS
from models.durations import MICROSECONDS, parse_run_name
from models.presence import ALIVE

#: A bucket belongs to the window in which it begins: never anything from before a change.
READ_RUNS = f"""
    SELECT name, extract(epoch FROM now() - bucket)::float8 AS age_seconds, total,
           bad AS microseconds
    FROM tallies
    WHERE kind = 'run' AND bucket > now() - interval '{WINDOW_SECONDS:g} seconds'
"""
READ_TYPES = """
    SELECT type, declared_pool, pool,
           extract(epoch FROM now() - moved_at)::float8 AS moved_seconds
    FROM job_types
"""
READ_ALIVE = f"""
    SELECT DISTINCT unnest(pools) AS queue FROM processes
    WHERE kind = 'worker' AND slots > 0 AND NOT draining
      AND {ALIVE}
"""


@dataclass(slots=True)
class TypeRuns:
    """The runs of a type within the window."""

    #: Runs and violations by pool.
    by_pool: dict[str, tuple[int, int]] = field(default_factory=dict)
    bins: list[Bin] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(runs for runs, _ in self.by_pool.values())

    def histogram(self) -> Histogram:
        """Their durations, older ones counting less."""
        return gather(self.bins)


@dataclass(frozen=True, slots=True)
class TypeRecord:
    """What the table says of a type."""

    declared: str
    pool: str
    #: Since it was moved; None if it never was.
    moved_seconds: float | None


def read_runs(connection: Connection) -> dict[str, TypeRuns]:
    """What ran within the window, by type."""
    found: dict[str, TypeRuns] = {}
    for row in connection.exec_driver_sql(READ_RUNS):
        job_type, pool, number, over = parse_run_name(row.name)
        runs = found.setdefault(job_type, TypeRuns())
        before, violations = runs.by_pool.get(pool, (0, 0))
        runs.by_pool[pool] = (before + row.total, violations + row.total * over)
        weight = decay(row.age_seconds)
        runs.bins.append((number, row.total * weight, row.microseconds / MICROSECONDS * weight))
    return found


def read_standings(connection: Connection) -> dict[str, TypeRecord]:
    """The types that are in the table."""
    return {
        row.type: TypeRecord(row.declared_pool, row.pool, row.moved_seconds)
        for row in connection.exec_driver_sql(READ_TYPES)
    }


def read_alive(connection: Connection) -> set[str]:
    """Queues that live workers consume."""
    return {row.queue for row in connection.exec_driver_sql(READ_ALIVE)}
