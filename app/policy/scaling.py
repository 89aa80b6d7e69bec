"""Scaling: how many workers a pool should have. Pure.

Up while jobs wait too long for a slot, by as much as brings the wait down, at most to twice the
live workers plus one in a step: those on the way must show up first. Down one at a time, each after
a long quiet period in which one worker fewer would have done. The gap between both keeps a constant
load from moving anything. While slots are free, no wait counts: it is for something else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """How one pool is scaled."""

    least: int = 1
    most: int = 8
    #: Up when the oldest job waits longer than this.
    up_seconds: float = 5.0
    #: Pause between two steps up.
    step_seconds: float = 10.0
    #: Down after a quiet period of so long …
    quiet_seconds: float = 300.0
    #: … in which no job waited longer than this …
    calm_seconds: float = 1.0
    #: … and no more than this share of the slots left without one worker was in use.
    low: float = 0.6
    #: Share of the slots that is kept free for the next burst …
    headroom: float = 0.0
    #: … and how long it may be missing.
    tight_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ValueError(f"the minimum of {self.least} workers is negative")
        if self.least > self.most:
            raise ValueError(
                f"the minimum of {self.least} workers is above the maximum of {self.most}"
            )
        if not 0 <= self.headroom < 1 or not 0 < self.low < 1 - self.headroom:
            raise ValueError("low must be between 0 and what the headroom leaves")


#: Pools that differ from the default.
POLICIES: Mapping[str, ScalingPolicy] = {
    "short": ScalingPolicy(headroom=0.2),
    "long": ScalingPolicy(up_seconds=60.0, quiet_seconds=1800.0),
}


@dataclass(frozen=True, slots=True)
class PoolReading:
    """A pool at one moment, without slices and jobs that are held back."""

    #: Jobs that wait for a slot, and how long the oldest has waited.
    depth: int
    oldest_seconds: float
    #: Running jobs, and those together with what is at the broker.
    running: int
    in_flight: int
    #: Slots of the live workers, and of one.
    slots: int
    slots_each: int
    ended_per_second: float = 0.0

    @property
    def workers(self) -> int:
        """Live workers; a part of one counts as one."""
        return math.ceil(self.slots / self.slots_each)

    @property
    def utilisation(self) -> float:
        """Share of the slots that is in use."""
        return min(1.0, self.running / self.slots) if self.slots else 0.0

    @property
    def job_seconds(self) -> float:
        """How long a job takes; infinite while none has ended."""
        return self.running / self.ended_per_second if self.ended_per_second else math.inf


@dataclass(frozen=True, slots=True)
class ScalingState:
    """The last decision, and since when the pool is quiet or short of free slots."""

    workers: int
    #: The last change; None if there was none yet.
    changed_at: float | None = None
    quiet_since: float | None = None
    tight_since: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many workers there should be, why, and the state for the next decision."""

    workers: int
    reason: str
    state: ScalingState


def decide(
    reading: PoolReading, before: ScalingState, policy: ScalingPolicy, now: float
) -> ScalingDecision:
    """The next decision about a pool; to be called about once a second."""
    state = observe(reading, before, policy, now)
    workers, reason = choose(reading, state, policy, now)
    bounded = min(max(workers, policy.least), policy.most)
    if bounded > workers:
        reason = f"{policy.least} at least"
    elif bounded < workers:
        reason = f"{reason}; {policy.most} at most"
    if bounded != before.workers:
        # Each step starts a new quiet period.
        state = ScalingState(bounded, changed_at=now)
    return ScalingDecision(bounded, reason, state)


def observe(
    reading: PoolReading, state: ScalingState, policy: ScalingPolicy, now: float
) -> ScalingState:
    """Since when the pool is quiet, or has too few slots free."""
    left = (state.workers - 1) * reading.slots_each
    quiet = reading.oldest_seconds < policy.calm_seconds and reading.running <= left * policy.low
    kept = state.workers * reading.slots_each * (1 - policy.headroom)
    tight = policy.headroom > 0 and reading.running > kept
    return ScalingState(
        state.workers,
        state.changed_at,
        quiet_since=(now if state.quiet_since is None else state.quiet_since) if quiet else None,
        tight_since=(now if state.tight_since is None else state.tight_since) if tight else None,
    )


def choose(
    reading: PoolReading, state: ScalingState, policy: ScalingPolicy, now: float
) -> tuple[int, str]:
    """Workers before the bounds are applied, and why."""
    stay = state.workers
    settled = state.changed_at is None or now - state.changed_at >= policy.step_seconds
    full = reading.in_flight >= reading.slots
    if reading.depth > 0 and full and reading.oldest_seconds > policy.up_seconds:
        why = f"the oldest of {reading.depth} waits {reading.oldest_seconds:.0f} s"
        needed = max(needed_workers(reading, policy), reading.workers + 1)
        needed = min(needed, reading.workers * 2 + 1)
        if needed > stay:
            return (needed, why) if settled else (stay, f"{why}; the last step is too recent")
        return stay, f"{why}; more are asked for, not there yet" if stay > reading.workers else why
    tight = state.tight_since
    if settled and tight is not None and now - tight >= policy.tight_seconds:
        warm = math.ceil(reading.running / (1 - policy.headroom) / reading.slots_each)
        needed = min(warm, reading.workers * 2 + 1)
        return max(stay, needed), f"{reading.running} jobs run: too few slots are free"
    quiet = 0.0 if state.quiet_since is None else now - state.quiet_since
    if state.quiet_since is not None and quiet >= policy.quiet_seconds and reading.depth == 0:
        return stay - 1, f"quiet for {quiet:.0f} s"
    return stay, "enough"


def needed_workers(reading: PoolReading, policy: ScalingPolicy) -> int:
    """Enough for what runs, and to start what waits within ``up_seconds``.

    Jobs that take longer than that need a slot each.
    """
    share = min(1.0, reading.job_seconds / policy.up_seconds)
    busy = min(reading.in_flight, reading.slots)
    slots = (busy + reading.depth * share) / (1 - policy.headroom)
    return math.ceil(slots / reading.slots_each)


#: What an operator may change besides the bounds.
SETTABLE = {field.name for field in fields(ScalingPolicy)} - {"least", "most"}


def policy_of(
    pool: str,
    least: Mapping[str, int],
    most: Mapping[str, int],
    changes: Mapping[str, Mapping[str, float]],
) -> ScalingPolicy:
    """The policy of a pool with the operator's changes."""
    policy = POLICIES.get(pool, ScalingPolicy())
    change = dict(changes.get(pool, {}))
    if unknown := set(change) - SETTABLE:
        raise ValueError(f"{pool}: {', '.join(sorted(unknown))} cannot be set by a scale policy")
    at_least = least.get(pool, policy.least)
    at_most = most.get(pool, max(policy.most, at_least))
    return replace(policy, **change, least=at_least, most=at_most)
