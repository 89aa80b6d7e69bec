"""``make bench-dispatch``: what a dispatch costs, from a short queue to a very long one.

The scheduler's own Dispatcher picks, marks and charges jobs turn by turn, reconciling once a
second as in production. What counts is CPU time of the scheduler and of its PostgreSQL session,
so that a busy machine does not disturb. Publishing is left out: it does not depend on the queue.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from sqlalchemy import Engine

from app.broker.publish import NOTHING_KNOWN, Publisher
from app.reads.estimates import Estimates
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.dispatching.reconciler import RECONCILE_SECONDS, ShareReconciler
from app.scheduler.role import TimedRole
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import running
from loadtest.fleet import database, migrated
from loadtest.report import Bar, Report, Screen, command, table
from models.job_counts import FOLD_SECONDS, CountFolder
from models.jobs.dispatch import Dispatch
from models.leadership import RENEW_SECONDS, Leader
from models.presence import Presence, announce
from tasks.registry import load_types

#: Waiting jobs and tenants that they belong to.
SCENES = ((1_000, 10), (100_000, 10), (1_000_000, 10), (100_000, 10_000), (1_000_000, 10_000))
QUICK_SCENES = ((1_000, 10), (20_000, 2_000))
#: Slots of the pool: enough for full batches.
SLOTS = 250
STATEMENT_SECONDS = 120.0
#: Dispatches measured in a scene.
MEASURED = 10_000
#: Turns before the measurement: the first one meets every tenant.
WARM_TURNS = 2
MOST_RATIO = 1.5
LEAST_PER_SECOND = 3_000

#: Ids in the order of their creation, as those of the API are.
FILL = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status)
    SELECT (lpad(to_hex(number), 12, '0') || substr(md5(number::text), 1, 20))::uuid,
           1 + number %% %(tenants)s, 'echo', 'short', '{}', 'queued'
    FROM generate_series(%(first)s, %(last)s) AS number
"""
FILL_BATCH = 100_000
JOB_SECONDS = "what a job usually takes; above 0.05 tenants take turns, which costs more with many"
#: As the Classifier would have found it: the type has run before.
MEASURED_TYPE = """
    INSERT INTO job_types (type, declared_pool, pool, mean_seconds, runs)
    VALUES ('echo', 'short', 'short', %(seconds)s, 1000)
"""
MINE = "id = ANY (%(ids)s::uuid[])"


class Scene(NamedTuple):
    """What was measured at one length of the queue."""

    waiting: int
    tenants: int
    dispatched: int
    microseconds: float
    #: The scheduler's own part of it.
    own: float
    #: Median turn by the clock, in milliseconds.
    turn: float


class Nowhere(Publisher):
    """A broker that accepts everything at once."""

    def __init__(self) -> None:
        self.sent: list[Dispatch] = []

    def publish(
        self,
        dispatches: Sequence[Dispatch],
        workers: int = 1,
        lengths: Mapping[str, float] = NOTHING_KNOWN,
        slots: int = 0,
    ) -> bool:
        self.sent.extend(dispatches)
        return True

    def undelivered(self) -> list[Dispatch]:
        return []

    def ping(self) -> None:
        return


@contextmanager
def filled(
    server: EmbeddedPostgres, waiting: int, tenants: int, seconds: float
) -> Iterator[Engine]:
    """A migrated database with so many queued jobs that usually take ``seconds``."""
    url = migrated(server, f"dispatch_{waiting}_{tenants}")
    with database(url, STATEMENT_SECONDS) as engine:
        with engine.connect() as connection:
            connection.exec_driver_sql(
                "INSERT INTO tenants (name, changed_at)"
                " SELECT 't' || number, now() - interval '1 hour'"
                " FROM generate_series(1, %(tenants)s) AS number",
                {"tenants": tenants},
            )
            connection.exec_driver_sql(MEASURED_TYPE, {"seconds": seconds})
            for first in range(1, waiting + 1, FILL_BATCH):
                last = min(first + FILL_BATCH - 1, waiting)
                connection.exec_driver_sql(FILL, {"tenants": tenants, "first": first, "last": last})
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")
        yield engine


class Meter:
    """CPU time of this thread and of the database's sessions."""

    def __init__(self, engine: Engine) -> None:
        with engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            )
            self._sessions = [Path(f"/proc/{row.pid}/schedstat") for row in rows]

    def read(self) -> tuple[float, float]:
        """Seconds of this thread and of the sessions, so far."""
        theirs = sum(int(path.read_text().split()[0]) for path in self._sessions)
        return time.thread_time(), theirs / 1e9


