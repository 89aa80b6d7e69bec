"""What a tier entitles to. Pure.

Reserved slots of an enterprise tenant are workers of its own and no matter of weights.
"""

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

    #: Claim in relation to the others' who wait.
    weight: float
    #: Share of the pool that it gets at least while it waits.
    floor: float = 0.0
    #: Share of the pool that it gets at most while others wait.
    ceiling: float = 1.0


ENTITLEMENTS = {
    Tier.FREE: Entitlement(1.0, ceiling=FREE_SLICE),
    Tier.STANDARD: Entitlement(10.0),
    Tier.PRO: Entitlement(100.0, floor=0.01),
    Tier.ENTERPRISE: Entitlement(1000.0),
}


def entitlement_of(tier: Tier, weight: float | None = None) -> Entitlement:
    """The claim of a tenant; its own weight replaces the tier's.

    Not among free accounts: they share one claim and are equal inside it.
    """
    usual = ENTITLEMENTS[tier]
    if weight is None or tier is Tier.FREE:
        return usual
    return Entitlement(weight, usual.floor, usual.ceiling)


def free_slots(slots: int) -> int:
    """Jobs that free accounts together may have in flight in a shared queue of so many slots."""
    return max(1, int(FREE_SLICE * slots)) if slots > 0 else 0
