"""Retiring the oldest jobs under load: by batches of deletes, or by dropping their partition.

Both remove what ended before a moment, with attempts, logs, events and unscored applications. The
deletes are the product's own, at its own pace. A partition can be dropped only if nothing in it has
to stay. If something has, say dead letters that are kept for longer, it is replaced by a partition
with these rows alone, and everybody waits meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Engine

from app.scheduler.maintenance.retirer import Kept, Retirer
from app.scheduler.role import BUSY_SECONDS
from loadtest.fleet import database
from loadtest.retention.flow import STATEMENT_SECONDS, Flow, Load
from loadtest.retention.layout import KEYS, Span, create_partition, options_of
from loadtest.retention.rows import VACUUM, run
from loadtest.retention.tables import COUNT_DEAD, count_jobs, read_total
from models.blobs import open_blobs
from models.jobs.retire import BATCH
from models.leadership import Leader
from models.store.arrays import plain_array
from models.store.clock import DATABASE_CLOCK
from models.store.session import transaction

#: Jobs end this much later than they were submitted, at most.
MOST_SECONDS = 10.0
#: What was submitted so much later than the last job of a span is not due before the end.
LATER = timedelta(hours=1)
#: Load goes on for so long in any case.
LOAD_SECONDS = 5.0
#: Statistics of tables are written once per second.
STATISTICS_SECONDS = 1.5
FOREVER_SECONDS = 3_650 * 86_400.0

#: Reads the whole partition: no index says when its last job ended, or names its blobs.
READ_PARTITION = """
    SELECT coalesce(array_agg(id::text) FILTER (WHERE NOT coalesce(
               status IN ('succeeded', 'cancelled', 'expired'{dead})
               AND finished_at < %(before)s, false)), ARRAY[]::text[]) AS staying,
           array_agg(payload_blob) FILTER (WHERE payload_blob IS NOT NULL) AS blobs
    FROM {partition}
"""
#: By condition on the rows of the former partition, ``old``: a job that was replayed meanwhile is
#: found by its state.
KEEP_JOBS = """
    SELECT old.* FROM {old} AS old WHERE id = ANY (%(ids)s::uuid[])
    UNION ALL SELECT old.* FROM {old} AS old
    WHERE status IN ('scheduled', 'queued', 'dispatched', 'running')
      AND id <> ALL (%(ids)s::uuid[])
"""
KEEP_OF_JOBS = "SELECT old.* FROM {old} AS old JOIN {jobs} AS job ON job.id = old.job_id"
REMOVE_UNSCORED = """
    DELETE FROM applications AS application
    WHERE id >= %(first)s::uuid AND id < %(last)s::uuid AND score IS NULL
      AND NOT EXISTS (SELECT FROM jobs AS job WHERE job.id = application.id)
