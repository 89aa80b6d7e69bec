"""Expected cost of a tenant's jobs: the estimates of their types, corrected by what they took.

Two tenants may share a type and differ a thousandfold in what they do with it. The mean of the
type would let the one with long jobs have too many of them at once, and would hold the other back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from app.policy.fairshare.heaps import Entity

#: Seconds of a job whose type never ran, by pool.
FIRST_SECONDS = {"short": 10.0, "medium": 60.0, "long": 600.0}
#: … in a pool that a deployment adds.
OTHER_SECONDS = 60.0
#: Weight of one more job in the mean of the estimates.
SMOOTHING = 0.2
#: Jobs after which measurements begin to fade.
MEMORY = 40.0


def default_seconds(pool: str) -> float:
    """Seconds charged for a job of a type that was never measured."""
    return FIRST_SECONDS.get(pool, OTHER_SECONDS)


def charged(entity: Entity, seconds: Sequence[float]) -> float:
    """Slot-seconds to charge for dispatched jobs whose types were estimated at ``seconds``."""
    total = fsum(seconds)
    gain = 1.0 - (1.0 - SMOOTHING) ** len(seconds) if entity.seen else 1.0
    entity.seen = True
    entity.estimated += (total / len(seconds) - entity.estimated) * gain
    entity.dispatched += len(seconds)
    return total * scale(entity)


def refunded(entity: Entity, seconds: Sequence[float]) -> float:
    """Slot-seconds that were charged for jobs that could not be published."""
    entity.dispatched -= len(seconds)
    return fsum(seconds) * scale(entity)


def corrected(entity: Entity, *, used: float, pending: float, in_flight: int) -> float:
    """Slot-seconds that the jobs in flight will take, estimated at ``pending`` by their types."""
    ended = entity.dispatched - in_flight
    entity.dispatched = in_flight
    if ended > 0:
        entity.ended += ended
        entity.ended_seconds += used
        fade = min(1.0, MEMORY / entity.ended)
        entity.ended *= fade
        entity.ended_seconds *= fade
    if not entity.ended:
        return pending
    return max(in_flight * entity.expected, pending * min(1.0, scale(entity)))


def scale(entity: Entity) -> float:
    """How much longer its jobs take than estimated, as a factor."""
    return entity.expected / entity.estimated if entity.estimated > 0 else 1.0
