"""Tenants as rows, and rows as tenants."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import RowMapping

from app.tenants.tenant import PoolLimits, TenantProfile

#: What ``tenant_of`` reads.
TENANT_COLUMNS = """
    tenant.id, tenant.name, tenant.tier, tenant.weight, tenant.submit_per_second,
    tenant.submit_burst,
    (SELECT json_object_agg(limits.pool, json_build_object(
                'in_flight', limits.in_flight, 'reserved', limits.reserved,
                'depth', limits.depth))
     FROM tenant_limits AS limits WHERE limits.tenant_id = tenant.id) AS limits"""


def tenant_of(columns: RowMapping | Mapping[str, Any]) -> TenantProfile:
    """TENANT_COLUMNS, of a row or of its JSON, as a tenant."""
    limits = columns["limits"] or {}
    return TenantProfile(
        id=columns["id"],
        name=columns["name"],
        tier=columns["tier"],
        weight=_number(columns["weight"]),
        submit_per_second=_number(columns["submit_per_second"]),
        submit_burst=_number(columns["submit_burst"]),
        limits=MappingProxyType({pool: PoolLimits(**of) for pool, of in limits.items()}),
    )


def _number(value: Any) -> float | None:
    """JSON has made an integer of what was none."""
    return None if value is None else float(value)
