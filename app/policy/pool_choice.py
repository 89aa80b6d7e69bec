"""Pool choice: in which pool a job type belongs, by what was declared and measured. Pure.

Pools that differ by duration form a chain, such as short, medium, long. A type moves up if within
an hour its runs broke the bound of its pool 100 times, or more than 1 % of at least 50 did, and its
p95 does not fit the pool. If it stays nevertheless, :func:`kept_by` says why. It comes back, never
below what was declared, when its p95 is half of what the lower pool allows. After a change there is
no other one for an hour, so what the rule sees happened after the change.

A type is shared by all tenants, so no tenant moves it alone while others use it: see
:func:`agreed_pool`.

A move never makes a run fail that would not have failed before: not into a pool that allows less
time than the type, that requires checkpoints or reports the type never promised, that is green if
the declared one is not, or without workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: The rule uses counts of this long, and a change lasts at least as long.
WINDOW_SECONDS = 3600.0
#: So many violations are enough …
VIOLATIONS = 100
#: … or this share of the runs, of at least so many.
SHARE = 0.01
MIN_RUNS = 50
#: A type comes back when its p95 is this part of the lower pool's bound.
BACK = 0.5


class MoveReason(StrEnum):
    """Why a type was moved."""

    VIOLATIONS = "violations"
    SHARE = "share_of_violations"
    FASTER = "faster"
    UNSERVED = "pool_not_served"


class KeepReason(StrEnum):
    """Why a type stays although its runs broke the bound of its pool often enough."""

    #: Nearly all runs fit: a few slow ones are no reason to move the others.
    P95 = "p95_fits"
    #: No pool above it takes the type, or has workers.
    NO_POOL = "no_pool_above"
    #: Without the runs of one tenant it would stay.
    ONE_TENANT = "one_tenant_alone"


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """What the rule needs to know about a pool."""

    #: A longer run does not belong here; None: all do.
    bound_seconds: float | None
    #: Longest time limit of its types.
    most_seconds: float
    #: A run without a checkpoint, or without that and reported progress, is stopped after so long.
    checkpoint_seconds: float | None = None
    progress_seconds: float | None = None
    #: Runs share a process.
    green: bool = True
    #: It has workers now.
    alive: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """A job type and its runs within the window."""

    declared: str
    #: Where its new jobs go.
    pool: str
    timeout_seconds: float
    #: Of all its runs, recent ones weighted more.
    p95_seconds: float | None = None
    runs: int = 0
    #: In its current pool.
    runs_here: int = 0
    violations: int = 0
    #: Since the last change; None if it was never moved.
    moved_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PoolMove:
    """Where new jobs of a type go from now on."""

    pool: str
    reason: MoveReason


def next_pool(
    measured: Measured, served: Mapping[str, PoolBounds], chain: Sequence[str]
) -> PoolMove | None:
    """Where the type goes, or None if it stays. ``served`` are the pools of the deployment."""
    if measured.pool not in chain or measured.declared not in chain:
        return None
    if measured.pool not in served:
        home = measured.declared
        return PoolMove(home, MoveReason.UNSERVED) if measured.pool != home else None
    if (p95 := judged_by(measured)) is None:
        return None
    if not fits(served[measured.pool], p95):
        reason = broken(measured)
        target = pool_above(measured, served, chain, p95) if reason else None
        return PoolMove(target, reason) if target and reason else None
    target = pool_below(measured, served, chain, p95)
    return PoolMove(target, MoveReason.FASTER) if target else None


def kept_by(
    measured: Measured, served: Mapping[str, PoolBounds], chain: Sequence[str]
) -> KeepReason | None:
    """Why the type stays although its runs broke a rule; None if they did not, or it moves."""
    p95 = judged_by(measured)
    if p95 is None or broken(measured) is None or next_pool(measured, served, chain):
        return None
    if measured.pool not in served or not {measured.pool, measured.declared} <= set(chain):
        return None
    return KeepReason.P95 if fits(served[measured.pool], p95) else KeepReason.NO_POOL


def judged_by(measured: Measured) -> float | None:
    """The p95 that counts; None if nothing is known, or the last change is too recent."""
    if measured.moved_seconds is not None and measured.moved_seconds < WINDOW_SECONDS:
        return None
    if measured.p95_seconds is None:
        return None
    # A run that was stopped shows how long it may take, not how long it would have taken.
    return min(measured.p95_seconds, measured.timeout_seconds)


def agreed_pool(
    measured: Measured,
    without: Iterable[Measured],
    served: Mapping[str, PoolBounds],
    chain: Sequence[str],
) -> PoolMove | None:
    """Where the type goes by everybody's runs, if it would go that way without any one tenant too.

    ``without`` has a measurement for each tenant that was counted apart: of all runs but its own.
    Too few runs of others say nothing, so the only tenant of a type decides alone. Of several pools
    the type goes to the nearest.
    """
    move = next_pool(measured, served, chain)
    if move is None or move.reason is MoveReason.UNSERVED:
        return move
    here = chain.index(measured.pool)
    steps = [chain.index(move.pool) - here]
    for others in without:
        if others.runs < MIN_RUNS:
            continue
        agreed = next_pool(others, served, chain)
        steps.append(chain.index(agreed.pool) - here if agreed else 0)
    nearest = min(steps, key=abs)
    same_way = all(step * steps[0] > 0 for step in steps)
    return PoolMove(chain[here + nearest], move.reason) if same_way else None


def broken(measured: Measured) -> MoveReason | None:
    """Which rule its runs in the current pool broke, if any."""
    if measured.violations >= VIOLATIONS:
        return MoveReason.VIOLATIONS
    many = measured.violations > SHARE * measured.runs_here
    return MoveReason.SHARE if many and measured.runs_here >= MIN_RUNS else None


def pool_above(
    measured: Measured, served: Mapping[str, PoolBounds], chain: Sequence[str], p95: float
) -> str | None:
    """The first pool with a higher bound that fits, else the one with the highest bound."""
    here = bound(served[measured.pool])
    above = chain[chain.index(measured.pool) + 1 :]
    higher = [
        name
        for name in above
        if takes(served.get(name), measured, served) and bound(served[name]) > here
    ]
    fitting = [name for name in higher if fits(served[name], p95)]
    return next(iter(fitting or higher[-1:]), None)


def pool_below(
    measured: Measured, served: Mapping[str, PoolBounds], chain: Sequence[str], p95: float
) -> str | None:
    """The first pool between the declared and the current one that fits well."""
    if measured.runs < MIN_RUNS:
        return None
    below = chain[chain.index(measured.declared) : chain.index(measured.pool)]
    for name in below:
        if takes(served.get(name), measured, served) and fits(served[name], p95, BACK):
            return name
    return None


def bound(pool: PoolBounds) -> float:
    return math.inf if pool.bound_seconds is None else pool.bound_seconds


def fits(pool: PoolBounds, p95_seconds: float, share: float = 1.0) -> bool:
    """Whether nearly all runs stay within this share of the pool's bound."""
    return p95_seconds <= share * bound(pool)


def takes(pool: PoolBounds | None, measured: Measured, served: Mapping[str, PoolBounds]) -> bool:
    """Whether runs of the type can do in this pool, if it is served, what they may do now."""
    timeout = measured.timeout_seconds
    origin = served.get(measured.declared, served[measured.pool])
    # It need not checkpoint more often than it promised, or not at all.
    quiet = min(timeout, origin.checkpoint_seconds or math.inf)
    return (
        pool is not None
        and pool.alive
        and timeout <= pool.most_seconds
        and quiet <= (pool.checkpoint_seconds or math.inf)
        and quiet <= (pool.progress_seconds or math.inf)
        and (origin.green or not pool.green)
    )
