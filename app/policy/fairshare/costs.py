"""What a tenant's jobs will cost: the estimates of their types, put right by its own experience.

Two tenants may share a type and differ by a thousand in what they do with it. The mean of
the type would let the one with long jobs have too many of them at once, and would hold the
other back. So each tenant's estimates are scaled by what its jobs took so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from app.policy.fairshare.heaps import Entity

#: How much one more job counts in the mean of the estimates.
SMOOTHING = 0.2
#: Jobs after which measurements begin to fade.
MEMORY = 40.0


def charged(entity: Entity, seconds: Sequence[float]) -> float:
    """Slot-seconds to charge for dispatched jobs of which the types say ``seconds``."""
    total = fsum(seconds)
    gain = 1.0 - (1.0 - SMOOTHING) ** len(seconds) if entity.seen else 1.0
    entity.seen = True
    entity.estimated += (total / len(seconds) - entity.estimated) * gain
    entity.flown += len(seconds)
    return total * scale(entity)


def taken_back(entity: Entity, seconds: Sequence[float]) -> float:
    """What was charged for them."""
    entity.flown -= len(seconds)
    return fsum(seconds) * scale(entity)


def corrected(entity: Entity, *, used: float, pending: float, in_flight: int) -> float:
    """Slot-seconds that the jobs in flight will take, of which the types say ``pending``."""
    ended = entity.flown - in_flight
    entity.flown = in_flight
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
    """How much longer its jobs take than their types say."""
    return entity.expected / entity.estimated if entity.estimated > 0 else 1.0