class Bystander:
    """Ends what was dispatched and queues as many jobs again, over its own session."""

    def __init__(self, engine: Engine, waiting: int, tenants: int) -> None:
        self._engine, self._filled, self._tenants = engine, waiting, tenants

    def go_on(self, sent: Sequence[Dispatch]) -> None:
        announce(self._engine, Presence("worker", "worker", ["short"], slots=SLOTS))
        if not sent:
            return
        ids = {"ids": [each.id for each in sent]}
        first, self._filled = self._filled + 1, self._filled + len(sent)
        more = {"tenants": self._tenants, "first": first, "last": self._filled}
        with self._engine.connect() as connection:
            connection.exec_driver_sql("UPDATE jobs SET status = 'running' WHERE " + MINE, ids)
            connection.exec_driver_sql("UPDATE jobs SET status = 'succeeded' WHERE " + MINE, ids)
            connection.exec_driver_sql(FILL, more)


def measure(engine: Engine, other: Engine, waiting: int, tenants: int) -> Scene:
    leader = Leader(engine, "bench")
    leader.run_once(0.0)
    folder = CountFolder(engine)
    queues = PoolQueues(engine, leader, folder)
    pacers = QuotaPacers(engine, leader, load_types())
    pools = Pools(engine, queues, pacers.allowances)
    estimates, broker = Estimates(engine), Nowhere()
    dispatcher = Dispatcher(engine, leader, broker, pools, estimates, pacers)
    shares = ShareReconciler(engine, leader, queues, estimates)
    turning = (
        (leader, RENEW_SECONDS),
        (folder, FOLD_SECONDS),
        (dispatcher, 0.0),
        (shares, RECONCILE_SECONDS),
    )
    roles = [TimedRole(role, seconds) for role, seconds in turning]
    meter, bystander = Meter(engine), Bystander(other, waiting, tenants)
    turns: list[float] = []
    dispatched, own, theirs = 0, 0.0, 0.0
    for number in itertools.count():
        bystander.go_on(broker.sent)
        broker.sent.clear()
        if dispatched >= MEASURED:
            break
        now, before = time.monotonic(), meter.read()
        for role in roles:
            if now >= role.due:
                role.due = now + role.every_seconds
                role.role.run_once(now)
        after = meter.read()
        if not broker.sent:
            raise RuntimeError("nothing was dispatched although jobs wait")
        if number >= WARM_TURNS:
            dispatched += len(broker.sent)
            own += after[0] - before[0]
            theirs += after[1] - before[1]
            turns.append(time.monotonic() - now)
    leader.resign()
    each = ((own + theirs) / dispatched * 1e6, own / dispatched * 1e6)
    return Scene(waiting, tenants, dispatched, *each, statistics.median(turns) * 1e3)


def judge(scenes: Sequence[Scene]) -> Report:
    slowest, fastest = (pick(scene.microseconds for scene in scenes) for pick in (max, min))
    columns: dict[str, Any] = {
        "waiting": "{.waiting:,}",
        "tenants": "{.tenants:,}",
        "dispatched": "{.dispatched:,}",
        "µs each": "{.microseconds:.0f}",
        "scheduler's µs": "{.own:.0f}",
        "per second": lambda scene: f"{1e6 / scene.microseconds:,.0f}",
        "per turn": "{.turn:.0f} ms",
    }
    return Report(
        *("dispatching", "What a dispatch costs"),
        tables=[table("Dispatches", columns, scenes)],
        bars=[
            Bar("cost of a dispatch, most to least", slowest / fastest, "<=", MOST_RATIO, " x"),
            Bar("fewest dispatches per second", 1e6 / slowest, ">=", LEAST_PER_SECOND, "/s"),
        ],
    )


def run(chosen: argparse.Namespace, console: Console) -> Report:
    """Every scene with its own database on a private server."""
    measured: list[Scene] = []
    with (
        tempfile.TemporaryDirectory(prefix="fairline-dispatch-") as home,
        running(EmbeddedPostgres(Path(home)), Path(home) / "logs") as started,
        Screen(console) as screen,
    ):
        for waiting, tenants in QUICK_SCENES if chosen.quick else SCENES:
            progress = screen.task(f"{waiting:,} jobs of {tenants:,} tenants", 2)
            with filled(started.service, waiting, tenants, chosen.job_seconds) as engine:
                progress(1)
                url = engine.url.render_as_string(hide_password=False)
                with database(url, STATEMENT_SECONDS) as other:
                    measured.append(measure(engine, other, waiting, tenants))
            progress(2)
    return judge(measured)


FLAGS = (
    ("--quick", False, "short queues only, for a first look"),
    ("--job-seconds", 0.005, JOB_SECONDS),
)

if __name__ == "__main__":
    sys.exit(command("make bench-dispatch", __doc__, run, *FLAGS))
