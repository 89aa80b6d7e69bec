"""How much a tenant may submit, send and have: its terms, the deployment's settings, its tier.

Of a tenant that lives in several cells, each has its part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from app.policy.fairshare import Tier
from app.policy.rate_limit import Limit, limit_of
from app.policy.tier_limits import TIER_LIMITS
from app.tenants.tenant import TenantProfile

#: In terms, settings and tiers.
BOUND_NAMES = ("requests_per_second", "idempotency_keys", "blob_bytes")
NO_BOUNDS: Mapping[str, float | None] = MappingProxyType({})


class SubmissionLimits:
    """How much tenants may submit: by their own terms, else the deployment's, else their tier's."""

    def __init__(
        self,
        *,
        per_second: float | None,
        burst: float,
        queue_depth: int,
        bounds: Mapping[str, float | None] = NO_BOUNDS,
    ) -> None:
        """The limits of tenants without their own; a rate, a burst or a bound of 0 is none.

        ``per_second``, ``bounds``: None is the tier's. ``bounds``: by name, as the terms have it.
        """
        self._per_second = per_second
        self._burst = burst or None
        self._queue_depth = queue_depth
        self._bounds = bounds

    def limit(self, tenant: TenantProfile) -> Limit | None:
        """How often the tenant may submit; None: no limit."""
        rate, burst = tenant.submit_per_second, tenant.submit_burst
        if rate is None and (self._per_second is not None or tenant.tier_limits):
            rate, burst = self.usual_rate(tenant.tier), burst or self._burst
        if not rate:
            return None
        return limit_of(rate * tenant.share, None if burst is None else burst * tenant.share)

    def usual_rate(self, tier: str) -> float | None:
        """Submissions per second of a tier's tenants; 0 or None: no limit."""
        if self._per_second is not None:
            return self._per_second
        return TIER_LIMITS[Tier(tier)].submit_per_second

    def bound(self, tenant: TenantProfile, name: str) -> float | None:
        """The tenant's bound of that name in its terms; None: no limit."""
        bound: float | None = getattr(tenant, name)
        if bound is None:
            bound = self._bounds.get(name)
            if bound is None and tenant.tier_limits:
                bound = getattr(TIER_LIMITS[Tier(tenant.tier)], name)
        if not bound or tenant.share == 1.0:
            return bound or None
        return max(1.0, bound * tenant.share)

    def depth_limit(self, tenant: TenantProfile, pool: str) -> int:
        """How many jobs of the tenant may wait in the pool."""
        depth = tenant.limits_of(pool).depth
        return tenant.part_of(self._queue_depth if depth is None else depth)
