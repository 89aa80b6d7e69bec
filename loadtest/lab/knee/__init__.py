"""What happens at, and beyond, the capacity of one worker?

Arrivals climb a staircase without a pause, so the queue carries over from step to step; then
nothing arrives and the queue drains, so that every job's wait is known to the end. A job belongs
to the step in which it was to start. The worker has two database connections for its ten slots,
and no slot may wait for one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.fleet import Fairline, NotReady, rows, until
from loadtest.forecasts import error_bar
from loadtest.generator import Order
from loadtest.lab.experiment import POOL, SLOTS, RunContext, Size, fairline_gauges, write_csv
from loadtest.lab.knee.verdict import PLANS, Plan, Staircase, analyse, judge
from loadtest.lab.knee.verdict import TITLE as TITLE
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, beside, bound, filled, picture
from loadtest.lab.submissions import Submissions, collect, read_scored
from loadtest.report import Report

QUESTION = "What do the queue, the waits and the API do when more arrives than can be scored?"
AMBER = COLOURS[1]


def draw_page(file: Path, found: Staircase, plan: Plan) -> None:
    """Four panels over the offered rate, the knee through all of them."""
    steps = found.steps
    offered = [step.offered for step in steps]
    heights = (1.7, 1, 1.2, 1)
    with picture(file, rows=4, inches_high=9.6, sharex=True, height_ratios=heights) as panels:
        rates, queue, waits, api = panels
        draw_rates(rates, found, plan)
        depths = [step.depth for step in steps]
        filled(queue, offered, depths, "o-")
        queue.set(title="Queued when the step ends", ylabel="jobs")
        queue.set_ylim(0, 1.3 * max(1, *depths))
        label(queue, offered[-1], depths[-1], "{:,.0f}", FAIRLINE)
        for name, colour, values in (
            ("p99", AMBER, [step.p99_seconds for step in steps]),
            ("p50", FAIRLINE, [step.p50_seconds for step in steps]),
        ):
            waits.plot(offered, values, "o-", color=colour, label=name)
            label(waits, offered[-1], values[-1], "{:.0f} s", colour, below=name == "p50")
        bound(waits, plan.score_seconds, "scoring alone")
        waits.set(title="From submission to score", ylabel="seconds", yscale="log")
        plain_log(waits)
        waits.legend(loc="upper left")
        draw_api(api, offered, [step.front_door_p95_ms for step in steps], plan.most_times)
        if found.knee is not None:
            for panel in panels:
                panel.axvline(found.plateau, color=IDEAL, lw=1, alpha=0.6)


def draw_api(panel: Any, offered: Sequence[float], p95: Sequence[float], times: float) -> None:
    """The API's latency, and how far it may rise."""
    panel.plot(offered, p95, "o-", color=FAIRLINE, label="p95")
    label(panel, offered[-1], p95[-1], "{:.1f} ms", FAIRLINE)
    most = times * p95[0]
    bound(panel, most, f"bound: {times:g} × that at {offered[0]:g}/s")
    panel.set(
        title="API, from the intended start to the response",
        ylabel="milliseconds",
        xlabel="applications offered per second",
        xticks=offered,
        xticklabels=[f"{rate:g}" for rate in offered],
        ylim=(0, 1.6 * max(most, *p95)),
    )
    panel.legend(loc="upper right", ncols=2)


def draw_rates(panel: Any, found: Staircase, plan: Plan) -> None:
    """The hinge: what is offered, then the plateau."""
    offered = [step.offered for step in found.steps]
    most = max(offered)
    panel.plot((0, most), (0, most), ":", color=IDEAL, lw=1.6, label="all that is offered")
    capacity = f"{SLOTS} slots ÷ {plan.score_seconds:g} s = {plan.capacity:.2f}/s"
    bound(panel, plan.capacity, f"capacity: {capacity}", "--")
    panel.plot(offered, [step.scored for step in found.steps], "o-", color=FAIRLINE, label="scored")
    if found.knee is not None:
        share = f"{100 * found.plateau / plan.capacity:.1f} % of the capacity"
        text, at = f"knee at {found.plateau:.2f}/s,\n{share}", (found.plateau, found.plateau)
        arrow = {"arrowstyle": "-", "color": FAIRLINE}
        beside(panel, text, at, (14, -44), fontweight="bold", arrowprops=arrow)
    panel.set(title="Scored per second, by offered rate", ylabel="applications/s")
    panel.set(ylim=(0, most), xlim=(0, 1.06 * most))
    panel.legend(loc="upper left")


