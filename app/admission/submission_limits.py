"""How much a tenant may submit, send and have: its terms, the deployment's settings, its tier."""

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
        return limit_of(rate, burst) if rate else None

    def usual_rate(self, tier: str) -> float | None:
        """Submissions per second of a tier's tenants; 0 or None: no limit."""
        if self._per_second is not None:
            return self._per_second
        return TIER_LIMITS[Tier(tier)].submit_per_second

    def bound(self, tenant: TenantProfile, name: str) -> float | None:
        """The tenant's bound of that name in its terms; None: no limit."""
        own: float | None = getattr(tenant, name)
        if own is not None:
            return own
        usual = self._bounds.get(name)
        if usual is None and tenant.tier_limits:
            usual = getattr(TIER_LIMITS[Tier(tenant.tier)], name)
        return usual or None

    def depth_limit(self, tenant: TenantProfile, pool: str) -> int:
        """How many jobs of the tenant may wait in the pool."""
        depth = tenant.limits_of(pool).depth
        return self._queue_depth if depth is None else depth
