"""Tenants as rows, and rows as tenants."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from app.tenants.tenant import PoolLimits, Tenant

#: What ``tenant_of`` reads.
TENANT_COLUMNS = """
    tenant.id, tenant.name, tenant.tier, tenant.weight, tenant.submit_per_second,
    tenant.submit_burst,
    (SELECT json_object_agg(limits.pool,
                json_build_array(limits.in_flight, limits.reserved, limits.depth))
     FROM tenant_limits AS limits WHERE limits.tenant_id = tenant.id)"""


def tenant_of(row: Sequence[Any]) -> Tenant:
    """TENANT_COLUMNS as a tenant."""
    id_, name, tier, weight, per_second, burst, limits = row[:7]
    return Tenant(
        id=id_,
        name=name,
        tier=tier,
        weight=_number(weight),
        submit_per_second=_number(per_second),
        submit_burst=_number(burst),
        limits=MappingProxyType({pool: PoolLimits(*of) for pool, of in (limits or {}).items()}),
    )


def _number(value: Any) -> float | None:
    """JSON has made an integer of what was none."""
    return None if value is None else float(value)
