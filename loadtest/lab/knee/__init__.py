"""What happens at, and beyond, the capacity of one worker?

One medium worker, 10 slots, 1.5 s a score: 6.67 applications a second and no more. Arrivals climb
a staircase from 2/s to 14/s without a pause, so the line carries over from step to step, as it
would in a day that gets busier. After the last step nothing arrives any more and the line is
worked off: every job's wait is known to the end, none is guessed or left out. (Reading only what
had ended when the arrivals stopped would leave out the longest waits, those that count.) So the
waits beyond the knee are those of *this* staircase; twice as long a step waits twice as long.

A job belongs to the step in which it was to start, whenever it was sent or scored. The worker has
two database connections for its ten slots, on which nobody may wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from loadtest.figures import rolling_rate
from loadtest.fleet import Fairline, NotReady, rows, until
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, Experiment, Size, fairline_gauges, write_csv
from loadtest.lab.knee.verdict import (
    PLANS,
    POOL,
    SLOTS,
    TITLE,
    Climb,
    Job,
    Plan,
    Sight,
    endings,
    judge,
    see,
)
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, beside, bound, filled, picture
from loadtest.report import Report
from loadtest.shapes import arrival_times
from loadtest.users.wire import Arrival

_, AMBER, INDIGO, _ = COLOURS


def draw_page(file: Path, sight: Sight, plan: Plan) -> None:
    """Four panels over the offered rate, the knee through all of them."""
    offered = [step.offered for step in sight.steps]
    with picture(
        file, rows=4, inches_high=9.6, sharex=True, height_ratios=(1.7, 1, 1.2, 1)
    ) as panels:
        rates, line, waits, door = panels
        draw_rates(rates, sight, plan)
        depths = [step.depth for step in sight.steps]
        filled(line, offered, depths, "o-")
        line.set(title="In line when the step ends", ylabel="jobs")
        line.set_ylim(0, 1.3 * max(1, *depths))
        label(line, offered[-1], depths[-1], "{:,.0f}", FAIRLINE)
        for name, colour, values in (
            ("p99", AMBER, [step.p99_seconds for step in sight.steps]),
            ("p50", FAIRLINE, [step.p50_seconds for step in sight.steps]),
        ):
            waits.plot(offered, values, "o-", color=colour, label=name)
            label(waits, offered[-1], values[-1], "{:.0f} s", colour, below=name == "p50")
        bound(waits, plan.score_seconds, "scoring alone")
        waits.set(title="From submission to score", ylabel="seconds", yscale="log")
        plain_log(waits)
        waits.legend(loc="upper left")
        p95 = [step.front_door_p95_ms for step in sight.steps]
        door.plot(offered, p95, "o-", color=FAIRLINE, label="p95")
        label(door, offered[-1], p95[-1], "{:.1f} ms", FAIRLINE)
        most = plan.most_times * p95[0]
        bound(door, most, f"bound: {plan.most_times:g} × that at {offered[0]:g}/s")
        door.set(
            title="Front door, from the intended start to the answer",
            ylabel="milliseconds",
            xlabel="applications offered a second",
            xticks=offered,
            xticklabels=[f"{rate:g}" for rate in offered],
            ylim=(0, 1.6 * max(most, *p95)),
        )
        door.legend(loc="upper right", ncols=2)
        if sight.knee is not None:
            for panel in panels:
                panel.axvline(sight.plateau, color=IDEAL, lw=1, alpha=0.6)


def draw_rates(panel: Any, sight: Sight, plan: Plan) -> None:
    """The hinge: what is offered, then the plateau."""
    offered = [step.offered for step in sight.steps]
    most = max(offered)
    panel.plot((0, most), (0, most), ":", color=IDEAL, lw=1.6, label="all that is offered")
    capacity = f"{SLOTS} slots ÷ {plan.score_seconds:g} s = {plan.capacity:.2f}/s"
    bound(panel, plan.capacity, f"capacity: {capacity}", "--")
    panel.plot(offered, [step.scored for step in sight.steps], "o-", color=FAIRLINE, label="scored")
    if sight.knee is not None:
        share = f"{100 * sight.plateau / plan.capacity:.1f} % of the capacity"
        text, at = f"knee at {sight.plateau:.2f}/s,\n{share}", (sight.plateau, sight.plateau)
        arrow = {"arrowstyle": "-", "color": FAIRLINE}
        beside(panel, text, at, (14, -44), fontweight="bold", arrowprops=arrow)
    panel.set(title="Scored a second, by what is offered", ylabel="applications/s")
    panel.set(ylim=(0, most), xlim=(0, 1.06 * most))
    panel.legend(loc="upper left")


def draw_staircase(file: Path, climb: Climb, plan: Plan) -> None:
    """Offered, scored and the line over time."""
    edges = [number * plan.step_seconds for number in range(len(plan.rates) + 1)]
    rows = [row for row in climb.seconds if float(row["at"]) >= climb.begin]
    seconds = [float(row["at"]) - climb.begin for row in rows]
    last = max([*seconds, edges[-1]])
    with picture(file, rows=2, inches_high=5.6, sharex=True) as (rates, line):
        rates.stairs(plan.rates, edges, baseline=None, color=AMBER, lw=1.8, label="offered")
        # Over two lengths of a score: slots that began together end together.
        window = max(1, round(2 * plan.score_seconds))
        scored = rolling_rate(endings(climb.jobs), climb.begin, climb.begin + last, window)
        rates.plot(*zip(*scored, strict=True), color=FAIRLINE, label="scored")
        bound(rates, plan.capacity, "capacity", "--")
        rates.set(title="Offered and scored", ylabel="applications/s")
        rates.set(ylim=(0, 1.07 * max(plan.rates)), yticks=range(0, int(max(plan.rates)) + 1, 2))
        rates.legend(loc="upper left")
        filled(line, seconds, [float(row["waiting"]) for row in rows])
        line.set(title="In line", ylabel="jobs", xlabel="seconds", ylim=(0, None), xlim=(0, last))
        for panel in (rates, line):
            panel.axvspan(edges[-1], last, color=IDEAL, alpha=0.1, lw=0)
        text, place = "nothing arrives:\nthe line is worked off", ("axes fraction", "axes fraction")
        corner = {"xycoords": place, "ha": "right", "va": "top"}
        beside(line, text, (0.99, 0.97), (0, 0), IDEAL, **corner)


def plain_log(panel: Any) -> None:
    """Ticks that read as numbers."""
    low, high = panel.get_ylim()
    ticks: Sequence[float] = [1, 2, 5, 10, 20, 50, 100, 200]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(min(1.0, low), high * 1.6)


def label(panel: Any, x: float, y: float, form: str, colour: str, *, below: bool = False) -> None:
    """A point's value beside it."""
    shift = (0, -17 if below else 7)
    beside(panel, form.format(y), (x, y), shift, colour, ha="center", fontweight="bold")


