"""Whether a soak is flat: slopes that neither sawteeth nor outliers decide. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite
from statistics import median
from typing import Any

from loadtest.figures import percentile
from loadtest.lab.experiment import SLOTS, Size
from loadtest.lab.submissions import Point, Submissions
from loadtest.report import Bar, Picture, Report, Table, at_most, table

SHARE = 0.7
TITLE = "A soak at 70 % of capacity"
HOUR_SECONDS = 3600.0
#: More points say no more about the slope and cost their square.
MOST_POINTS = 300


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the soak lasts, and how soon ended jobs are deleted."""

    seconds: float
    score_seconds: float
    keep_seconds: float
    #: Of latencies and other percentiles over time.
    bucket_seconds: float
    weigh_seconds: float

    @property
    def per_second(self) -> float:
        return SHARE * SLOTS / self.score_seconds


PLANS = {
    Size.FULL: Plan(1800.0, 1.5, keep_seconds=180.0, bucket_seconds=60.0, weigh_seconds=5.0),
    Size.QUICK: Plan(30.0, 1.5, keep_seconds=5.0, bucket_seconds=5.0, weigh_seconds=1.0),
    Size.MINI: Plan(2.0, 0.5, keep_seconds=5.0, bucket_seconds=1.0, weigh_seconds=1.0),
}


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

    #: The median in the part of the time that counts.
    level: float
    #: How much was added in that part.
    grown: float
    per_hour: float

    @property
    def share(self) -> float:
        """What was added, relative to the level."""
        return self.grown / self.level if self.level else 0.0


def growth(points: Sequence[Point], since_share: float = 0.5) -> Growth:
    """The growth in the last part of the time; by default the second half."""
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


