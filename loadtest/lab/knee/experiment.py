"""The staircase: offered by locust, watched once a second, read from the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Engine, text

from loadtest.fairline import Fairline
from loadtest.fleet import NotReady
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.gauges import fairline_gauges
from loadtest.lab.knee.analysis import Job
from loadtest.lab.knee.page import draw_page, draw_staircase
from loadtest.lab.knee.plan import PLANS, POOL, SLOTS, Plan
from loadtest.lab.knee.verdict import TITLE, Climb, judge, see
from loadtest.lab.sampling import write_csv
from loadtest.report import Report
from loadtest.shapes import arrival_times
from loadtest.users.record import Arrival

#: Services, migrations, processes, locust.
START_SECONDS = 18.0
#: How long the end of the line may take beyond what its length asks for.
SPARE_SECONDS = 20.0
#: How long locust may take to send its first.
FIRST_SECONDS = 30.0

TALLY = text("""
    SELECT coalesce(sum(queued + dispatched + running), 0),
           coalesce(sum(queued + dispatched + running + succeeded + dead), 0)
    FROM job_counts WHERE tenant_id = 0 AND pool = :pool
""")
SCORED = text("""
    SELECT id::text, extract(epoch FROM finished_at)::float8
    FROM jobs WHERE status = 'succeeded'
""")


class KneeExperiment:
    """F57: one worker, from less than it can score to twice as much."""

    name = "knee"
    title = TITLE
    question = (
        "What do the line, the waits and the front door do when more arrives than can be scored?"
    )

    def seconds(self, size: Size) -> float:
        plan = PLANS[size]
        return START_SECONDS + plan.load_seconds + plan.drain_seconds

    def run(self, desk: Desk) -> Report:
        plan = PLANS[desk.size]
        fairline = Fairline(
            desk.fleet,
            served_pools=POOL,
            name=self.name,
            score_seconds=str(plan.score_seconds),
            db_pool_size="2",
        )
        try:
            desk.step("front door, scheduler, one worker")
            fairline.start_scheduler()
            fairline.start_worker(POOL)
            fairline.start_api()
            fairline.await_ready()
            fairline.await_slots(POOL, SLOTS)
            climb = climb_stairs(desk, fairline, plan)
        finally:
            desk.fleet.kill("api", "scheduler", f"worker-{POOL}-1")
        sight = see(climb, plan)
        write_csv(desk.folder / "steps.csv", [asdict(step) for step in sight.steps])
        draw_page(desk.folder / "knee.png", sight, plan)
        draw_staircase(desk.folder / "staircase.png", climb, plan)
        return judge(sight, plan)


def climb_stairs(desk: Desk, fairline: Fairline, plan: Plan) -> Climb:
    """Offer the whole staircase, then let the line be worked off."""
    already = len(desk.seconds)
    order = Order(fairline.url, "Submitter", plan.stretches)
    with (
        fairline.engine() as engine,
        fairline_gauges(fairline, POOL) as gauges,
        Generator(order, desk.fleet.home / "knee-load") as generator,
    ):
        desk.step("warming up")
        begin = await_first(engine, generator) + plan.warm_seconds
        sleep_until(begin)
        for number, rate in enumerate(plan.rates, start=1):
            name = f"{rate:g}/s"
            desk.step(name)
            with desk.watch(name, gauges):
                sleep_until(begin + number * plan.step_seconds)
        arrivals = generator.finish().arrivals
        desk.step("nothing arrives any more: the line is worked off")
        with desk.watch("worked off", gauges):
            await_end(engine, plan.drain_seconds + SPARE_SECONDS)
        with engine.connect() as connection:
            scored_at = {row[0]: row[1] for row in connection.execute(SCORED)}
    first = next(arrival_times(plan.stretches))
    return Climb(
        arrivals[0].intended_at - first + plan.warm_seconds,
        jobs_of(arrivals, scored_at),
        desk.seconds[already:],
    )


def await_first(engine: Engine, generator: Generator) -> float:
    """Wait for the first submission; when that was."""
    deadline = time.monotonic() + FIRST_SECONDS
    while tally(engine)[1] == 0:
        if generator.is_over():
            generator.finish()  # says what went wrong
        if generator.is_over() or time.monotonic() > deadline:
            raise NotReady("locust has sent nothing")
        time.sleep(0.05)
    return time.time()


def await_end(engine: Engine, seconds: float) -> None:
    """Wait until nothing is in line or at work; no longer than so many seconds."""
    deadline = time.monotonic() + seconds
    while tally(engine)[0] > 0 and time.monotonic() < deadline:
        time.sleep(0.2)


def tally(engine: Engine) -> tuple[int, int]:
    """Jobs that have not ended, and all of them."""
    with engine.connect() as connection:
        left, all_of_them = connection.execute(TALLY, {"pool": POOL}).one()
    return int(left), int(all_of_them)


def jobs_of(arrivals: Sequence[Arrival], scored_at: dict[str, float]) -> list[Job]:
    """Every submission with what became of it."""
    return [
        Job(
            arrival.intended_at,
            arrival.latency_seconds,
            arrival.status == 202,
            scored_at.get(arrival.id),
        )
        for arrival in arrivals
    ]


def sleep_until(moment: float) -> None:
    """By the wall clock."""
    time.sleep(max(0.0, moment - time.time()))