"""


class Way(NamedTuple):
    """How jobs are retired."""

    name: str
    act: Callable[[Engine, Leader, Span, bool], float]
    #: Whether dead letters stay.
    keeps_dead: bool = False


@dataclass(frozen=True, slots=True)
class Retired:
    """What it took to retire some jobs."""

    way: str
    jobs: int
    #: Until the last of them was gone, and the part of it in which statements ran.
    seconds: float
    busy_seconds: float
    #: The load right before, and meanwhile.
    before: Flow
    during: Flow
    #: Dead rows when it was over, and what autovacuum had done by then.
    dead: int
    vacuums: int
    vacuum_seconds: float
    #: Of a vacuum of all tables afterwards.
    last_vacuum_seconds: float
    #: Bytes of the tables before, and after that.
    bytes_before: int
    bytes_after: int
    #: Jobs that should be gone, and jobs that are gone and should not.
    left: int
    lost: int

    @property
    def cpu(self) -> float:
        """CPU time of the server per job retired, beyond that of the load, in microseconds.

        Below 0 if the load cost more before, by chance; the same holds for the log.
        """
        usual = self.before.server_cpu / self.before.jobs * self.during.jobs
        return (self.during.server_cpu - usual) / max(1, self.jobs) * 1e6

    @property
    def wal(self) -> float:
        """Bytes of WAL per job retired, beyond those of the load."""
        usual = self.before.wal / self.before.jobs * self.during.jobs
        return (self.during.wal - usual) / max(1, self.jobs)

    def figures(self) -> dict[str, Any]:
        """What the report has of it."""
        known = {
            name: value for name, value in asdict(self).items() if name not in ("before", "during")
        }
        flows = {"before": self.before.figures(), "during": self.during.figures()}
        return {**known, "cpu": self.cpu, "wal": self.wal, **flows}


def retire(load: Load, url: str, before: Flow, span: Span, until: datetime, way: Way) -> Retired:
    """Retire the jobs of a span, which is the oldest, while the load goes on.

    ``until``: no job of before the load is younger.
    """
    safe = span.until + LATER
    with database(url, STATEMENT_SECONDS) as engine, ThreadPoolExecutor(1) as thread:
        later = count_jobs(engine, safe, until)
        staying = count_jobs(engine, span.since, span.until, COUNT_DEAD) if way.keeps_dead else 0
        all_jobs = count_jobs(engine, span.since, until)
        earlier = read_total(engine)
        load.bench.report()  # only a leader retires
        leader = load.bench.leader
        task = thread.submit(timed, lambda: way.act(engine, leader, span, way.keeps_dead))
        during = load.run(LOAD_SECONDS, busy=lambda: not task.done())
        seconds, busy_seconds = task.result()
        time.sleep(STATISTICS_SECONDS)
        found = read_total(engine)
        vacuum_seconds, _ = timed(lambda: run(engine, VACUUM))
        remaining = count_jobs(engine, span.since, span.until)
        return Retired(
            way=way.name,
            jobs=all_jobs - count_jobs(engine, span.since, until),
            seconds=seconds,
            busy_seconds=busy_seconds,
            before=before,
            during=during,
            dead=found.dead,
            vacuums=found.vacuums - earlier.vacuums,
            vacuum_seconds=found.vacuum_seconds - earlier.vacuum_seconds,
            last_vacuum_seconds=vacuum_seconds,
            bytes_before=earlier.size,
            bytes_after=read_total(engine).size,
            left=max(0, remaining - staying),
            lost=max(0, staying - remaining) + later - count_jobs(engine, safe, until),
        )


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    """How long it took, and what it returned."""
    began = time.monotonic()
    result = act()
    return time.monotonic() - began, result


def delete_batches(engine: Engine, leader: Leader, span: Span, keeps_dead: bool) -> float:
    """Delete as the scheduler does, with its pauses; how long the statements took."""
    age = DATABASE_CLOCK.now().timestamp() - span.until.timestamp() - MOST_SECONDS
    kept = Kept(age, FOREVER_SECONDS if keeps_dead else age, age, FOREVER_SECONDS)
    # No job has a blob.
    retirer, busy_seconds = Retirer(engine, leader, open_blobs("/nonexistent"), kept), 0.0
    while True:
        seconds, touched = timed(lambda: retirer.run_once(time.monotonic()))
        busy_seconds += seconds
        if touched < BATCH:
            return busy_seconds
        time.sleep(BUSY_SECONDS)


def drop_partition(engine: Engine, _: Leader, span: Span, keeps_dead: bool) -> float:
    """Drop the partitions of a span, or replace them if something stays; how long it took."""
    began, jobs = time.monotonic(), span.partition("jobs")
    with engine.connect() as connection:
        asked = {"before": span.until + timedelta(seconds=MOST_SECONDS)}
        dead = "" if keeps_dead else ", 'dead'"
        statement = READ_PARTITION.format(dead=dead, partition=jobs)
        found = connection.exec_driver_sql(statement, asked).one()
    if found.staying:
        replace(engine, "jobs", span, KEEP_JOBS, {"ids": plain_array(found.staying)})
        for table in ("attempts", "run_logs"):
            replace(engine, table, span, KEEP_OF_JOBS, {})
        drop(engine, "events", span)
    else:
        for table in KEYS:
            drop(engine, table, span)
    first, last = span.bounds("jobs")
    with engine.connect() as connection:
        connection.exec_driver_sql(REMOVE_UNSCORED, {"first": first, "last": last})
    return time.monotonic() - began


def drop(engine: Engine, table: str, span: Span) -> None:
    """Nobody waits for it, but it waits until all statements have ended that use the table."""
    name = span.partition(table)
    run(engine, f"ALTER TABLE {table} DETACH PARTITION {name} CONCURRENTLY")
    run(engine, f"DROP TABLE {name}")


def replace(
    engine: Engine, table: str, span: Span, keep: str, parameters: Mapping[str, str]
) -> None:
    """Put a partition with a few of the rows in the place of the whole one."""
    name = span.partition(table)
    old = f"{name}_old"
    with transaction(engine) as connection:
        options = options_of(connection, name)
        connection.exec_driver_sql(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        connection.exec_driver_sql(f"ALTER TABLE {table} DETACH PARTITION {name}")
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {old}")
        create_partition(connection, table, span, options)
        # Not through the table: its triggers count these jobs already.
        kept = keep.format(old=old, jobs=span.partition("jobs"))
        connection.exec_driver_sql(f"INSERT INTO {name} {kept}", dict(parameters))
        connection.exec_driver_sql(f"DROP TABLE {old}")


DELETES = Way("batches of deletes", delete_batches)
DROPS = Way("partition dropped", drop_partition)
REPLACES = Way("partition replaced, dead letters stay", drop_partition, keeps_dead=True)
