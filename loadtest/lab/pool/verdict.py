"""What became of the load on each side: figures, sentences, a table, bars and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.figures import percentile, rolling_rate, steady_rate
from loadtest.lab.experiment import Row, Size
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, bound, filled, picture
from loadtest.report import Bar
from loadtest.users.wire import Arrival

#: The steady part begins here at the latest.
SETTLED_SECONDS = 10.0
ACCEPTED = 202
GAVE_UP = "gave up waiting for a connection; nobody scored them."


@dataclass(frozen=True, slots=True)
class Course:
    """One side under load, from the first arrival to the last job."""

    title: str
    workers: int
    #: Connections that the pool of a worker may open, as the process itself says.
    pool_size: int
    offered_per_second: float
    seconds: float
    arrivals: Sequence[Arrival]
    #: When each accepted application was scored, by id, in seconds since the epoch.
    finished_at: Mapping[str, float]
    #: Once a second: waiting, running, waiters and so on.
    rows: Sequence[Row]
    #: Tasks that gave up waiting for a connection.
    timeouts: int = 0

    @property
    def begin(self) -> float:
        return self.arrivals[0].intended_at if self.arrivals else 0.0

    @property
    def ended_at(self) -> float:
        """When the last job was scored, and not before the end of the load."""
        return max((self.begin + self.seconds, *self.finished_at.values()))

    @property
    def accepted(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.status == ACCEPTED]

    @property
    def refused(self) -> int:
        """Submissions that were not accepted."""
        return len(self.arrivals) - len(self.accepted)

    @property
    def unscored(self) -> int:
        """Accepted, and without a score at the end of all waiting."""
        return sum(arrival.id not in self.finished_at for arrival in self.accepted)

    @property
    def scored_per_second(self) -> float:
        """In the steady part of the load."""
        settled = min(SETTLED_SECONDS, self.seconds / 3)
        return steady_rate(
            list(self.finished_at.values()), self.begin + settled, self.begin + self.seconds
        )

    @property
    def share_of_offered(self) -> float:
        return self.scored_per_second / self.offered_per_second

    def scored_seconds(self, share: float) -> float:
        """A percentile of the time from the intended start to the score.

        What was never scored counts as slower than all the rest; if the percentile falls among
        those, the wait is as long as the slowest that is known.
        """
        known = sorted(
            self.finished_at[arrival.id] - arrival.intended_at
            for arrival in self.accepted
            if arrival.id in self.finished_at
        )
        return percentile(known + known[-1:] * self.unscored, share)

    def most(self, gauge: str) -> int:
        """The highest that a gauge stood."""
        return int(max((float(row[gauge]) for row in self.rows if gauge in row), default=0.0))

    def over_time(self, gauge: str) -> list[tuple[float, float]]:
        """A gauge by the seconds since the first arrival."""
        return [
            (float(row["at"]) - self.begin, float(row[gauge])) for row in self.rows if gauge in row
        ]


COLUMNS: dict[str, str | Callable[[Course], str]] = {
    "": lambda course: course.title.split(",")[0],
    "connections a worker": "{.pool_size}",
    "offered/s": "{.offered_per_second:g}",
    "scored/s": "{.scored_per_second:.2f}",
    "of offered": lambda course: f"{100 * course.share_of_offered:.0f} %",
    "p50 s": lambda course: f"{course.scored_seconds(0.5):.2f}",
    "p99 s": lambda course: f"{course.scored_seconds(0.99):.2f}",
    "most waiters": lambda course: f"{course.most('waiters')}",
    "most in line": lambda course: f"{course.most('waiting')}",
    "gave up": "{.timeouts}",
    "refused": "{.refused}",
}


def findings(small: Course, large: Course, fairline: Course) -> list[str]:
    """The story in three sentences."""
    offered = f"{small.offered_per_second:g}/s"
    return [
        f"Plain Celery that holds a connection while it scores, with {small.pool_size} connections "
        f"for the 10 slots of a worker, scores {small.scored_per_second:.1f} of {offered}: up to "
        f"{small.most('waiters')} busy slots only wait for a connection, the line grows to "
        f"{small.most('waiting')} jobs, and p99 is {small.scored_seconds(0.99):.1f} s.",
        f"With {large.pool_size} a worker ({in_all(large)} in all) it recovers: "
        f"{large.scored_per_second:.1f}/s, p99 {large.scored_seconds(0.99):.1f} s, "
        f"{large.most('waiters')} waiters. The price is a connection for every slot.",
        f"Fairline holds no connection while a job runs: {fairline.pool_size} a worker "
        f"({in_all(fairline)} in all) give {fairline.scored_per_second:.1f}/s, p99 "
        f"{fairline.scored_seconds(0.99):.1f} s, {fairline.most('waiters')} waiters.",
        *([f"{small.timeouts} tasks {GAVE_UP}"] if small.timeouts else []),
    ]


def in_all(course: Course) -> int:
    """Connections that all workers together may open."""
    return course.workers * course.pool_size


def bars(small: Course, large: Course, fairline: Course, size: Size) -> list[Bar]:
    """What must be seen. A short run knows rates and tails less well."""
    full = size is Size.FULL
    wider = "" if full else " (wider: a short run)"
    offered = fairline.offered_per_second
    p99 = fairline.scored_seconds(0.99)
    return [
        Bar(
            f"Fairline: scored at {offered:g}/s offered{wider}",
            *(fairline.scored_per_second, ">=", (0.99 if full else 0.96) * offered, "/s"),
        ),
        Bar(f"Fairline: p99 submit to scored{wider}", p99, "<=", 2.2 if full else 2.6, " s"),
        Bar("Fairline: waiters for a connection", fairline.most("waiters"), "<=", 0),
        Bar("Fairline: connections a worker, from /metrics", fairline.pool_size, "<=", 2),
        Bar("Fairline: accepted and not scored", fairline.unscored, "<=", 0),
        Bar(
            "plain Celery, pool too small: starves, scored of offered",
            *(100 * small.share_of_offered, "<=", 75.0, " %"),
        ),
        Bar(
            f"plain Celery, pool enlarged: recovers, scored of offered{wider}",
            *(100 * large.share_of_offered, ">=", 95.0 if full else 92.0, " %"),
        ),
        Bar(
            "submissions refused, all sides",
            *(sum(course.refused for course in (small, large, fairline)), "<=", 0),
        ),
    ]


def figures(course: Course) -> dict[str, Any]:
    """One side for machines."""
    return {
        "title": course.title,
        "workers": course.workers,
        "connections_a_worker": course.pool_size,
        "offered_per_second": course.offered_per_second,
        "seconds": course.seconds,
        "submitted": len(course.arrivals),
        "refused": course.refused,
        "scored": len(course.finished_at),
        "unscored": course.unscored,
        "timeouts": course.timeouts,
        "scored_per_second": round(course.scored_per_second, 3),
        "p50_seconds": round(course.scored_seconds(0.5), 3),
        "p99_seconds": round(course.scored_seconds(0.99), 3),
        "most_waiters": course.most("waiters"),
        "most_waiting": course.most("waiting"),
    }


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
    bound(rate, course.offered_per_second)
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
            filled(axis, seconds, values, colour=colour)
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
