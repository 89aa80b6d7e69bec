"""The pictures: everything by offered rate on one page, and the staircase second by second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.knee.analysis import endings
from loadtest.lab.knee.plan import SLOTS, Plan
from loadtest.lab.knee.verdict import Climb, Sight
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture

_, AMBER, INDIGO, _ = COLOURS


def draw_page(file: Path, sight: Sight, plan: Plan) -> None:
    """Four panels over the offered rate, the knee through all of them."""
    offered = [step.offered for step in sight.steps]
    with picture(
        file, rows=4, inches_high=9.6, sharex=True, height_ratios=(1.7, 1, 1.2, 1)
    ) as panels:
        rates, line, waits, door = panels
        draw_rates(rates, sight, plan)
        line.fill_between(offered, [step.depth for step in sight.steps], color=FAIRLINE, alpha=0.15)
        line.plot(offered, [step.depth for step in sight.steps], "o-", color=FAIRLINE)
        line.set(title="In line when the step ends", ylabel="jobs")
        line.set_ylim(0, 1.3 * max(1, *(step.depth for step in sight.steps)))
        label(line, sight.steps[-1].offered, sight.steps[-1].depth, "{:,.0f}", FAIRLINE)
        for name, colour, values in (
            ("p99", AMBER, [step.p99_seconds for step in sight.steps]),
            ("p50", FAIRLINE, [step.p50_seconds for step in sight.steps]),
        ):
            waits.plot(offered, values, "o-", color=colour, label=name)
            label(waits, offered[-1], values[-1], "{:.0f} s", colour, below=name == "p50")
        waits.axhline(plan.score_seconds, ls=":", color=IDEAL, lw=1.6, label="scoring alone")
        waits.set(title="From submission to score", ylabel="seconds", yscale="log")
        plain_log(waits)
        waits.legend(loc="upper left")
        p95 = [step.front_door_p95_ms for step in sight.steps]
        door.plot(offered, p95, "o-", color=FAIRLINE, label="p95")
        label(door, offered[-1], p95[-1], "{:.1f} ms", FAIRLINE)
        door.axhline(
            plan.most_times * p95[0],
            ls=":",
            color=IDEAL,
            lw=1.6,
            label=f"bound: {plan.most_times:g} × that at {offered[0]:g}/s",
        )
        door.set(
            title="Front door, from the intended start to the answer",
            ylabel="milliseconds",
            xlabel="applications offered a second",
            xticks=offered,
            xticklabels=[f"{rate:g}" for rate in offered],
            ylim=(0, 1.6 * max(plan.most_times * p95[0], *p95)),
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
    panel.axhline(
        plan.capacity,
        ls="--",
        color=IDEAL,
        lw=1.2,
        label=f"capacity: {SLOTS} slots ÷ {plan.score_seconds:g} s = {plan.capacity:.2f}/s",
    )
    panel.plot(offered, [step.scored for step in sight.steps], "o-", color=FAIRLINE, label="scored")
    if sight.knee is not None:
        panel.annotate(
            f"knee at {sight.plateau:.2f}/s,\n"
            f"{100 * sight.plateau / plan.capacity:.1f} % of the capacity",
            (sight.plateau, sight.plateau),
            (14, -44),
            textcoords="offset points",
            fontweight="bold",
            color=FAIRLINE,
            arrowprops={"arrowstyle": "-", "color": FAIRLINE},
        )
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
        moments, scored = rolling_rate(climb, plan, last)
        rates.plot(moments, scored, color=FAIRLINE, label="scored")
        rates.axhline(plan.capacity, ls="--", color=IDEAL, lw=1.2, label="capacity")
        rates.set(title="Offered and scored", ylabel="applications/s")
        rates.set(ylim=(0, 1.07 * max(plan.rates)), yticks=range(0, int(max(plan.rates)) + 1, 2))
        rates.legend(loc="upper left")
        line.fill_between(
            seconds, [float(row["waiting"]) for row in rows], color=FAIRLINE, alpha=0.15
        )
        line.plot(seconds, [float(row["waiting"]) for row in rows], color=FAIRLINE)
        line.set(title="In line", ylabel="jobs", xlabel="seconds", ylim=(0, None), xlim=(0, last))
        for panel in (rates, line):
            panel.axvspan(edges[-1], last, color=IDEAL, alpha=0.1, lw=0)
        line.annotate(
            "nothing arrives:\nthe line is worked off",
            (0.99, 0.97),
            xycoords="axes fraction",
            ha="right",
            va="top",
            color=IDEAL,
        )


def rolling_rate(climb: Climb, plan: Plan, last: float) -> tuple[list[float], list[float]]:
    """Scored a second around each second, over two lengths of a score: slots that began
    together end together, and a shorter look would see only that."""
    ordered = sorted(moment - climb.begin for moment in endings(climb.jobs))
    half = plan.score_seconds
    moments = [float(second) for second in range(int(half) + 1, int(last))]
    return moments, [
        (bisect_left(ordered, moment + half) - bisect_left(ordered, moment - half)) / (2 * half)
        for moment in moments
    ]


def plain_log(panel: Any) -> None:
    """Ticks that read as numbers."""
    low, high = panel.get_ylim()
    ticks: Sequence[float] = [1, 2, 5, 10, 20, 50, 100, 200]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(min(1.0, low), high * 1.6)


def label(panel: Any, x: float, y: float, form: str, colour: str, *, below: bool = False) -> None:
    """A point's value beside it."""
    panel.annotate(
        form.format(y),
        (x, y),
        (0, -17 if below else 7),
        textcoords="offset points",
        ha="center",
        color=colour,
        fontweight="bold",
    )