#: Services, migrations, processes, locust.
START_SECONDS = 18.0
#: How long the end of the line may take beyond what its length asks for.
SPARE_SECONDS = 20.0
#: How long locust may take to send its first.
FIRST_SECONDS = 30.0

TALLY = """
    SELECT coalesce(sum(queued + dispatched + running), 0),
           coalesce(sum(queued + dispatched + running + succeeded + dead), 0)
    FROM job_counts WHERE tenant_id = 0 AND pool = :pool
"""
SCORED = """
    SELECT id::text, extract(epoch FROM finished_at)::float8
    FROM jobs WHERE status = 'succeeded'
"""


def run(desk: Desk) -> Report:
    """One worker, from less than it can score to twice as much."""
    plan = PLANS[desk.size]
    settings = {"score_seconds": str(plan.score_seconds), "db_pool_size": "2"}
    desk.step("front door, scheduler, one worker")
    with Fairline(desk.fleet, served_pools=POOL, name="knee", **settings).running(POOL) as fairline:
        climb = climb_stairs(desk, fairline, plan)
    sight = see(climb, plan)
    write_csv(desk.folder / "steps.csv", [asdict(step) for step in sight.steps])
    draw_page(desk.folder / "knee.png", sight, plan)
    draw_staircase(desk.folder / "staircase.png", climb, plan)
    return judge(sight, plan)


def seconds(size: Size) -> float:
    """Starts, stairs, and what is left in line."""
    return START_SECONDS + PLANS[size].load_seconds + PLANS[size].drain_seconds


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
            until(lambda: not tally(engine)[0], plan.drain_seconds + SPARE_SECONDS)
        scored_at = dict(map(tuple, rows(engine, SCORED)))
    first = next(arrival_times(plan.stretches))
    return Climb(
        arrivals[0].intended_at - first + plan.warm_seconds,
        jobs_of(arrivals, scored_at),
        desk.seconds[already:],
    )


def await_first(engine: Engine, generator: Generator) -> float:
    """Wait for the first submission; when that was."""
    until(lambda: tally(engine)[1] or generator.is_over(), FIRST_SECONDS, pause=0.05)
    if not tally(engine)[1]:
        if generator.is_over():
            generator.finish()  # says what went wrong
        raise NotReady("locust has sent nothing")
    return time.time()


def tally(engine: Engine) -> tuple[int, int]:
    """Jobs that have not ended, and all of them."""
    left, all_of_them = rows(engine, TALLY, pool=POOL)[0]
    return int(left), int(all_of_them)


def jobs_of(arrivals: Sequence[Arrival], scored_at: dict[str, float]) -> list[Job]:
    """Every submission with what became of it."""
    return [
        Job(each.intended_at, each.latency_seconds, each.status == 202, scored_at.get(each.id))
        for each in arrivals
    ]


def sleep_until(moment: float) -> None:
    """By the wall clock."""
    time.sleep(max(0.0, moment - time.time()))


EXPERIMENT = Experiment(
    "knee",
    TITLE,
    "What do the line, the waits and the front door do when more arrives than can be scored?",
    seconds,
    run,
)
