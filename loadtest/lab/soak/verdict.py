"""Whether a soak is flat: curves judged so that neither teeth nor strange points decide. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from loadtest.figures import percentile
from loadtest.lab.experiment import Row, Size
from loadtest.report import Bar, Table

#: When, in seconds, and how much.
Point = tuple[float, float]

HOUR_SECONDS = 3600.0
#: More points say no more about the slope and cost their square.
MOST_POINTS = 300


def slope(points: Sequence[Point]) -> float:
    """The median of the slopes between any two points (Theil and Sen).

    Up to 29 % of the points may be anything.
    """
    thinned = points[:: 1 + len(points) // MOST_POINTS]
    slopes = [
        (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in combinations(thinned, 2)
        if later[0] != earlier[0]
    ]
    return median(slopes) if slopes else 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How a curve went on once it had its level."""

    #: Where it was about the middle of the part that was looked at.
    level: float
    #: How much was added in that part.
    grown: float
    per_hour: float

    @property
    def share(self) -> float:
        """What was added, in parts of the level."""
        return self.grown / self.level if self.level else 0.0


def growth(points: Sequence[Point], since_share: float = 0.5) -> Growth:
    """The growth in the last part of the time; the second half unless told otherwise."""
    if not points:
        return Growth(0.0, 0.0, 0.0)
    begin, end = points[0][0], points[-1][0]
    since = begin + since_share * (end - begin)
    late = [point for point in points if point[0] >= since]
    risen = slope(late)
    return Growth(
        level=median(value for _, value in late),
        grown=risen * (end - since),
        per_hour=risen * HOUR_SECONDS,
    )


def allowance(level: float, share: float, least: float) -> float:
    """How much may be added to a level: a share of it, or what counts as nothing."""
    return max(least, share * level)


