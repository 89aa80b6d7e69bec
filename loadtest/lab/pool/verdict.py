"""What the three courses say: sentences, a table and bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.bars import Bar
from loadtest.lab.experiment import Size
from loadtest.lab.pool.course import Course
from loadtest.report import Table

HEADINGS = (
    *("", "connections a worker", "offered/s", "scored/s", "of offered", "p50 s", "p99 s"),
    *("most waiters", "most in line", "gave up", "refused"),
)


def table(courses: Sequence[Course]) -> Table:
    """A row for each side."""
    return Table("Three sides, one load", HEADINGS, [cells(course) for course in courses])


def cells(course: Course) -> tuple[str, ...]:
    """One side as a row."""
    return (
        course.title.split(",")[0],
        str(course.pool_size),
        f"{course.offered_per_second:g}",
        f"{course.scored_per_second:.2f}",
        f"{100 * course.share_of_offered:.0f} %",
        f"{course.scored_seconds(0.5):.2f}",
        f"{course.scored_seconds(0.99):.2f}",
        str(course.most("waiters")),
        str(course.most("waiting")),
        str(course.timeouts),
        str(course.refused),
    )


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
        *(
            [f"{small.timeouts} tasks gave up waiting for a connection; nobody scored them."]
            if small.timeouts
            else []
        ),
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
