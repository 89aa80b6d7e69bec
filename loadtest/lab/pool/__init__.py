"""The database-pool trap: a connection held while a job runs, and what it costs.

Under the same load, one after the other: plain Celery whose task scores inside its transaction,
with a pool too small for its slots; the same with a connection for every slot; and Fairline.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from sqlalchemy import text

from loadtest.closed_loop import Client, applications
from loadtest.fleet import rows
from loadtest.generator import Order
from loadtest.lab.experiment import (
    POOL,
    Gauges,
    QueueGauges,
    RunContext,
    Size,
    fairline_gauges,
    read_pools,
)
from loadtest.lab.pool.verdict import Course, draw, judge
from loadtest.lab.submissions import await_scores, collect, read_scored
from loadtest.plain import PlainCelery
from loadtest.report import Report
from loadtest.shapes import Stretch

#: Jobs that hold a connection are running; the others wait, wherever that is.
PLAIN_QUEUE = """
    SELECT greatest(0, count(*) - count(finished_at) - :running) AS waiting, :running AS running,
           (SELECT created_at FROM applications WHERE finished_at IS NULL
            ORDER BY created_at OFFSET :running LIMIT 1) AS oldest,
           count(*) AS accepted, count(finished_at) AS done
    FROM applications
"""
PLAIN_SCORED = """
    SELECT id::text, extract(epoch FROM finished_at)::float8 FROM applications
    WHERE finished_at IS NOT NULL
