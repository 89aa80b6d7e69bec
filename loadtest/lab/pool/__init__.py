"""The database-pool trap: a connection held while a job runs, and what it costs.

Three sides in one run under the same load: plain Celery whose task scores inside its transaction,
with a pool that is too small for its slots; the same with a connection for every slot; and
Fairline with two connections a worker. Each side is started, loaded, drained and taken away
before the next one begins.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass

from loadtest.generator import Generator, Order
from loadtest.http_bytes import applications
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.pool.course import ACCEPTED, Course
from loadtest.lab.pool.drawing import draw
from loadtest.lab.pool.sides import FairlineSide, PlainSide, Shape, Side, plain_celery
from loadtest.lab.pool.verdict import bars, figures, findings, table
from loadtest.report import Picture, Report
from loadtest.shapes import Stretch

#: For ten slots a worker: half of what they need, all of it, and what Fairline takes.
SMALL, LARGE, FAIRLINE = 5, 10, 2
PER_SECOND = 20.0
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


class Pool:
    """The experiment."""

    name = "pool"
    title = "The database-pool trap"
    question = (
        "Four workers, 20 jobs a second: what does it cost to hold a database connection while a "
        "job runs, and how many connections does Fairline need?"
    )

    def seconds(self, size: Size) -> float:
        """Load on three sides, one long drain, and the starts."""
        return {Size.FULL: 250.0, Size.QUICK: 95.0, Size.MINI: 12.0}[size]

    def run(self, desk: Desk) -> Report:
        """One side after the other."""
        plan = PLANS[desk.size]
        with plain_celery(desk.fleet, plan.shape) as plain:
            small = run_side(desk, PlainSide(plain, plan.shape, SMALL), plan)
            large = run_side(desk, PlainSide(plain, plan.shape, LARGE), plan)
        fairline = run_side(desk, FairlineSide(desk.fleet, plan.shape, FAIRLINE), plan)
        courses = (small, large, fairline)
        draw(desk.folder / "pool.png", courses)
        return Report(
            self.name,
            self.title,
            findings=findings(*courses),
            pictures=[
                Picture(
                    "pool.png",
                    "Scored per second, jobs in line and waiters for a connection over time: "
                    "plain Celery with a small and a large pool, and Fairline with two connections",
                )
            ],
            tables=[table(courses)],
            bars=bars(*courses, desk.size),
            notes=[
                f"{plan.shape.workers} workers of 10 slots on each side, "
                f"{plan.shape.score_seconds:g} s of scoring, {PER_SECOND:g}/s for "
                f"{plan.seconds:g} s, after {plan.warm_jobs} jobs that are not counted. Latency "
                "counts from the intended start of a submission to its score. Waiters are those of "
                "all processes together: for plain Celery at the moment of the look, for Fairline "
                "the peak since the heartbeat before.",
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
    deadline = time.monotonic() + seconds
    while True:
        found = side.endings(ids)
        if len(found) + side.timeouts() >= len(ids) or time.monotonic() > deadline:
            return found
        time.sleep(0.25)


EXPERIMENT = Pool()
