"""Forecast: how long a queued job will wait, by how fast its tenant's jobs start. Pure.

What is ahead divided by the rate of starts: the tenant's share of the slots over the duration of
what is ahead, corrected by the rate that was measured, and never more than its slots could do. A
tenant that had more than its share may have to wait until the others had theirs. A forecast is a
range: run times differ, the fewer of them are known the less is certain, and the measured rate and
the share may disagree. Does not foresee submissions, circuits or workers that come and go; the
error is measured and published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.policy.durations import LEAST_SECONDS, Durations

#: A lower rate counts as none: one job in eleven days.
LEAST_PER_SECOND = 1e-6
#: A rate is measured after so long, or so many starts: the first ones only fill idle slots.
STEADY_SECONDS = 5.0
STEADY_STARTS = 100
#: Fewer starts are no rate.
LEAST_STARTS = 20
#: Between two jobs a slot is empty for no longer than this.
CHANGE_SECONDS = 0.25
#: So long are jobs of a moment.
MOMENT_SECONDS = 0.1
#: Largest part of a job's mean duration that counts as elapsed.
MOST_ELAPSED = 0.9
#: Standard deviations to both sides of what is expected. Shares and rates change meanwhile: in
#: floods about two thirds of the jobs start in between.
SIDE = 1.28


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds until a job starts: what is expected, and the range in which it probably does."""

    earliest: float
    seconds: float
    #: None if it cannot be known.
    latest: float | None


@dataclass(frozen=True, slots=True)
class QueueFlow:
    """How a tenant's jobs start in a pool."""

    #: Slots that its jobs can get, and how many of them are in use.
    slots: int
    in_flight: int
    #: Run times of what is ahead.
    jobs: Durations
    #: The tenant's share of the slots, between 0 and 1.
    share: float
    #: Its jobs at the broker, ahead of those that are queued.
    under_way: int = 0
    #: As measured recently; None if nothing was.
    started_per_second: float | None = None
    #: Starts within the last minute, and how long ago the first of them was.
    starts: int = 0
    starts_seconds: float = 0.0
    #: Jobs it may have in flight, and those it has.
    cap: int | None = None
    own: int = 0
    #: How long the latter have run, in the mean.
    elapsed_seconds: float = 0.0
    #: Until the others have had as much of the slots as the tenant had beyond its share.
    debt_seconds: float = 0.0


def rates_of(flow: QueueFlow) -> tuple[float, float, float]:
    """The lowest rate of starts that may be, what is expected, and the highest.

    Between what the share of the slots can do and what was measured, which may be of the moment. Of
    jobs that end in a moment slots cannot start as many as they could run: there it is the measured
    rate that is expected, if that is lower.
    """
    usual, most = slots_by_share(flow) / seconds_each(flow), most_slots(flow) / seconds_each(flow)
    measured = flow.started_per_second
    steady = flow.starts >= STEADY_STARTS or (
        flow.starts >= LEAST_STARTS and flow.starts_seconds >= STEADY_SECONDS
    )
    # Long jobs start in waves; between two of them the measured rate says nothing.
    pause = slots_by_share(flow) / (seconds_each(flow) + CHANGE_SECONDS) / 2
    if measured is None or not steady or measured < pause:
        return usual, usual, usual
    measured = min(measured, most)
    moment = measured <= usual and flow.jobs.mean <= MOMENT_SECONDS
    expected = measured if moment else math.sqrt(measured * usual)
    return min(measured, usual), expected, max(measured, usual)


def seconds_each(flow: QueueFlow) -> float:
    """What a job ahead is expected to take."""
    return max(LEAST_SECONDS, flow.jobs.mean)


def slots_by_share(flow: QueueFlow) -> float:
    """Slots that it gets while others wait."""
    return min(flow.slots * min(1.0, max(0.0, flow.share)), most_slots(flow))


def most_slots(flow: QueueFlow) -> int:
    """Slots that it may have at once if nobody else needs any."""
    return flow.slots if flow.cap is None else min(flow.slots, flow.cap)