def tail_by_bucket(points: Sequence[Point], bucket_seconds: float, share: float) -> list[Point]:
    """A percentile of the values in each stretch of time, at the middle of the stretch."""
    buckets: dict[int, list[float]] = {}
    for at, value in points:
        buckets.setdefault(int(at // bucket_seconds), []).append(value)
    return [
        ((number + 0.5) * bucket_seconds, percentile(values, share))
        for number, values in sorted(buckets.items())
    ]


def by_third(points: Sequence[Point], seconds: float, share: float) -> list[float]:
    """A percentile of the values in each third of the time."""
    return [
        percentile((value for at, value in points if third <= 3 * at / seconds < third + 1), share)
        for third in range(3)
    ]


#: Memory of a process may grow by this share of itself, or by what counts as nothing.
MEMORY = (0.05, 10.0)
#: The same for what retention empties.
TABLES = (0.10, 2.0)
#: Blobs, too: some 140 of random sizes at a time. Over an hour, chance alone gives them a trend of
#: 7 % (one standard deviation).
BLOBS = (0.25, 2.0)
#: The tail at the end, of that at the beginning.
TAIL_RATIO = 1.2
#: Differences of the API's latency that are noise of the machine.
API_MS = 5.0
#: The leaderboard: a scored application is kept for ever, on purpose.
KEPT_FOR_EVER = ("applications",)
#: RabbitMQ's memory is shown, not judged.
JUDGED = ("api", "scheduler", "worker")


@dataclass(frozen=True, slots=True)
class Soak:
    """Everything that was measured; curves by the seconds since the first arrival."""

    plan: Plan
    submissions: Submissions
    #: Megabytes over time by part of the system.
    memory: dict[str, list[Point]]
    #: By table.
    tables: dict[str, list[Point]]
    blobs: list[Point]
    dead_rows: list[Point]

    @property
    def scored(self) -> list[Point]:
        """Seconds from the intended start of a submission to its score, by the intended start."""
        found = zip(self.submissions.accepted, self.submissions.waits(), strict=True)
        begin = self.submissions.begin
        return [(each.intended_at - begin, wait) for each, wait in found if isfinite(wait)]

    @property
    def api_ms(self) -> list[Point]:
        """Milliseconds from the intended start to the API's response."""
        begin = self.submissions.begin
        return [
            (each.intended_at - begin, 1000 * each.latency_seconds)
            for each in self.submissions.accepted
        ]

    @property
    def p99_by_third(self) -> list[float]:
        return by_third(self.scored, self.plan.seconds, 0.99)

    @property
    def api_p95_by_third(self) -> list[float]:
        return by_third(self.api_ms, self.plan.seconds, 0.95)

    @property
    def postgres_memory(self) -> list[Point]:
        """Without the pages of tables that are kept for ever: its buffers hold all of them here."""
        kept = [points for name, points in self.tables.items() if name in KEPT_FOR_EVER]
        return [
            (at, value - sum(points[place][1] for points in kept))
            for place, (at, value) in enumerate(self.memory.get("postgres", ()))
        ]

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
        "memory: postgres without what is kept forever": growth(soak.postgres_memory),
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
    "MB per hour": "{0[1].per_hour:+.1f}",
}


def tails(soak: Soak) -> Table:
    p50 = by_third(soak.scored, soak.plan.seconds, 0.5)
    rows = [
        ("submit to scored p50, s", *map("{:.3f}".format, p50)),
        ("submit to scored p99, s", *map("{:.3f}".format, soak.p99_by_third)),
        ("API p95, ms", *map("{:.1f}".format, soak.api_p95_by_third)),
    ]
    return Table("Latency by third", ("", "first", "second", "third"), rows)


def bars(soak: Soak, size: Size) -> list[Bar]:
    """What must be seen; a short run shows only that nothing goes wrong."""
    losses = [
        at_most("submissions refused", soak.submissions.refused),
        at_most("accepted and not scored", soak.submissions.unscored),
    ]
    if size is not Size.FULL:
        return losses
    first, _, last = soak.p99_by_third
    ratio = last / first if first else float(bool(last))
    api_first, _, api_last = soak.api_p95_by_third
    return [
        *(grown_bar(f"{name}: memory", soak.memory[name], *MEMORY) for name in JUDGED),
        grown_bar("postgres: memory without what is kept forever", soak.postgres_memory, *MEMORY),
        grown_bar("tables that retention empties:", soak.emptied, *TABLES),
        grown_bar("blobs:", soak.blobs, *BLOBS),
        at_most("submit to scored p99, last third of the first third's", ratio, TAIL_RATIO, " x"),
        at_most(
            "API p95 in the last third (1.2 x the first's, or 5 ms more)",
            *(api_last, max(TAIL_RATIO * api_first, api_first + API_MS), " ms"),
        ),
        *losses,
    ]


def grown_bar(name: str, points: Sequence[Point], share: float, least: float) -> Bar:
    """What may be added in the second half: a share of the level, or what counts as nothing."""
    grown = growth(points)
    allowed = max(least, share * grown.level)
    return at_most(f"{name} grown in the second half", grown.grown, allowed, " MB")


def findings(soak: Soak) -> list[str]:
    all_of_them = growths(soak)
    judged = {name: all_of_them[f"memory: {name}"] for name in JUDGED if name in soak.memory}
    most = max(judged, key=lambda name: judged[name].grown)
    emptied = all_of_them["tables that retention empties"]
    first, _, last = soak.p99_by_third
    submissions = soak.submissions
    seconds = soak.plan.seconds
    lasted = f"{seconds / 60:g} minutes" if seconds >= 120 else f"{seconds:g} s"
    return [
        f"{lasted} at {soak.plan.per_second:.2f}/s, 70 % of what one worker can score: "
        f"{len(soak.scored):,} applications were scored, {submissions.refused} refused, "
        f"{submissions.unscored} lost.",
        f"In the second half the part whose memory grew most, {most}, changed by "
        f"{judged[most].grown:+.1f} MB ({100 * judged[most].share:+.1f} %); the tables that "
        f"retention empties were at {emptied.level:.1f} MB and changed by {emptied.grown:+.1f} MB.",
        f"p99 from submission to score was {first:.2f} s in the first third and {last:.2f} s in "
        "the last.",
    ]


def figures(soak: Soak) -> dict[str, Any]:
    """For ``report.json``."""
    return {
        "seconds": soak.plan.seconds,
        "per_second": round(soak.plan.per_second, 3),
        "scored": len(soak.scored),
        "refused": soak.submissions.refused,
        "lost": soak.submissions.unscored,
        "growth_mb": {
            name: {"level": round(each.level, 2), "grown": round(each.grown, 3)}
            for name, each in growths(soak).items()
        },
        "p99_seconds_by_third": [round(n, 3) for n in soak.p99_by_third],
        "door_p95_seconds_by_third": [round(n / 1000, 4) for n in soak.api_p95_by_third],
    }


CAPTION = "Memory, table sizes, the queue, dead rows and latency over the whole run"


def judge(soak: Soak, size: Size) -> Report:
    method = (
        f"Ended jobs and events are kept for {soak.plan.keep_seconds:g} s here, by default for 7 "
        "days; retention starts once per minute. The second half (shaded) is judged, by the "
        "median of all slopes between two measurements. Memory is the resident size, with what "
        "processes of one part share counted once. Scored applications are kept forever, for the "
        "leaderboard: their table grows on purpose, and PostgreSQL has its pages in memory."
    )
    short = "Too short to judge flatness: only refusals and losses are."
    return Report(
        "soak",
        TITLE,
        findings=findings(soak),
        pictures=[Picture("soak.png", CAPTION)],
        tables=[table("Second half", COLUMNS, growths(soak).items()), tails(soak)],
        bars=bars(soak, size),
        notes=[method] if size is Size.FULL else [method, short],
        data=figures(soak),
    )
