"""What became of the load on each side: figures, sentences, a table, bars and a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from loadtest.figures import percentile
from loadtest.lab.experiment import Size
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, bound, filled, picture
from loadtest.lab.submissions import Submissions
from loadtest.report import Bar, Picture, Report, at_least, at_most, table

#: The steady part begins here at the latest.
SETTLED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Course:
    """One side under load, from the first arrival to the last job."""

    title: str
    workers: int
    #: Connections that the pool of a worker may open, as the process itself reports.
    pool_size: int
    offered_per_second: float
    seconds: float
    submissions: Submissions
    #: Tasks that gave up waiting for a connection.
    timeouts: int = 0

    @property
    def connections(self) -> int:
        """Those that all workers together may open."""
        return self.workers * self.pool_size

    @property
    def ended_at(self) -> float:
        """When the last job was scored, and not before the end of the load."""
        scored_at = self.submissions.scored_at.values()
        return max((self.submissions.begin + self.seconds, *scored_at))

    @property
    def scored_per_second(self) -> float:
        """In the steady part of the load."""
        begin = self.submissions.begin
        settled = min(SETTLED_SECONDS, self.seconds / 3)
        return self.submissions.scored_per_second(begin + settled, begin + self.seconds)

    @property
    def percent_of_offered(self) -> float:
        return 100 * self.scored_per_second / self.offered_per_second

    def scored_seconds(self, share: float) -> float:
        """A percentile of the time from the intended start to the score.

        What was never scored counts as slower than all the rest; if the percentile falls among
        those, the wait is as long as the slowest that is known.
        """
        waits = self.submissions.waits()
        slowest = max(filter(isfinite, waits), default=0.0)
        return percentile([min(wait, slowest) for wait in waits], share)

    @property
    def p50(self) -> float:
        return self.scored_seconds(0.5)

    @property
    def p99(self) -> float:
        return self.scored_seconds(0.99)

    @property
    def waiters(self) -> int:
        """The most that waited for a connection at once."""
        return self.submissions.most("waiters")

    @property
    def queued(self) -> int:
        """The longest that the queue was."""
        return self.submissions.most("waiting")


COLUMNS: dict[str, str | Callable[[Course], str]] = {
    "": lambda course: course.title.split(",")[0],
    "connections per worker": "{.pool_size}",
    "offered/s": "{.offered_per_second:g}",
    "scored/s": "{.scored_per_second:.2f}",
    "of offered": "{.percent_of_offered:.0f} %",
    "p50 s": "{.p50:.2f}",
    "p99 s": "{.p99:.2f}",
    "most waiters": "{.waiters}",
    "most queued": "{.queued}",
    "gave up": "{.timeouts}",
    "refused": "{.submissions.refused}",
}
CAPTION = (
    "Scored per second, queued jobs and waiters for a connection over time: "
    "plain Celery with a small and a large pool, and Fairline with two connections"
)


def judge(title: str, small: Course, large: Course, fairline: Course, size: Size) -> Report:
    courses = (small, large, fairline)
    return Report(
        "pool",
        title,
        findings=findings(*courses),
        pictures=[Picture("pool.png", CAPTION)],
        tables=[table("Three sides, one load", COLUMNS, courses)],
        bars=bars(*courses, size),
        data={
            "refused": sum(course.submissions.refused for course in courses),
            "sides": [figures(course) for course in courses],
        },
    )


def findings(small: Course, large: Course, fairline: Course) -> list[str]:
    gave_up = f"{small.timeouts} tasks gave up waiting for a connection; these were never scored."
    return [
        f"Plain Celery that holds a connection while it scores, with {small.pool_size} connections "
        f"for the 10 slots of a worker, scores {small.scored_per_second:.1f} of "
        f"{small.offered_per_second:g}/s: up to {small.waiters} busy slots only wait for a "
        f"connection, the queue grows to {small.queued} jobs, and p99 is {small.p99:.1f} s.",
        f"With {large.pool_size} per worker ({large.connections} in all) it recovers: "
        f"{large.scored_per_second:.1f}/s, p99 {large.p99:.1f} s, {large.waiters} waiters. "
        "The price is a connection for every slot.",
        f"Fairline holds no connection while a job runs: {fairline.pool_size} per worker "
        f"({fairline.connections} in all) give {fairline.scored_per_second:.1f}/s, p99 "
        f"{fairline.p99:.1f} s, {fairline.waiters} waiters.",
        *([gave_up] if small.timeouts else []),
    ]


def bars(small: Course, large: Course, fairline: Course, size: Size) -> list[Bar]:
    """What must be seen. A short run knows rates and tails less well."""
    full = size is Size.FULL
    wider = "" if full else " (wider: a short run)"
    offered = fairline.offered_per_second
    least = (0.99 if full else 0.96) * offered
    scored = fairline.scored_per_second
    starves = "plain Celery, pool too small: starves, scored of offered"
    recovers = f"plain Celery, pool enlarged: recovers, scored of offered{wider}"
    refused = sum(course.submissions.refused for course in (small, large, fairline))
    return [
        at_least(f"Fairline: scored at {offered:g}/s offered{wider}", scored, least, "/s"),
        at_most(f"Fairline: p99 submit to scored{wider}", fairline.p99, 2.2 if full else 2.6, " s"),
        at_most("Fairline: waiters for a connection", fairline.waiters),
        at_most("Fairline: connections per worker, from /metrics", fairline.pool_size, 2),
        at_most("Fairline: accepted and not scored", fairline.submissions.unscored),
        at_most(starves, small.percent_of_offered, 75.0, " %"),
        at_least(recovers, large.percent_of_offered, 95.0 if full else 92.0, " %"),
        at_most("submissions refused, all sides", refused),
    ]


def figures(course: Course) -> dict[str, Any]:
    """One side for ``report.json``."""
    submissions = course.submissions
    return {
        "title": course.title,
        "workers": course.workers,
        "connections_a_worker": course.pool_size,
        "offered_per_second": course.offered_per_second,
        "seconds": course.seconds,
        "submitted": len(submissions.arrivals),
        "refused": submissions.refused,
        "scored": len(submissions.scored_at),
        "unscored": submissions.unscored,
        "timeouts": course.timeouts,
        "scored_per_second": round(course.scored_per_second, 3),
        "p50_seconds": round(course.p50, 3),
        "p99_seconds": round(course.p99, 3),
        "most_waiters": course.waiters,
        "most_waiting": course.queued,
    }


#: Too small, enlarged, Fairline.
SIDE_COLOURS = (COLOURS[3], COLOURS[1], FAIRLINE)
#: Two jobs long.
WINDOW_SECONDS = 3
LABELS = ("scored, per second", "jobs queued", "waiting for\na connection")


def draw(file: Path, courses: Sequence[Course]) -> None:
    """Rate, queue and waiters over time; every row has one scale."""
    options = {"sharex": True, "sharey": "row", "squeeze": False}
    with picture(file, 3, len(courses), 6.4, **options) as axes:
        for column, (course, colour) in enumerate(zip(courses, SIDE_COLOURS, strict=True)):
            draw_side([row[column] for row in axes], course, colour)
        offered = max(course.offered_per_second for course in courses)
        tops = (
            max(1.3 * offered, axes[0][0].get_ylim()[1]),
            max(20.0, 1.35 * max(course.queued for course in courses)),
            # A side without waiters is a line at 0, not one in the middle of nowhere.
            max(5.0, 1.35 * max(course.waiters for course in courses)),
        )
        for row, label, top in zip(axes, LABELS, tops, strict=True):
            row[0].set(ylabel=label, ylim=(0, top))
        axes[0][0].figure.align_ylabels()


def draw_side(axes: Sequence[Any], course: Course, colour: str) -> None:
    rate, queue, waiters = axes
    submissions, offered = course.submissions, course.offered_per_second
    rate.set_title(course.title.replace(", ", "\n", 1), color=colour, fontweight="bold")
    bound(rate, offered)
    small = {"color": IDEAL, "fontsize": 8.5}
    edge = rate.get_yaxis_transform()
    rate.text(0.98, offered * 1.03, "offered", transform=edge, ha="right", va="bottom", **small)
    scored = submissions.scored_over_time(submissions.begin, course.ended_at, WINDOW_SECONDS)
    rate.plot(*zip(*scored, strict=True), color=colour, linewidth=1.8)
    note(rate, f"{course.scored_per_second:.1f}/s", colour, 0.97, 0.14)
    for axis, gauge in ((queue, "waiting"), (waiters, "waiters")):
        seen = [(at, value) for at, value in submissions.gauge(gauge) if at >= 0]
        filled(axis, [at for at, _ in seen], [value for _, value in seen], colour=colour)
        axis.axvline(course.seconds, color=IDEAL, linestyle=":", linewidth=1.0)
    edge = queue.get_xaxis_transform()
    queue.text(course.seconds, 0.9, " load ends", transform=edge, va="center", **small)
    note(queue, f"p99 {course.p99:.1f} s", colour)
    note(waiters, f"{course.waiters} at most", colour)
    waiters.set_xlabel("seconds")


def note(axis: Any, text: str, colour: str, across: float = 0.03, up: float = 0.9) -> None:
    """The figure that the curve amounts to."""
    style = {"color": colour, "fontsize": 11, "fontweight": "bold", "va": "center"}
    side = "left" if across < 0.5 else "right"
    axis.text(across, up, text, transform=axis.transAxes, ha=side, **style)
