"""Durable jobs a second through one gevent worker, read from the rows.

The jobs wait in line before the worker starts, and the rate is that between the tenth and the
ninetieth percent of their endings: neither start-up nor the thin end counts.
"""

from __future__ import annotations

import time
import uuid

from sqlalchemy import Engine, text

from app.admission.admit import admit_group
from app.admission.submission import Entry, Submission
from loadtest.cores import CoreMeter
from loadtest.fairline import TENANT, Fairline
from loadtest.plain import PlainCelery
from loadtest.samples import Sample
from models.ids import new_id

GROUP = 500
LONGEST_SECONDS = 180.0

RATE = """
    SELECT count(*), extract(epoch FROM max(finished_at) - min(finished_at))
    FROM (SELECT finished_at, percent_rank() OVER (ORDER BY finished_at) AS share
          FROM {table} WHERE {mine} AND finished_at IS NOT NULL) AS ended
    WHERE share BETWEEN 0.1 AND 0.9
"""
LEFT = "SELECT count(*) FROM {table} WHERE {mine} AND finished_at IS NULL"


class Stuck(RuntimeError):
    """The jobs did not end in time."""


def drain_fairline(fairline: Fairline, jobs: int) -> Sample:
    """``echo`` jobs through the line, the scheduler, the broker and one short worker."""
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'echo'"
        queue_echoes(engine, jobs)
        fairline.start_scheduler()
        fairline.start_worker("short")
        cores = watch(engine, "jobs", mine, fairline.fleet.pids(), jobs)
        rate = read_rate(engine, "jobs", mine)
    fairline.fleet.stop("worker-short-1", "scheduler")
    return Sample("no-op: Fairline, one worker", rate, cores=cores)


def queue_echoes(engine: Engine, jobs: int) -> None:
    """Put jobs in the short pool's line with the front door's own statement."""
    with engine.connect() as connection:
        tenant_id = connection.execute(
            text("SELECT id FROM tenants WHERE name = :name"), {"name": TENANT}
        ).scalar_one()
    for begin in range(0, jobs, GROUP):
        admit_group(
            engine,
            [
                Entry((Submission(new_id(), tenant_id, "echo", "short", f'{{"n":{number}}}'),))
                for number in range(begin, min(begin + GROUP, jobs))
            ],
            express=False,
        )


def drain_plain(plain: PlainCelery, jobs: int) -> Sample:
    """Tasks that wait in RabbitMQ through one Celery worker."""
    engine = plain.engine()
    mine = f"role = 'noop-{uuid.uuid4().hex[:8]}'"
    plain.queue_tasks(jobs, role=mine.split("'")[1])
    plain.start_worker()
    cores = watch(engine, "applications", mine, plain.fleet.pids(), jobs)
    rate = read_rate(engine, "applications", mine)
    plain.fleet.stop("plain-worker")
    engine.dispose()
    return Sample("no-op: baseline, one worker", rate, cores=cores)


def watch(
    engine: Engine, table: str, mine: str, pids: dict[str, list[int]], jobs: int
) -> dict[str, float]:
    """Wait until every job has ended; who used the cores between a tenth and nine of them."""
    deadline = time.monotonic() + LONGEST_SECONDS
    meter: CoreMeter | None = None
    cores: dict[str, float] = {}
    while True:
        with engine.connect() as connection:
            left = connection.execute(text(LEFT.format(table=table, mine=mine))).scalar_one()
        if meter is None and left < 0.9 * jobs:
            meter = CoreMeter(pids)
        if meter is not None and not cores and left < 0.1 * jobs:
            cores = meter.read()
        if left == 0:
            return cores
        if time.monotonic() > deadline:
            raise Stuck(f"{left} of {jobs} jobs in {table} have not ended")
        time.sleep(0.25)


def read_rate(engine: Engine, table: str, mine: str) -> float:
    """Endings a second in the middle part."""
    with engine.connect() as connection:
        count, seconds = connection.execute(text(RATE.format(table=table, mine=mine))).one()
    return float(count) / max(float(seconds or 0.0), 1e-9)
