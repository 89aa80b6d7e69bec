"""The cap on a tenant's jobs in flight in one pool: its own, else its tier's; suspended, 0."""

from __future__ import annotations

from app.policy.fairshare import Tier
from app.policy.tier_limits import OTHER_POOLS, TIER_LIMITS
from app.tenants.tenant import TenantProfile


def cap_of(tenant: TenantProfile, pool: str) -> int | None:
    """Jobs of the tenant that may be in flight in the pool; None: no cap."""
    if tenant.suspended:
        return 0
    own = tenant.limits_of(pool).in_flight
    if own is not None or not tenant.tier_limits:
        return own
    return TIER_LIMITS[Tier(tenant.tier)].cap(pool)


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
    return f"CASE WHEN tenant.suspended_at IS NOT NULL THEN 0 ELSE {agreed} END"
