"""Limits that come with a tier."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.fairshare import Tier
from app.policy.tier_limits import TIER_LIMITS
from app.tenants.caps import cap_of
from app.tenants.tenant import PoolLimits, TenantProfile
from models.pools import POOLS

pools = st.sampled_from([*POOLS, "gpu"])


def test_rates_are_as_announced() -> None:
    rates = {tier.value: limits.submit_per_second for tier, limits in TIER_LIMITS.items()}
    assert rates == {"free": 10.0, "standard": 100.0, "pro": 10_000.0, "enterprise": None}


@given(pools)
def test_every_pool_has_a_cap_that_grows_with_the_tier_and_enterprise_has_none(pool: str) -> None:
    *caps, last = (TIER_LIMITS[tier].cap(pool) for tier in Tier)
    assert last is None
    numbers = [cap for cap in caps if cap is not None]
    assert len(numbers) == 3
    assert all(0 < less < more for less, more in itertools.pairwise(numbers))


@given(pools, st.sampled_from(Tier), st.none() | st.integers(1, 10**6), st.booleans())
def test_a_tenants_own_cap_comes_first(
    pool: str, tier: Tier, own: int | None, tier_limits: bool
) -> None:
    limits = {pool: PoolLimits(in_flight=own)}
    tenant = TenantProfile(1, "a", tier.value, tier_limits=tier_limits, limits=limits)
    usual = TIER_LIMITS[tier].cap(pool) if tier_limits else None
    assert cap_of(tenant, pool) == (usual if own is None else own)


def test_a_tenant_that_is_not_known_has_no_limits() -> None:
    assert not any(cap_of(TenantProfile(7, ""), pool) for pool in POOLS)
    with pytest.raises(ValueError, match="gold"):
        cap_of(TenantProfile(7, "", "gold", tier_limits=True), "medium")
