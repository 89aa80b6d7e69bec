"""The cap on a tenant's jobs in flight in one pool: its own, else its tier's; suspended, 0.

Of a tenant that lives in several cells each has its part of it; in one that it is away from, 0.
"""

from __future__ import annotations

from app.policy.fairshare import Tier
from app.policy.tier_limits import OTHER_POOLS, TIER_LIMITS
from app.tenants.tenant import TenantProfile
from models.jobs.held_back import AWAY


def cap_of(tenant: TenantProfile, pool: str) -> int | None:
    """Jobs of the tenant that may be in flight in the pool; None: no cap."""
    if tenant.suspended:
        return 0
    cap = tenant.limits_of(pool).in_flight
    if cap is None and tenant.tier_limits:
        cap = TIER_LIMITS[Tier(tenant.tier)].cap(pool)
    return None if cap is None else tenant.part_of(cap)


def cap_sql(pool: str) -> str:
    """The same in SQL, of a row ``tenant`` and its ``limits`` in the pool of that expression."""
    tiers = []
    for tier, limits in TIER_LIMITS.items():
        if limits.in_flight:
            named = " ".join(f"WHEN '{name}' THEN {cap}" for name, cap in limits.in_flight.items())
            others = limits.in_flight[OTHER_POOLS]
            tiers.append(f"WHEN '{tier.value}' THEN CASE {pool} {named} ELSE {others} END")
    by_tier = f"CASE tenant.tier {' '.join(tiers)} END"
    agreed = f"coalesce(limits.in_flight, CASE WHEN tenant.tier_limits THEN {by_tier} END)"
    none = f"tenant.suspended_at IS NOT NULL OR tenant.id IN ({AWAY})"
    return f"CASE WHEN {none} THEN 0 ELSE ceil({agreed} * tenant.share)::int END"