def draw_staircase(file: Path, submissions: Submissions, plan: Plan) -> None:
    edges = [number * plan.step_seconds for number in range(len(plan.rates) + 1)]
    begin = plan.begin(submissions)
    # Gauges count from the first arrival, the picture from the first step.
    late = begin - submissions.begin
    queue = [(at - late, depth) for at, depth in submissions.gauge("waiting") if at >= late]
    last = max([edges[-1], *(at for at, _ in queue)])
    with picture(file, rows=2, inches_high=5.6, sharex=True) as (rates, queued):
        rates.stairs(plan.rates, edges, baseline=None, color=AMBER, lw=1.8, label="offered")
        # Over two lengths of a score: slots that began together end together.
        window = max(1, round(2 * plan.score_seconds))
        scored = submissions.scored_over_time(begin, begin + last, window)
        rates.plot(*zip(*scored, strict=True), color=FAIRLINE, label="scored")
        bound(rates, plan.capacity, "capacity", "--")
        rates.set(title="Offered and scored", ylabel="applications/s")
        rates.set(ylim=(0, 1.07 * max(plan.rates)), yticks=range(0, int(max(plan.rates)) + 1, 2))
        rates.legend(loc="upper left")
        filled(queued, [at for at, _ in queue], [depth for _, depth in queue])
        queued.set(title="Queued", ylabel="jobs", xlabel="seconds", ylim=(0, None), xlim=(0, last))
        for panel in (rates, queued):
            panel.axvspan(edges[-1], last, color=IDEAL, alpha=0.1, lw=0)
        text, place = "nothing arrives:\nthe queue drains", ("axes fraction", "axes fraction")
        corner = {"xycoords": place, "ha": "right", "va": "top"}
        beside(queued, text, (0.99, 0.97), (0, 0), IDEAL, **corner)


def plain_log(panel: Any) -> None:
    """Ticks that read as numbers."""
    low, high = panel.get_ylim()
    ticks: Sequence[float] = [1, 2, 5, 10, 20, 50, 100, 200]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(min(1.0, low), high * 1.6)


def label(panel: Any, x: float, y: float, form: str, colour: str, *, below: bool = False) -> None:
    shift = (0, -17 if below else 7)
    beside(panel, form.format(y), (x, y), shift, colour, ha="center", fontweight="bold")


#: Services, migrations, processes, locust.
START_SECONDS = 18.0
#: How long the end of the queue may take beyond what its length needs.
SPARE_SECONDS = 20.0
#: How long locust may take to send its first request.
FIRST_SECONDS = 30.0
STARTED = "SELECT EXISTS (SELECT FROM applications)"


def run(context: RunContext) -> Report:
    """One worker, from less than it can score to twice as much."""
    plan = PLANS[context.size]
    context.step("API, scheduler, one worker")
    fairline = context.fairline("knee", plan.score_seconds, db_pool_size="2")
    with fairline.running(POOL):
        submissions = climb_stairs(context, fairline, plan)
        with fairline.engine() as engine:
            error = error_bar(engine)
    found = analyse(submissions, plan)
    write_csv(context.folder / "steps.csv", [asdict(step) for step in found.steps])
    draw_page(context.folder / "knee.png", found, plan)
    draw_staircase(context.folder / "staircase.png", submissions, plan)
    report = judge(found, plan)
    return replace(report, bars=[*report.bars, error])


def seconds(size: Size) -> float:
    """Starts, stairs, and what is left in the queue."""
    return START_SECONDS + PLANS[size].load_seconds + PLANS[size].drain_seconds


def climb_stairs(context: RunContext, fairline: Fairline, plan: Plan) -> Submissions:
    """Offer the whole staircase, then let the queue drain."""
    with (
        fairline.engine() as engine,
        fairline_gauges(fairline) as gauges,
        context.generate(Order(fairline.url, "Submitter", plan.stretches)) as generator,
    ):
        context.step("warming up")

        def started() -> bool:
            return bool(rows(engine, STARTED)[0][0])

        until(lambda: started() or generator.is_over(), FIRST_SECONDS, pause=0.05)
        if not started():
            if generator.is_over():
                generator.finish()  # raises with the reason
            raise NotReady("locust has sent nothing")
        begin = time.time() + plan.warm_seconds
        sleep_until(begin)
        for number, rate in enumerate(plan.rates, start=1):
            with context.watch(f"{rate:g}/s", gauges):
                sleep_until(begin + number * plan.step_seconds)
        longest = plan.drain_seconds + SPARE_SECONDS
        with context.watch("worked off", gauges):
            read = partial(read_scored, engine)
            return collect(context, generator, context.seconds, read, longest)


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))
