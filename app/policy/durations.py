"""Run times of the jobs that wait: what one is expected to take, and how far they differ. Pure.

By what similar jobs took of late: those of the same tenant and type if there are a few, else those
of the type, else a guess. One run alone may be an accident, so the longest does not count for what
is expected, only for how far off that may be; where there are many runs, it makes no difference.
The shortest end first, so runs that go on for longer than that count as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: A job that does nothing still occupies its slot for a moment.
LEAST_SECONDS = 0.001
#: So many runs of a tenant tell more about its jobs than those of all tenants.
ENOUGH_RUNS = 5
#: A run may have begun so much later, or have ended so long ago, before the rows say so.
LAG_SECONDS = 2.0

#: Runs of about the same length: how many, and their seconds together.
Observed = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Durations:
    """What is known about the run times of some jobs."""

    #: Runs that it is known by; 0 if it is a guess.
    runs: float
    mean: float
    #: Standard deviation.
    spread: float
    least: float
    most: float


def guess(seconds: float) -> Durations:
    """Of jobs that are not known at all."""
    return Durations(0.0, seconds, seconds, 0.0, math.inf)


def of_runs(observed: Iterable[Observed]) -> Durations | None:
    """By recent runs; None if there are none."""
    bins = sorted((seconds / runs, runs) for runs, seconds in observed if runs > 0)
    if not bins:
        return None
    total = math.fsum(runs for _, runs in bins)
    mean = math.fsum(seconds * runs for seconds, runs in bins) / total
    variance = math.fsum(runs * (seconds - mean) ** 2 for seconds, runs in bins) / total
    least, (most, longest) = bins[0][0], bins[-1]
    if total > 1.0:
        one = min(1.0, longest)
        mean = (mean * total - most * one) / (total - one) if total > one else mean
    mean = max(LEAST_SECONDS, min(max(mean, least), most))
    return Durations(total, mean, math.sqrt(variance), least, max(most, mean))


def expected(
    own: Sequence[Observed],
    shared: Sequence[Observed],
    default: float,
    running: Sequence[float] = (),
) -> Durations:
    """Of a tenant's jobs of a type, by its own runs and by those of all tenants.

    ``running``: seconds for which runs of the tenant have been going on.
    """
    if sum(runs for runs, _ in own) >= ENOUGH_RUNS:
        shared = ()
    return going_on(of_runs(shared) or of_runs(own) or guess(default), running, not shared)


def going_on(known: Durations, running: Sequence[float], own: bool) -> Durations:
    """With runs that have not ended: what they took beyond what was expected belongs to as many
    runs as ended; those of others tell nothing about a tenant whose runs all take longer."""
    if not running:
        return known
    if own and known.runs:
        expected_end = known.mean + LAG_SECONDS
        mean = known.mean + sum(max(0.0, each - expected_end) for each in running) / known.runs
    else:
        mean = max(known.mean, sum(running) / len(running) - LAG_SECONDS)
    most = max(known.most, *running)
    mean = min(mean, most)
    return replace(known, mean=mean, most=most, spread=max(known.spread, mean - known.mean))


def mixed(parts: Iterable[tuple[float, Durations]]) -> Durations | None:
    """Of jobs of several types, with how many there are of each; None without any."""
    present = [(jobs, each) for jobs, each in parts if jobs > 0]
    if not present:
        return None
    total = math.fsum(jobs for jobs, _ in present)
    mean = math.fsum(jobs * each.mean for jobs, each in present) / total
    squares = math.fsum(jobs * (each.spread**2 + (each.mean - mean) ** 2) for jobs, each in present)
    least, most = min(each.least for _, each in present), max(each.most for _, each in present)
    # What is not known at all is not outweighed by what is.
    runs = min(each.runs for _, each in present)
    return Durations(runs, min(max(mean, least), most), math.sqrt(squares / total), least, most)