def tail_by_bucket(points: Sequence[Point], bucket_seconds: float, share: float) -> list[Point]:
    """A percentile of the values in each stretch of time, at the middle of the stretch."""
    buckets: dict[int, list[float]] = {}
    for at, value in points:
        buckets.setdefault(int(at // bucket_seconds), []).append(value)
    return [
        ((number + 0.5) * bucket_seconds, percentile(values, share))
        for number, values in sorted(buckets.items())
    ]


def tail_of_third(points: Sequence[Point], seconds: float, third: int, share: float) -> float:
    """A percentile of the values in the first, second or third part of the time (0, 1, 2)."""
    inside = (value for at, value in points if third <= 3 * at / seconds < third + 1)
    return percentile(inside, share)


ACCEPTED = 202
#: Memory of a process may grow by this share of itself, or by what counts as nothing.
MEMORY = (0.05, 10.0)
#: The same for what retention empties.
TABLES = (0.10, 2.0)
#: The tail at the end, of that at the beginning.
TAIL_RATIO = 1.2
#: Differences at the front door that nobody can tell from the machine's own.
DOOR_SECONDS = 0.005
#: The leaderboard: a scored application is kept for ever, on purpose.
KEPT_FOR_EVER = ("applications",)
#: RabbitMQ's memory is its own affair: shown, not judged.
JUDGED = ("api", "scheduler", "worker", "postgres")


@dataclass(frozen=True, slots=True)
class Soak:
    """Everything that was seen."""

    seconds: float
    per_second: float
    #: Of latencies and other percentiles over time.
    bucket_seconds: float
    #: From the intended start of a submission to its score, by the intended start.
    scored: Sequence[Point]
    #: To the front door's answer.
    door: Sequence[Point]
    refused: int
    #: Accepted, and without a score at the end of all waiting.
    lost: int
    #: Megabytes over time by part of the system.
    memory: dict[str, list[Point]]
    #: By table.
    tables: dict[str, list[Point]]
    blobs: list[Point]
    dead_rows: list[Point]
    #: Once a second: waiting, running and so on.
    rows: Sequence[Row]

    @property
    def emptied(self) -> list[Point]:
        """All tables that retention keeps small, together."""
        chosen = [points for name, points in self.tables.items() if name not in KEPT_FOR_EVER]
        return [
            (at_once[0][0], sum(value for _, value in at_once))
            for at_once in zip(*chosen, strict=True)
        ]


def growths(soak: Soak) -> dict[str, Growth]:
    """The growth of every curve in the second half, in megabytes."""
    return {
        **{f"memory: {name}": growth(points) for name, points in soak.memory.items()},
        "tables that retention empties": growth(soak.emptied),
        **{
            f"table: {name}": growth(points)
            for name, points in sorted(soak.tables.items())
            if (points and points[-1][1] >= 1.0) or name in KEPT_FOR_EVER
        },
        "blobs": growth(soak.blobs),
    }


COLUMNS: dict[str, str | Callable[[Any], str]] = {
    "": "{0[0]}",
    "level MB": "{0[1].level:.1f}",
    "grown MB": "{0[1].grown:+.2f}",
    "grown %": lambda item: f"{100 * item[1].share:+.1f}",
    "MB an hour": "{0[1].per_hour:+.1f}",
}


def by_third(points: Sequence[Point], seconds: float, share: float) -> list[float]:
    """A percentile in each third of the time."""
    return [tail_of_third(points, seconds, third, share) for third in range(3)]


def tails(soak: Soak) -> Table:
    """Latency by the third of the time."""
    rows = []
    for name, points, share, form in (
        ("submit to scored p50, s", soak.scored, 0.5, "{:.3f}"),
        ("submit to scored p99, s", soak.scored, 0.99, "{:.3f}"),
        ("front door p95, ms", [(at, 1000 * each) for at, each in soak.door], 0.95, "{:.1f}"),
    ):
        rows.append((name, *map(form.format, by_third(points, soak.seconds, share))))
    return Table("Latency by third", ("", "first", "second", "third"), rows)


def bars(soak: Soak, size: Size) -> list[Bar]:
    """What must be seen; a short run shows only that nothing goes wrong."""
    losses = [
        Bar("submissions refused", soak.refused, "<=", 0),
        Bar("accepted and not scored", soak.lost, "<=", 0),
    ]
    if size is not Size.FULL:
        return losses
    first, _, last = by_third(soak.scored, soak.seconds, 0.99)
    door_first, _, door_last = (1000 * each for each in by_third(soak.door, soak.seconds, 0.95))
    return [
        *(grown_bar(f"{name}: memory", soak.memory[name], *MEMORY) for name in JUDGED),
        grown_bar("tables that retention empties:", soak.emptied, *TABLES),
        grown_bar("blobs:", soak.blobs, *TABLES),
        Bar(
            "submit to scored p99, last third of the first third's",
            *(last / first if first else float(bool(last)), "<=", TAIL_RATIO, " x"),
        ),
        Bar(
            "front door p95 in the last third (1.2 x the first's, or 5 ms more)",
            *(door_last, "<=", max(TAIL_RATIO * door_first, door_first + 1000 * DOOR_SECONDS)),
            " ms",
        ),
        *losses,
    ]


def grown_bar(name: str, points: Sequence[Point], share: float, least: float) -> Bar:
    """What may be added in the second half: a share of the level, or what counts as nothing."""
    grown = growth(points)
    allowed = allowance(grown.level, share, least)
    return Bar(f"{name} grown in the second half", grown.grown, "<=", allowed, " MB")


def findings(soak: Soak) -> list[str]:
    """The story."""
    all_of_them = growths(soak)
    judged = {name: all_of_them[f"memory: {name}"] for name in JUDGED if name in soak.memory}
    most = max(judged, key=lambda name: judged[name].grown)
    emptied = all_of_them["tables that retention empties"]
    first, _, last = by_third(soak.scored, soak.seconds, 0.99)
    lasted = f"{soak.seconds / 60:g} minutes" if soak.seconds >= 120 else f"{soak.seconds:g} s"
    return [
        f"{lasted} at {soak.per_second:.2f}/s, 70 % of what one worker can score: "
        f"{len(soak.scored):,} applications were scored, {soak.refused} refused, {soak.lost} lost.",
        f"In the second half the part whose memory changed most, {most}, went by "
        f"{judged[most].grown:+.1f} MB ({100 * judged[most].share:+.1f} %); the tables that "
        f"retention empties stood at {emptied.level:.1f} MB and went by {emptied.grown:+.1f} MB.",
        f"p99 from submission to score was {first:.2f} s in the first third and {last:.2f} s in "
        "the last.",
    ]


def figures(soak: Soak) -> dict[str, Any]:
    """For machines."""
    return {
        "seconds": soak.seconds,
        "per_second": round(soak.per_second, 3),
        "scored": len(soak.scored),
        "refused": soak.refused,
        "lost": soak.lost,
        "growth_mb": {
            name: {"level": round(each.level, 2), "grown": round(each.grown, 3)}
            for name, each in growths(soak).items()
        },
        "p99_seconds_by_third": [round(n, 3) for n in by_third(soak.scored, soak.seconds, 0.99)],
        "door_p95_seconds_by_third": [round(n, 4) for n in by_third(soak.door, soak.seconds, 0.95)],
    }