def predict_wait(ahead: float, flow: QueueFlow, not_before: float = 0.0) -> Forecast | None:
    """Until a job starts that has ``ahead`` queued jobs of its tenant before it.

    ``not_before``: nothing of its lane starts sooner. None if nothing starts at all.
    """
    if flow.slots <= 0:
        return None
    # Others that wait get their share of the idle slots as well.
    idle = math.ceil(max(0, flow.slots - flow.in_flight) * min(1.0, max(0.0, flow.share)))
    capped = flow.cap is not None and flow.cap - flow.own < max(1, idle)
    if flow.cap is not None and capped:
        idle = max(0, flow.cap - flow.own)
    wait = max(0.0, not_before)
    if ahead < idle:
        return Forecast(wait, wait, wait)
    # At its cap, the queued jobs wait for those in flight to end.
    before = ahead + 1 - idle + (0 if idle or capped else flow.under_way)
    elapsed = 0.0
    if capped and not idle:
        most = MOST_ELAPSED * seconds_each(flow)
        elapsed = min(max(0.0, flow.elapsed_seconds), most) / most_slots(flow)
    found = behind(before, flow, wait, elapsed)
    if found is None or capped or flow.debt_seconds <= 0:
        return found
    # When exactly its turn comes depends on what the scheduler takes its jobs for.
    turn = behind(ahead, flow, wait + flow.debt_seconds)
    return found if turn is None else replace(found, latest=later(found, turn).latest)


def behind(
    starts: float, flow: QueueFlow, wait: float = 0.0, elapsed: float = 0.0
) -> Forecast | None:
    """Until so many jobs have started, after ``wait`` and less what has ``elapsed`` of it."""
    lowest, rate, highest = rates_of(flow)
    if rate < LEAST_PER_SECOND:
        return None
    jobs = flow.jobs
    # The sum of as many run times, on the slots that the rate stands for; and how well their mean
    # is known.
    slots = max(rate * seconds_each(flow), LEAST_PER_SECOND)
    unknown = starts + starts**2 / max(1.0, jobs.runs)
    side = SIDE * jobs.spread * math.sqrt(unknown) / slots
    slow, quick = starts / max(LEAST_PER_SECOND, lowest), starts / highest
    least = starts * jobs.least / max(slots, most_slots(flow))
    most = slow * max(1.0, jobs.most / seconds_each(flow))
    seconds = max(0.0, starts / rate - elapsed)
    earliest = min(seconds, max(0.0, least - elapsed, quick - side - elapsed))
    latest = max(seconds, min(most, slow + side) - elapsed)
    return Forecast(wait + earliest, wait + seconds, wait + latest)


def debt_seconds(
    share: float, slots: int, had: float, in_flight: Sequence[float], usual_seconds: float
) -> float:
    """Until the others had as much of the slots as a tenant that ``had`` so many slot-seconds more
    than its share, and has jobs ``in_flight`` that are expected to take so long.

    ``usual_seconds``: a run of all tenants. The others have something in flight as well: where
    hardly anybody else waits, the tenant itself, else about two usual runs.
    """
    if not 0.0 < share < 1.0 or slots <= 0:
        return 0.0
    pending = math.fsum(in_flight)
    own = pending / max(1, len(in_flight))
    level = share * own + (1.0 - share) * 2.0 * usual_seconds
    return max(0.0, (had + pending) / (share * slots) - level)


def predict_start(flow: QueueFlow) -> Forecast | None:
    """Until a job at the broker starts, behind all of its tenant's that are there."""
    if flow.slots <= 0:
        return None
    if flow.in_flight < flow.slots or not flow.under_way:
        return Forecast(0.0, 0.0, 0.0)
    return behind(flow.under_way, flow)


def predict_paced(
    ahead: float, per_second: float, share: float, not_before: float
) -> Forecast | None:
    """Until a job starts whose dependency accepts so many calls per second."""
    rate = per_second * min(1.0, max(0.0, share))
    if rate < LEAST_PER_SECOND:
        return None
    wait = max(0.0, not_before)
    # If the others call less often than they may, it gets more.
    seconds = (ahead + 1) / rate
    return Forecast(wait + (ahead + 1) / per_second, wait + seconds, wait + seconds)


def later(one: Forecast, other: Forecast) -> Forecast:
    """Until both are over."""
    ends = [each.latest for each in (one, other) if each.latest is not None]
    return Forecast(
        max(one.earliest, other.earliest),
        max(one.seconds, other.seconds),
        max(ends) if len(ends) == 2 else None,
    )


def error_ratio(predicted_seconds: float, actual_seconds: float) -> float:
    """Error of a prediction relative to the wait; waits under a second count as one."""
    return abs(predicted_seconds - actual_seconds) / max(1.0, actual_seconds)
