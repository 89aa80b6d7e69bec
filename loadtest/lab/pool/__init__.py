"""The database-pool trap: a connection held while a job runs, and what it costs.

Three sides in one run under the same load: plain Celery whose task scores inside its transaction,
with a pool that is too small for its slots; the same with a connection for every slot; and
Fairline with two connections a worker. Each side is started, loaded, drained and taken away
before the next one begins.
"""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from loadtest.closed_loop import applications
from loadtest.fleet import Fairline, Fleet, rows, until
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import (
    Desk,
    Experiment,
    Gauges,
    Size,
    Speed,
    fairline_gauges,
    read_pools,
)
from loadtest.lab.pool.verdict import ACCEPTED, COLUMNS, Course, bars, draw, figures, findings
from loadtest.plain import PlainCelery
from loadtest.report import Picture, Report, table
from loadtest.shapes import Stretch

#: Jobs that hold a connection are running; the others wait, wherever that is.
PLAIN_COUNTS = "SELECT count(*), count(finished_at) FROM applications"
PLAIN_OLDEST = """
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
    FROM (SELECT created_at FROM applications WHERE finished_at IS NULL
          ORDER BY created_at OFFSET :running LIMIT 1) AS first
"""
ENDINGS = """
    SELECT id::text, extract(epoch FROM finished_at)::float8 FROM {table}
    WHERE id = ANY (CAST(:ids AS uuid[])) AND {ended}
"""
PLAIN_ENDINGS = ENDINGS.format(table="applications", ended="finished_at IS NOT NULL")
FAIRLINE_ENDINGS = ENDINGS.format(table="jobs", ended="status = 'succeeded'")


@dataclass(frozen=True, slots=True)
class Shape:
    """What both systems have in common."""

    workers: int
    score_seconds: float


@contextmanager
def plain_celery(fleet: Fleet, shape: Shape) -> Iterator[PlainCelery]:
    """The baseline, whose front door both sizes of the workers' pool share; the first opens it."""
    plain = PlainCelery(
        fleet,
        name="plain-pool",
        hold_connection="1",
        score_seconds=str(shape.score_seconds),
        prefetch="1",
    )
    try:
        yield plain
    finally:
        fleet.kill("plain-web")
        plain.remove()


class PlainSide:
    """Workers of plain Celery whose task holds its connection while it scores."""

    def __init__(self, plain: PlainCelery, shape: Shape, pool_size: int) -> None:
        self.title = f"Plain Celery, {pool_size} connections a worker"
        self.url = plain.url
        self._shape = shape
        self._size = pool_size
        self._plain = plain
        self._said = plain.fleet.home / f"{plain.name}-{pool_size}"
        self._names: list[str] = []

    def start(self) -> None:
        """Start everything and wait until it would score what it is sent."""
        self._said.mkdir(parents=True, exist_ok=True)
        settings = {"pool_size": str(self._size), "pool_folder": str(self._said)}
        for number in range(1, self._shape.workers + 1):
            self._names.append(self._plain.start_worker(number, **settings))
        # After the workers, which start meanwhile.
        if "plain-web" not in self._plain.fleet.children:
            self._plain.start_web()
        self._plain.await_workers(self._shape.workers)

    @contextmanager
    def gauges(self) -> Iterator[Gauges]:
        accepted, done = Speed(), Speed()
        engine = self._plain.engine()

        def read() -> Mapping[str, float]:
            pools = read_said(self._said)
            running = sum(pool["in_use"] for pool in pools)
            submitted, ended = rows(engine, PLAIN_COUNTS)[0]
            oldest = rows(engine, PLAIN_OLDEST, running=running)[0][0]
            return {
                "waiting": max(0, submitted - ended - running),
                "running": running,
                "oldest_s": round(oldest, 2),
                "accepted_s": accepted(submitted),
                "done_s": done(ended),
                "waiters": sum(pool["waiting"] for pool in pools),
            }

        try:
            yield read
        finally:
            engine.dispose()

    def endings(self, ids: Sequence[str]) -> dict[str, float]:
        """When each of these was scored, if it was."""
        engine = self._plain.engine()
        try:
            return dict(map(tuple, rows(engine, PLAIN_ENDINGS, ids=list(ids))))
        finally:
            engine.dispose()

    def pool_size(self) -> int:
        """Connections that the pool of a worker may open, as the workers say; the most."""
        return max(pool["size"] for pool in read_said(self._said))

    def timeouts(self) -> int:
        """Jobs that gave up waiting for a connection."""
        return sum(pool["timeouts"] for pool in read_said(self._said))

    def stop(self) -> None:
        """Stop everything and leave no rows behind."""
        # At once: Celery would take seconds to say goodbye to a broker that is to forget it.
        self._plain.fleet.kill(*self._names)
        self._plain.remove_queue()
        engine = self._plain.engine()
        with engine.begin() as connection:
            connection.execute(text("TRUNCATE applications"))
        engine.dispose()
        shutil.rmtree(self._said, ignore_errors=True)


