"""Reading: what workers counted about job types, and what is written about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection

from app.classify.histogram import Bin, Histogram, decay, gather
from app.classify.rules import WINDOW_SECONDS
from models.presence import PRESENCE_LOST_SECONDS
from tasks.runtime.durations import MICROSECONDS, parse_run_name

#: A bucket belongs to the window in which it begins: never anything from before a change.
READ_RUNS = f"""
    SELECT name, extract(epoch FROM now() - bucket)::float8, total, bad FROM tallies
    WHERE kind = 'run' AND bucket > now() - interval '{WINDOW_SECONDS:g} seconds'
"""
READ_TYPES = """
    SELECT type, declared_pool, pool, extract(epoch FROM now() - moved_at)::float8 FROM job_types
"""
READ_ALIVE = f"""
    SELECT DISTINCT unnest(pools) FROM processes
    WHERE kind = 'worker' AND slots > 0 AND NOT draining
      AND heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds'
"""


@dataclass(slots=True)
class Runs:
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
class Standing:
    """What the table says of a type."""

    declared: str
    pool: str
    #: Since it was moved; None if it never was.
    moved_seconds: float | None


def read_runs(taken: Connection) -> dict[str, Runs]:
    """What ran within the window, by type."""
    return fold_runs(tuple(row) for row in taken.exec_driver_sql(READ_RUNS))


def fold_runs(rows: Iterable[tuple[str, float, int, int]]) -> dict[str, Runs]:
    """Rows of READ_RUNS by type."""
    found: dict[str, Runs] = {}
    for name, age_seconds, total, microseconds in rows:
        job_type, pool, number, over = parse_run_name(name)
        runs = found.setdefault(job_type, Runs())
        before, violations = runs.by_pool.get(pool, (0, 0))
        runs.by_pool[pool] = (before + total, violations + total * over)
        weight = decay(age_seconds)
        runs.bins.append((number, total * weight, microseconds / MICROSECONDS * weight))
    return found


def read_standings(taken: Connection) -> dict[str, Standing]:
    """The types that the table knows."""
    return {row[0]: Standing(*row[1:]) for row in taken.exec_driver_sql(READ_TYPES)}


def read_alive(taken: Connection) -> set[str]:
    """Queues that somebody works on."""
    return {row[0] for row in taken.exec_driver_sql(READ_ALIVE)}
