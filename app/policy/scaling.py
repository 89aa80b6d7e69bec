"""How many workers a pool should have. Pure.

Up while jobs wait for a slot longer than they should, by as much as brings the wait down, at
most to twice the living workers and one more in a step: who is on the way must show up first.
Down one at a time, each after a long quiet in which one worker fewer would have done easily.
The gap between both keeps a constant load from moving anything.

What waits for something else than a slot is no demand: while slots are free, no wait counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The rules of one pool."""

    least: int = 1
    most: int = 8
    #: Up when the oldest waits longer than this.
    up_seconds: float = 5.0
    #: No second step up before the first had this long to work.
    step_seconds: float = 10.0
    #: Down after so long a quiet …
    quiet_seconds: float = 300.0
    #: … in which nothing waited longer than this …
    calm_seconds: float = 1.0
    #: … and no more than this share of the slots that would be left was in use.
    low: float = 0.6
    #: Share of the slots that is kept free, warm for the next burst …
    headroom: float = 0.0
    #: … and how long it may be missing.
    tight_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"from {self.least} to {self.most} workers is no range")
        if not 0 <= self.headroom < 1 or not 0 < self.low < 1 - self.headroom:
            raise ValueError("low must be between 0 and what the headroom leaves")


#: Pools that differ from the usual; others, also those of the operator, are usual.
POLICIES: Mapping[str, ScalingPolicy] = {
    "short": ScalingPolicy(headroom=0.2),
    "long": ScalingPolicy(up_seconds=60.0, quiet_seconds=1800.0),
}


@dataclass(frozen=True, slots=True)
class PoolReading:
    """A pool at one moment; slices and what is parked are left out."""

    #: Jobs that wait for a slot, and how long the oldest has.
    depth: int
    oldest_seconds: float
    #: Jobs that run, and those with what is on the way to the workers.
    running: int
    in_flight: int
    #: Slots of the living workers, and of one.
    slots: int
    slots_each: int
    ended_per_second: float = 0.0

    @property
    def workers(self) -> int:
        """Living workers; a part of one counts as one."""
        return math.ceil(self.slots / self.slots_each)

    @property
    def utilisation(self) -> float:
        """Share of the slots that is in use."""
        return min(1.0, self.running / self.slots) if self.slots else 0.0

    @property
    def job_seconds(self) -> float:
        """How long a job takes; without end while none has ended."""
        return self.running / self.ended_per_second if self.ended_per_second else math.inf


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What was decided so far, and since when the pool is as it is."""

    workers: int
    #: The last change; None if there was none yet.
    changed_at: float | None = None
    quiet_since: float | None = None
    tight_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many workers there should be, why, and what to remember for the next time."""

    workers: int
    reason: str
    standing: ScalingState


def decide(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy, now: float
) -> ScalingDecision:
    """The next word on a pool; call it about once a second."""
    watched = watch(reading, standing, policy, now)
    workers, reason = choose(reading, watched, policy, now)
    bounded = min(max(workers, policy.least), policy.most)
    if bounded > workers:
        reason = f"{policy.least} at least"
    elif bounded < workers:
        reason = f"{reason}; {policy.most} at most"
    if bounded != standing.workers:
        # A new quiet for each step; what was tight may be no longer.
        watched = ScalingState(bounded, changed_at=now)
    return ScalingDecision(bounded, reason, watched)


def watch(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy, now: float
) -> ScalingState:
    """Since when the pool is quiet, or has too few slots free."""
    left = (standing.workers - 1) * reading.slots_each
    quiet = reading.oldest_seconds < policy.calm_seconds and reading.running <= left * policy.low
    kept = standing.workers * reading.slots_each * (1 - policy.headroom)
    tight = policy.headroom > 0 and reading.running > kept
    return replace(
        standing,
        quiet_since=since(standing.quiet_since, now) if quiet else None,
        tight_since=since(standing.tight_since, now) if tight else None,
    )


def choose(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy, now: float
) -> tuple[int, str]:
    """Workers before the bounds are applied, and why."""
    stay = standing.workers
    changed = lasted(standing.changed_at, now)
    settled = changed is None or changed >= policy.step_seconds
    full = reading.in_flight >= reading.slots
    if reading.depth > 0 and full and reading.oldest_seconds > policy.up_seconds:
        why = f"the oldest of {reading.depth} waits {reading.oldest_seconds:.0f} s"
        needed = max(needed_workers(reading, policy), reading.workers + 1)
        needed = min(needed, reading.workers * 2 + 1)
        if needed > stay:
            return (needed, why) if settled else (stay, f"{why}; the last step is still to work")
        return stay, f"{why}; more are asked for, not there yet" if stay > reading.workers else why
    tight = lasted(standing.tight_since, now)
    if settled and tight is not None and tight >= policy.tight_seconds:
        warm = math.ceil(reading.running / (1 - policy.headroom) / reading.slots_each)
        needed = min(warm, reading.workers * 2 + 1)
        return max(stay, needed), f"{reading.running} run: too few slots are free"
    quiet = lasted(standing.quiet_since, now)
    if quiet is not None and quiet >= policy.quiet_seconds and reading.depth == 0:
        return stay - 1, f"quiet for {quiet:.0f} s"
    return stay, "enough"


def needed_workers(reading: PoolReading, policy: ScalingPolicy) -> int:
    """Enough for what runs and to start what waits in the time that a job may wait.

    Jobs that take longer than that need a slot each.
    """
    share = min(1.0, reading.job_seconds / policy.up_seconds)
    busy = min(reading.in_flight, reading.slots)
    slots = (busy + reading.depth * share) / (1 - policy.headroom)
    return math.ceil(slots / reading.slots_each)


def since(begun: float | None, now: float) -> float:
    """When it began: now, if it had not yet."""
    return now if begun is None else begun


def lasted(begun: float | None, now: float) -> float | None:
    """Seconds since then; None if it has not begun."""
    return None if begun is None else now - begun


#: What an operator may change besides the bounds.
SETTABLE = {field.name for field in fields(ScalingPolicy)} - {"least", "most"}


def policy_of(
    pool: str,
    least: Mapping[str, int],
    most: Mapping[str, int],
    changes: Mapping[str, Mapping[str, float]],
) -> ScalingPolicy:
    """The policy of a pool with what the operator wants otherwise."""
    policy = POLICIES.get(pool, ScalingPolicy())
    change = dict(changes.get(pool, {}))
    if unknown := set(change) - SETTABLE:
        raise ValueError(f"{pool}: {', '.join(sorted(unknown))} cannot be set by a scale policy")
    at_least = least.get(pool, policy.least)
    return replace(
        policy,
        **change,
        least=at_least,
        most=most.get(pool, max(policy.most, at_least)),
    )
