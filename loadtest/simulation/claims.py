"""Weights and caps of the tenants of a cell in a pool, by their tiers, as the product has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.policy.fairshare import TenantClaim, Tier, entitlement_of, free_slots
from app.policy.tier_limits import TIER_LIMITS
from loadtest.simulation.world import TIERS, Counts, Floats, Tenant


class Claims(list[TenantClaim]):
    """What the fair queue knows of each tenant, by the tenant's number."""

    def __init__(self, pool: str, tenants: Sequence[Tenant]) -> None:
        caps = [TIER_LIMITS[one.tier].cap(pool) for one in tenants]
        super().__init__(
            TenantClaim(entitlement_of(one.tier), one.tier is Tier.FREE, cap)
            for one, cap in zip(tenants, caps, strict=True)
        )
        self.tiers: Counts = np.array([TIERS.index(one.tier) for one in tenants])
        self.is_free: NDArray[np.bool_] = np.array([one.tier is Tier.FREE for one in tenants])
        self._caps: Floats = np.array([math.inf if cap is None else cap for cap in caps])
        self._most: dict[float, Floats] = {}

    def by_tier(self, jobs: Counts) -> Counts:
        """Jobs by tenant, added up by tier."""
        return np.bincount(self.tiers, jobs, len(TIERS)).astype(np.int64)

    def exceeded(self, jobs: Counts, slots: int, more: float) -> NDArray[np.bool_] | None:
        """Tenants that may not have so many jobs, if there are any.

        ``more``: jobs that a slot takes in a step besides the first.
        """
        if more not in self._most:
            self._most[more] = self._caps * (1.0 + more)
        over = np.asarray(jobs > self._most[more])
        if int(jobs @ self.is_free) > free_slots(slots) * (1.0 + more):
            over |= self.is_free
        return over if over.any() else None
