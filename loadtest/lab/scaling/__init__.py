"""Do two workers score twice as much as one, and eight eight times?

The line is filled before the first worker starts, with more applications than all of them can
score, so no slot is ever without work: what is measured is the workers, the scheduler and the
database, not the arrivals. Workers are added, never replaced. A worker's start costs seconds
of CPU, so a count is measured only when all its slots are alive and have had time to settle.

The rate is the slope of the running count of endings, read from the rows. With two cores the
largest count also asks how much of them the platform itself needs.
"""

from __future__ import annotations

import time

from sqlalchemy import text

from loadtest.cores import MACHINE, CoreMeter
from loadtest.fairline import Fairline
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.gauges import fairline_gauges
from loadtest.lab.scaling.counts import PLANS, POOL, SLOTS, TITLE, Count, Plan, judge
from loadtest.lab.scaling.drawing import draw
from loadtest.report import Report
from loadtest.shapes import Stretch
from loadtest.steady import steady_rate

#: Submissions a second while the line is filled.
FILL_PER_SECOND = 400.0
#: Services, migrations, front door.
START_SECONDS = 16.0

ENDINGS = text("""
    SELECT extract(epoch FROM finished_at)::float8 FROM jobs
    WHERE status = 'succeeded' AND finished_at >= to_timestamp(:begin)
""")


class Scaling:
    """F58: the line against the ideal."""

    name = "scaling"
    title = TITLE
    question = "Do workers add up, one after the other, while the line is never empty?"

    def seconds(self, size: Size) -> float:
        plan = PLANS[size]
        return START_SECONDS + plan.jobs / FILL_PER_SECOND + plan.run_seconds

    def run(self, desk: Desk) -> Report:
        plan = PLANS[desk.size]
        fairline = Fairline(
            desk.fleet,
            served_pools=POOL,
            name=self.name,
            score_seconds=str(plan.score_seconds),
            db_pool_size="2",
        )
        started = ["api", "scheduler"]
        try:
            desk.step("the front door")
            fairline.start_scheduler()
            fairline.start_api()
            desk.step(f"{plan.jobs:,} applications into the line")
            refused = fill(fairline, plan.jobs)
            counts = []
            for workers in plan.workers:
                alive = len(started) - 2
                desk.step(f"worker {workers}" if workers == alive + 1 else f"to {workers} workers")
                started += [
                    fairline.start_worker(POOL, number) for number in range(alive + 1, workers + 1)
                ]
                fairline.await_ready()
                fairline.await_slots(POOL, SLOTS * workers, seconds=30.0 + 10 * workers)
                counts.append(measure(desk, fairline, plan, workers))
        finally:
            desk.fleet.kill(*started)
        draw(desk.folder / "scaling.png", counts, plan)
        return judge(counts, plan, refused)


def fill(fairline: Fairline, jobs: int) -> int:
    """Put that many applications in the line, through the front door; how many were refused."""
    stretch = Stretch(jobs / FILL_PER_SECOND, FILL_PER_SECOND, FILL_PER_SECOND)
    order = Order(fairline.url, "Submitter", [stretch])
    with Generator(order, fairline.fleet.home / "scaling-load") as generator:
        return sum(status != 202 for status in generator.finish().statuses())


def measure(desk: Desk, fairline: Fairline, plan: Plan, workers: int) -> Count:
    """How much these workers score while they have enough to do."""
    name = f"{workers} worker{'s' if workers > 1 else ''}"
    desk.step(f"{name}: settling")
    time.sleep(plan.settle_seconds)
    desk.step(name)
    pids = fairline.fleet.pids()
    with fairline_gauges(fairline, POOL) as gauges, desk.watch(name, gauges) as watched:
        meter, begin = CoreMeter(pids), time.time()
        time.sleep(plan.seconds)
        cores, end = meter.read(), time.time()
    with fairline.engine() as engine, engine.connect() as connection:
        endings = connection.execute(ENDINGS, {"begin": begin}).scalars().all()
    return Count(
        workers,
        steady_rate(endings, begin, end),
        workers * plan.ideal,
        least_waiting=int(min((float(row["waiting"]) for row in watched.rows), default=0.0)),
        waiters=int(watched.most("waiters")),
        cores=sum(used for part, used in cores.items() if part != MACHINE),
        worker_cores=sum(used for part, used in cores.items() if part.startswith("worker-")),
    )


EXPERIMENT = Scaling()
