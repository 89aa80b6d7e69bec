"""Pictures of a simulated day."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.lab.pictures import COLOURS, IDEAL, beside, bound, filled, picture
from loadtest.report import Picture
from loadtest.simulation.breaking import Ladder
from loadtest.simulation.outcome import Outcome
from loadtest.simulation.waits import BUCKET_SECONDS
from loadtest.simulation.world import OBJECTIVES, PEAK_SECOND, POOL_NAMES, TIERS

STARTS, WORKERS, BREAKS = "simulation-starts.png", "simulation-workers.png", "simulation-breaks.png"


def draw(day: Outcome, crowded: Outcome, ladders: Sequence[Ladder], folder: Path) -> list[Picture]:
    draw_starts(day, folder / STARTS)
    draw_workers(day, crowded, folder / WORKERS)
    draw_breaks(ladders, folder / BREAKS)
    return [
        Picture(STARTS, "Time to start by pool over the day, p50 and p99, against the objectives"),
        Picture(WORKERS, "Arrivals and workers over the day; share error by tier"),
        Picture(BREAKS, "p99 as a part of the objective while one thing is made worse"),
    ]


def hours(day: Outcome, count: int) -> list[float]:
    begin = day.scenario.begin_second // BUCKET_SECONDS
    return [(begin + number + 0.5) * BUCKET_SECONDS / 3600 for number in range(count)]


def draw_starts(day: Outcome, file: Path) -> None:
    with picture(file, rows=3, inches_high=7.2, sharex=True) as axes:
        for axis, pool, colour in zip(axes, POOL_NAMES, COLOURS, strict=False):
            for share, style in ((0.5, ":"), (0.99, "-")):
                series = day.over_time(pool, share)
                across = hours(day, len(series))
                seen = [(x, y) for x, y in zip(across, series, strict=True) if y is not None]
                label = f"p{share * 100:g}"
                axis.plot(*zip(*seen, strict=True), style, color=colour, label=label)
            bound(axis, OBJECTIVES[pool], f"objective, p99 ≤ {OBJECTIVES[pool]:g} s", "--")
            axis.set_yscale("log")
            axis.set_title(f"{pool}: seconds from submission to start")
            axis.axvline(PEAK_SECOND / 3600, color=IDEAL, lw=0.8, ls=":")
            axis.legend(loc="upper left", ncols=3)
        axes[-1].set(xlim=(0, 24), xticks=range(0, 25, 3))
        axes[-1].set_xlabel("hour of the day; a cell is lost at 14:00, a dependency fails at 16:00")


def draw_workers(day: Outcome, crowded: Outcome, file: Path) -> None:
    with picture(file, rows=3, inches_high=7.6) as (top, middle, below):
        arrivals = [each / 1000 for each in day.arrivals()]
        across = hours(day, len(arrivals))
        filled(top, across, arrivals)
        top.set_title("thousand arrivals per second")
        for pool, colour in zip(POOL_NAMES, COLOURS, strict=False):
            middle.plot(across, day.workers(pool), color=colour, label=pool)
        middle.set_title("workers of all cells")
        middle.legend(loc="upper left")
        for axis in (top, middle):
            axis.set(xlim=(0, 24), xticks=range(0, 25, 3))
        middle.set_xlabel("hour of the day")
        names = [tier.value for tier in TIERS]
        errors = [100 * (crowded.share("off", place) or 0.0) for place in range(len(TIERS))]
        below.bar(names, errors, width=0.5, color=COLOURS[0])
        bound(below, 2.0, "2 %", "--")
        for place, error in enumerate(errors):
            beside(below, f"{error:.2f} %", (place, error), (0, 3), ha="center")
        below.set_title("share error by tier, % of a saturated cell's slot time")
        below.legend(loc="upper right")


def draw_breaks(ladders: Sequence[Ladder], file: Path) -> None:
    with picture(file, rows=2, columns=3, inches_high=5.6) as axes:
        for axis, ladder in zip(axes.flat, ladders, strict=False):
            values = [one.value for one in ladder.trials]
            for pool, colour in zip(POOL_NAMES, COLOURS, strict=False):
                parts = [one.p99[pool] / OBJECTIVES[pool] for one in ladder.trials]
                axis.plot(values, parts, "o-", color=colour, label=pool)
            bound(axis, 1.0, "objective", "--")
            axis.set_yscale("log")
            axis.set_title(f"{ladder.name}, {ladder.unit}", fontsize=9)
        axes[0, 0].set_ylabel("p99 ÷ objective")
        axes[1, 0].set_ylabel("p99 ÷ objective")
        *_, spare = axes.flat
        spare.axis("off")
        spare.legend(*axes[0, 0].get_legend_handles_labels(), loc="center")
