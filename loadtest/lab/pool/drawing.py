"""The picture of the pool trap: three sides beside each other, three gauges below each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture
from loadtest.lab.pool.course import Course, rolling_rate

#: Too small, enlarged, Fairline.
SIDE_COLOURS = (COLOURS[3], COLOURS[1], FAIRLINE)
#: Two jobs long.
WINDOW_SECONDS = 3
LABELS = ("scored, per second", "jobs in line", "waiting for\na connection")


def draw(file: Path, courses: Sequence[Course]) -> None:
    """Rate, line and waiters over time; every row has one scale."""
    with picture(
        file, 3, len(courses), inches_high=6.4, sharex=True, sharey="row", squeeze=False
    ) as axes:
        for column, (course, colour) in enumerate(zip(courses, SIDE_COLOURS, strict=True)):
            draw_side([row[column] for row in axes], course, colour)
        for row, label in zip(axes, LABELS, strict=True):
            row[0].set_ylabel(label)
            row[0].set_ylim(bottom=0)
        offered = max(course.offered_per_second for course in courses)
        axes[0][0].set_ylim(top=max(1.3 * offered, axes[0][0].get_ylim()[1]))
        # A side without waiters is a line at 0, not one in the middle of nowhere.
        axes[2][0].set_ylim(top=max(5.0, 1.35 * max(c.most("waiters") for c in courses)))
        axes[1][0].set_ylim(top=max(20.0, 1.35 * max(c.most("waiting") for c in courses)))
        axes[0][0].figure.align_ylabels()


def draw_side(axes: Sequence[Any], course: Course, colour: str) -> None:
    """One column."""
    rate, line, waiters = axes
    rate.set_title(course.title.replace(", ", "\n", 1), color=colour, fontweight="bold")
    rate.axhline(course.offered_per_second, color=IDEAL, linestyle=":", linewidth=1.4)
    rate.text(
        *(0.98, course.offered_per_second * 1.03, "offered"),
        transform=rate.get_yaxis_transform(),
        color=IDEAL,
        fontsize=8.5,
        ha="right",
        va="bottom",
    )
    moments = list(course.finished_at.values())
    scored = rolling_rate(moments, course.begin, course.ended_at, WINDOW_SECONDS)
    rate.plot(*zip(*scored, strict=True), color=colour, linewidth=1.8)
    note(rate, f"{course.scored_per_second:.1f}/s", colour, 0.97, 0.14)
    for axis, gauge in ((line, "waiting"), (waiters, "waiters")):
        seen = [(at, value) for at, value in course.over_time(gauge) if at >= 0]
        if seen:
            seconds, values = zip(*seen, strict=True)
            axis.plot(seconds, values, color=colour, linewidth=1.8)
            axis.fill_between(seconds, values, color=colour, alpha=0.12, linewidth=0)
        axis.axvline(course.seconds, color=IDEAL, linestyle=":", linewidth=1.0)
    line.text(
        *(course.seconds, 0.9, " load ends"),
        transform=line.get_xaxis_transform(),
        color=IDEAL,
        fontsize=8.5,
        va="center",
    )
    note(line, f"p99 {course.scored_seconds(0.99):.1f} s", colour)
    note(waiters, f"{course.most('waiters')} at most", colour)
    waiters.set_xlabel("seconds")


def note(axis: Any, text: str, colour: str, across: float = 0.03, up: float = 0.9) -> None:
    """The figure that the curve amounts to."""
    axis.text(
        *(across, up, text),
        transform=axis.transAxes,
        ha="left" if across < 0.5 else "right",
        va="center",
        color=colour,
        fontsize=11,
        fontweight="bold",
    )
