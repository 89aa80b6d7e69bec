"""Samples as series of a chart. Pure.

A series has a gap where samples are missing, because there was no leader, and where a counter
fell, which happens only when the database was restored from a backup.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

#: Steps between two samples without a gap: one or two may be late or missing.
NEIGHBOURS = 3
MINUTE_SECONDS = 60.0


class Samples(NamedTuple):
    """Samples of a pool in the order of time, a list for each value: few objects for hundreds."""

    #: Seconds since the epoch.
    at: Sequence[int] = ()
    #: Counters: jobs submitted, ended in any way, and dead.
    submitted: Sequence[int] = ()
    ended: Sequence[int] = ()
    dead: Sequence[int] = ()
    queued: Sequence[int] = ()
    oldest_seconds: Sequence[float] = ()
    busy: Sequence[int] = ()
    slots: Sequence[int] = ()


#: By pool, in the order of the legend.
ByPool = Mapping[str, Samples]
#: A series of a chart: times and values.
Points = Iterable[tuple[int, float | None]]


def per_minute(rise: float, seconds: float) -> float | None:
    """The rate of a counter; None if it fell, or if no time has passed."""
    if seconds <= 0 or rise < 0:
        return None
    return round(rise * MINUTE_SECONDS / seconds, 2)


def rates(at: Sequence[int], counter: Sequence[int], step: int) -> Points:
    """The rate at each sample since its neighbour; None if that is missing."""
    near = NEIGHBOURS * step
    for (earlier, before), (later, now) in pairwise(zip(at, counter, strict=True)):
        apart = later - earlier
        yield later, per_minute(now - before, apart) if apart <= near else None


def first_within(at: Sequence[int], seconds: float) -> int | None:
    """Index of the first sample of the last seconds; None if it is the only one."""
    if not at:
        return None
    place = bisect_left(at, at[-1] - seconds)
    return place if place < len(at) - 1 else None


def moments(samples: ByPool, step: int, now: int) -> list[int]:
    """Times of samples, and one inside each gap, where the lines break; the last gap ends now."""
    known = sorted({at for of_pool in samples.values() for at in of_pool.at})
    drawn = known[:1]
    for before, at in pairwise(known):
        if at - before > NEIGHBOURS * step:
            drawn.append((before + at) // 2)
        drawn.append(at)
    if known and now - known[-1] > NEIGHBOURS * step:
        drawn.append(now - now % step)
    return drawn


def draw(samples: ByPool, step: int, now: int) -> dict[str, dict[str, Any]]:
    """The data of every chart, by its name, as the page's script expects it."""
    at = moments(samples, step, now)
    x = [1000 * moment for moment in at]
    pools = [(pool, colour, of_pool) for colour, (pool, of_pool) in enumerate(samples.items())]

    def line(name: str, colour: int, points: Points, **more: Any) -> dict[str, Any]:
        known = dict(points)
        return {"name": name, "colour": colour, "y": list(map(known.get, at)), **more}

    def gauge(values: Callable[[Samples], Iterable[float]]) -> list[dict[str, Any]]:
        return [
            line(pool, colour, zip(one.at, values(one), strict=True)) for pool, colour, one in pools
        ]

    came = [
        line(f"{pool} in", colour, rates(one.at, one.submitted, step), dash=True)
        for pool, colour, one in pools
    ]
    went = [
        line(f"{pool} out", colour, rates(one.at, one.ended, step)) for pool, colour, one in pools
    ]
    return {
        "depth": {"x": x, "unit": "jobs", "series": gauge(lambda one: one.queued)},
        "rates": {"x": x, "unit": "jobs per minute", "series": [*came, *went]},
        "utilisation": {
            "x": x,
            "suffix": " %",
            "series": gauge(lambda one: map(used_percent, one.busy, one.slots)),
        },
        "oldest": {"x": x, "unit": "seconds", "series": gauge(lambda one: one.oldest_seconds)},
    }


def used_percent(busy: int, slots: int) -> float:
    return round(100 * min(1.0, busy / slots), 1) if slots else 0.0