class FairlineSide:
    """Fairline, which holds no connection while a job runs."""

    def __init__(self, fleet: Fleet, shape: Shape, pool_size: int) -> None:
        self.title = f"Fairline, {pool_size} connections a worker"
        self._shape = shape
        self._name = "pool"
        self._fairline = Fairline(
            fleet,
            served_pools="medium",
            name=self._name,
            score_seconds=str(shape.score_seconds),
            db_pool_size=str(pool_size),
        )
        self.url = self._fairline.url

    def start(self) -> None:
        self._fairline.start("medium", self._shape.workers)

    def gauges(self) -> AbstractContextManager[Gauges]:
        # Of all processes together, as with the other side.
        return fairline_gauges(self._fairline, of_all=sum)

    def endings(self, ids: Sequence[str]) -> dict[str, float]:
        with self._fairline.engine() as engine:
            return dict(map(tuple, rows(engine, FAIRLINE_ENDINGS, ids=list(ids))))

    def pool_size(self) -> int:
        sizes = read_pools(self.url)["size"]
        return max(size for process, size in sizes.items() if process.startswith("worker"))

    def timeouts(self) -> int:
        return 0  # a job has no connection to wait for

    def stop(self) -> None:
        workers = [f"worker-medium-{n}" for n in range(1, self._shape.workers + 1)]
        self._fairline.fleet.kill("api", "scheduler", *workers)
        self._fairline.fleet.postgres.service.drop_database(self._name)


def read_said(folder: Path) -> list[dict[str, int]]:
    """What the baseline's processes say of their pools."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


Side = PlainSide | FairlineSide


#: For ten slots a worker: half of what they need, all of it, and what Fairline takes.
SMALL, LARGE, FAIRLINE = 5, 10, 2
PER_SECOND = 20.0
TITLE = "The database-pool trap"
#: How long answers may take after the last start.
GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of it."""

    shape: Shape
    #: Of load on each side.
    seconds: float
    #: How long the jobs may take to end after that.
    drain_seconds: float
    #: Before the load; they are not counted.
    warm_jobs: int = 10


PLANS = {
    Size.FULL: Plan(Shape(workers=4, score_seconds=1.5), seconds=60.0, drain_seconds=90.0),
    Size.QUICK: Plan(Shape(workers=4, score_seconds=1.5), seconds=15.0, drain_seconds=25.0),
    # A quarter of the jobs' length stands for a quarter of the workers.
    Size.MINI: Plan(
        Shape(workers=1, score_seconds=0.375), seconds=1.0, drain_seconds=20.0, warm_jobs=1
    ),
}


def run(desk: Desk) -> Report:
    """One side after the other."""
    plan = PLANS[desk.size]
    with plain_celery(desk.fleet, plan.shape) as plain:
        small = run_side(desk, PlainSide(plain, plan.shape, SMALL), plan)
        large = run_side(desk, PlainSide(plain, plan.shape, LARGE), plan)
    fairline = run_side(desk, FairlineSide(desk.fleet, plan.shape, FAIRLINE), plan)
    courses = (small, large, fairline)
    draw(desk.folder / "pool.png", courses)
    return Report(
        *("pool", TITLE),
        findings=findings(*courses),
        pictures=[
            Picture(
                "pool.png",
                "Scored per second, jobs in line and waiters for a connection over time: "
                "plain Celery with a small and a large pool, and Fairline with two connections",
            )
        ],
        tables=[table("Three sides, one load", COLUMNS, courses)],
        bars=bars(*courses, desk.size),
        notes=[
            f"{plan.shape.workers} workers of 10 slots on each side, "
            f"{plan.shape.score_seconds:g} s of scoring, {PER_SECOND:g}/s for "
            f"{plan.seconds:g} s, after {plan.warm_jobs} jobs that are not counted. Latency "
            "counts from the intended start of a submission to its score. Waiters are those of "
            "all processes together: for plain Celery at the moment of the look, for Fairline "
            "the peak since the heartbeat before."
        ],
        data={
            "refused": sum(course.refused for course in courses),
            "sides": [figures(course) for course in courses],
        },
    )


def run_side(desk: Desk, side: Side, plan: Plan) -> Course:
    """Start a side, offer the load, wait for the last job, take the side away."""
    try:
        desk.step(f"{side.title}: starting")
        side.start()
        warm(side, plan)
        desk.step(f"{side.title}: {PER_SECOND:g}/s")
        order = Order(side.url, "Submitter", [Stretch(plan.seconds, PER_SECOND, PER_SECOND)])
        with side.gauges() as gauges, desk.watch(side.title, gauges) as watched:
            record = Generator(order, desk.fleet.home / "pool-load").finish(GRACE_SECONDS)
            desk.step(f"{side.title}: until the last job")
            ids = [arrival.id for arrival in record.arrivals if arrival.status == ACCEPTED]
            finished_at = await_endings(side, ids, plan.drain_seconds)
        return Course(
            side.title,
            plan.shape.workers,
            side.pool_size(),
            PER_SECOND,
            plan.seconds,
            record.arrivals,
            finished_at,
            watched.rows,
            side.timeouts(),
        )
    finally:
        side.stop()


def warm(side: Side, plan: Plan) -> None:
    """Let every part of it have worked once: what is asked is not how it starts."""
    ids = []
    for each in applications(plan.warm_jobs, prefix="Warm"):
        request = urllib.request.Request(
            side.url + each.path, each.body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=plan.drain_seconds) as answer:
            ids.append(json.load(answer)["id"])
    await_endings(side, ids, plan.drain_seconds)


def await_endings(side: Side, ids: list[str], seconds: float) -> dict[str, float]:
    """Wait until all were scored or given up; when each was."""
    found: dict[str, float] = {}

    def ended() -> bool:
        nonlocal found
        found = side.endings(ids)
        return len(found) + side.timeouts() >= len(ids)

    until(ended, seconds, pause=0.25)
    return found


#: Load on three sides, one long drain, and the starts.
SECONDS = {Size.FULL: 250.0, Size.QUICK: 95.0, Size.MINI: 12.0}
EXPERIMENT = Experiment(
    "pool",
    TITLE,
    "Four workers, 20 jobs a second: what does it cost to hold a database connection while a "
    "job runs, and how many connections does Fairline need?",
    SECONDS.__getitem__,
    run,
)
