"""The picture: workers against the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.lab.pictures import FAIRLINE, IDEAL, picture
from loadtest.lab.scaling.counts import SLOTS, Count, Plan


def draw(file: Path, counts: Sequence[Count], plan: Plan) -> None:
    """The line against the ideal, and how far it is below it."""
    workers = [count.workers for count in counts]
    with picture(file, columns=2, inches_high=4.0, width_ratios=(3, 2)) as (left, right):
        most = max(workers) + 0.5
        left.plot((0, most), (0, most * plan.ideal), ":", color=IDEAL, lw=1.6, label="ideal")
        left.plot(workers, [c.per_second for c in counts], "o-", color=FAIRLINE, label="scored")
        for count in counts:
            left.annotate(
                f"{count.per_second:.1f}",
                (count.workers, count.per_second),
                (8, -12),
                textcoords="offset points",
                color=FAIRLINE,
                fontweight="bold",
            )
        left.set(
            title=f"Scored a second, {SLOTS} slots × {plan.score_seconds:g} s a worker",
            xlabel="workers",
            ylabel="applications/s",
            xticks=workers,
            xlim=(0, most),
            ylim=(0, most * plan.ideal),
        )
        left.legend(loc="upper left")
        right.axhline(100, ls=":", color=IDEAL, lw=1.6)
        right.plot([str(number) for number in workers], [c.percent for c in counts], "o")
        for place, count in enumerate(counts):
            right.annotate(
                f"{count.percent:.1f}",
                (place, count.percent),
                (0, -15),
                textcoords="offset points",
                ha="center",
                color=FAIRLINE,
                fontweight="bold",
            )
        for number, (asked, percent) in enumerate(plan.bars):
            place = workers.index(asked)
            edges = (place - 0.3, place + 0.3)
            name = "" if number else "required"
            right.plot(edges, (percent, percent), color=IDEAL, lw=1.6, label=name)
            right.legend(loc="lower left")
        lowest = min(90.0, 10 * int(min(c.percent for c in counts) / 10))
        right.set(title="Share of the ideal", xlabel="workers", ylabel="percent")
        right.set(ylim=(lowest, 102), xlim=(-0.6, len(counts) - 0.4))
