"""Tiers: what each entitles to. Reserved slots are dedicated workers and no matter of weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Part of a pool that all free accounts together may use.
FREE_SLICE = 0.05


class Tier(StrEnum):
    """Plans, from the smallest to the largest."""

    FREE = "free"
    STANDARD = "standard"
    PRO = "pro"
    ENTERPRISE = "enterprise"


@dataclass(frozen=True, slots=True)
class Entitlement:
    """A claim on the slots of a pool."""

    #: Relative to the weights of the others that wait.
    weight: float
    #: Least share of the pool while it waits.
    floor: float = 0.0
    #: Largest share of the pool while others wait.
    ceiling: float = 1.0


ENTITLEMENTS = {
    Tier.FREE: Entitlement(1.0, ceiling=FREE_SLICE),
    Tier.STANDARD: Entitlement(10.0),
    Tier.PRO: Entitlement(100.0, floor=0.01),
    Tier.ENTERPRISE: Entitlement(1000.0),
}


def entitlement_of(tier: Tier, weight: float | None = None, share: float = 1.0) -> Entitlement:
    """The claim of a tenant; its own weight replaces the tier's, but not for free accounts, which
    share one claim equally. ``share``: the part of it that holds in this cell."""
    usual = ENTITLEMENTS[tier]
    if tier is Tier.FREE or (weight is None and share == 1.0):
        return usual
    own = usual.weight if weight is None else weight
    return Entitlement(own * share, usual.floor * share, usual.ceiling)


def free_slots(slots: int) -> int:
    """Jobs that free accounts together may have in flight in a pool of so many shared slots."""
    return max(1, int(FREE_SLICE * slots)) if slots > 0 else 0