"""

#: For ten slots per worker: half of the connections they need, all of them, and Fairline's.
SMALL, LARGE, FAIRLINE = 5, 10, 2
PER_SECOND = 20.0
TITLE = "The database-pool trap"
QUESTION = (
    "Four workers, 20 jobs per second: what does it cost to hold a database connection while a "
    "job runs, and how many connections does Fairline need?"
)
#: Load on three sides, one long drain, and the starts.
seconds = {Size.FULL: 250.0, Size.QUICK: 95.0, Size.MINI: 12.0}.__getitem__


@dataclass(frozen=True, slots=True)
class Plan:
    """The workers of each side, and the load."""

    workers: int
    score_seconds: float
    #: Of load on each side.
    seconds: float
    #: How long the jobs may take to end after that.
    drain_seconds: float
    #: Before the load; they are not counted.
    warm_jobs: int = 10


PLANS = {
    Size.FULL: Plan(4, 1.5, seconds=60.0, drain_seconds=90.0),
    Size.QUICK: Plan(4, 1.5, seconds=15.0, drain_seconds=25.0),
    # A quarter of the jobs' length stands for a quarter of the workers.
    Size.MINI: Plan(1, 0.375, seconds=1.0, drain_seconds=20.0, warm_jobs=1),
}


class PlainSide:
    """Workers of plain Celery whose task holds its connection while it scores."""

    def __init__(self, plain: PlainCelery, plan: Plan, pool_size: int) -> None:
        self.title = f"Plain Celery, {pool_size} connections per worker"
        self.port = plain.port
        self._workers = plan.workers
        self._size = pool_size
        self._plain = plain
        self._engine = plain.engine
        #: Where each worker process writes the state of its pool.
        self._pools = plain.fleet.home / f"{plain.name}-{pool_size}"
        self._names: list[str] = []

    def start(self) -> None:
        """Start everything and wait until it would score what it is sent."""
        self._pools.mkdir(parents=True, exist_ok=True)
        settings = {"pool_size": str(self._size), "pool_folder": str(self._pools)}
        for number in range(1, self._workers + 1):
            self._names.append(self._plain.start_worker(number, **settings))
        # After the workers, which start meanwhile; both sides share it.
        if "plain-web" not in self._plain.fleet.children:
            self._plain.start_web()
        self._plain.await_workers(self._workers)

    @contextmanager
    def gauges(self) -> Iterator[Gauges]:
        queue = QueueGauges(self._engine, PLAIN_QUEUE)
        yield lambda: {
            **queue(running=sum(self._pool_states("in_use"))),
            "waiters": sum(self._pool_states("waiting")),
        }

    def scored(self) -> dict[str, float]:
        return dict(map(tuple, rows(self._engine, PLAIN_SCORED)))

    def pool_size(self) -> int:
        """Connections that the pool of a worker may open, as the workers report; the most."""
        return max(self._pool_states("size"))

    def timeouts(self) -> int:
        """Jobs that gave up waiting for a connection."""
        return sum(self._pool_states("timeouts"))

    def stop(self) -> None:
        """Stop the workers and leave no rows behind."""
        # Killed: Celery's warm shutdown takes seconds, and its queue is deleted next anyway.
        self._plain.fleet.kill(*self._names)
        self._plain.remove_queue()
        with self._engine.begin() as connection:
            connection.execute(text("TRUNCATE applications"))
        shutil.rmtree(self._pools, ignore_errors=True)

    def _pool_states(self, name: str) -> list[int]:
        files = sorted(self._pools.glob("*.json"))
        return [json.loads(file.read_text())[name] for file in files]


class FairlineSide:
    """Fairline, which holds no connection while a job runs."""

    def __init__(self, context: RunContext, plan: Plan) -> None:
        self.title = f"Fairline, {FAIRLINE} connections per worker"
        self._workers = plan.workers
        self._fairline = context.fairline("pool", plan.score_seconds, db_pool_size=str(FAIRLINE))
        self.port = self._fairline.port

    def start(self) -> None:
        self._fairline.start(POOL, self._workers)

    def gauges(self) -> AbstractContextManager[Gauges]:
        # Of all processes together, as with the other side.
        return fairline_gauges(self._fairline, of_all=sum)

    def scored(self) -> dict[str, float]:
        with self._fairline.engine() as engine:
            return read_scored(engine)

    def pool_size(self) -> int:
        sizes = read_pools(self._fairline.url)["size"]
        return max(size for process, size in sizes.items() if process.startswith("worker"))

    def timeouts(self) -> int:
        return 0  # a job has no connection to wait for

    def stop(self) -> None:
        workers = [f"worker-{POOL}-{n}" for n in range(1, self._workers + 1)]
        self._fairline.fleet.kill("api", "scheduler", *workers)
        self._fairline.fleet.postgres.service.drop_database("pool")


Side = PlainSide | FairlineSide


def run(context: RunContext) -> Report:
    plan = PLANS[context.size]
    settings = {"hold_connection": "1", "score_seconds": str(plan.score_seconds), "prefetch": "1"}
    plain = PlainCelery(context.fleet, name="plain-pool", **settings)
    try:
        small = run_side(context, PlainSide(plain, plan, SMALL), plan)
        large = run_side(context, PlainSide(plain, plan, LARGE), plan)
    finally:
        context.fleet.kill("plain-web")
        plain.remove()
    fairline = run_side(context, FairlineSide(context, plan), plan)
    draw(context.folder / "pool.png", (small, large, fairline))
    report = judge(TITLE, small, large, fairline, context.size)
    report.notes.append(
        f"{plan.workers} workers of 10 slots on each side, {plan.score_seconds:g} s of scoring, "
        f"{PER_SECOND:g}/s for {plan.seconds:g} s, after {plan.warm_jobs} jobs that are not "
        "counted. Latency counts from the intended start of a submission to its score. Waiters "
        "are those of all processes together: for plain Celery at the moment of the reading, for "
        "Fairline the peak since the previous heartbeat."
    )
    return report


def run_side(context: RunContext, side: Side, plan: Plan) -> Course:
    """Start a side, offer the load, wait for the last job, remove the side."""
    try:
        context.step(f"{side.title}: starting")
        side.start()
        warm(side, plan)
        stretch = Stretch(plan.seconds, PER_SECOND, PER_SECOND)
        order = Order(f"http://127.0.0.1:{side.port}", "Submitter", [stretch])
        with side.gauges() as gauges, context.watch(side.title, gauges) as watched:
            submissions = collect(
                *(context, context.generate(order), watched.rows),
                *(side.scored, plan.drain_seconds, side.timeouts),
            )
        load = (PER_SECOND, plan.seconds, submissions, side.timeouts())
        return Course(side.title, plan.workers, side.pool_size(), *load)
    finally:
        side.stop()


def warm(side: Side, plan: Plan) -> None:
    """Run a few jobs through every part first: start-up is not what is measured."""
    with Client(side.port, seconds=plan.drain_seconds) as client:
        answers = [client.ask(each) for each in applications(plan.warm_jobs, prefix="Warm")]
    ids = [json.loads(answer.body)["id"] for answer in answers]
    await_scores(ids, side.scored, plan.drain_seconds, side.timeouts)
