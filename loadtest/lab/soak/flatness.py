"""Whether a curve is flat, judged so that neither teeth nor a few strange points decide. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from loadtest.percentiles import percentile

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
        ((number + 0.5) * bucket_seconds, percentile(sorted(values), share))
        for number, values in sorted(buckets.items())
    ]


def tail_of_third(points: Sequence[Point], seconds: float, third: int, share: float) -> float:
    """A percentile of the values in the first, second or third part of the time (0, 1, 2)."""
    return percentile(
        sorted(value for at, value in points if third <= 3 * at / seconds < third + 1), share
    )
