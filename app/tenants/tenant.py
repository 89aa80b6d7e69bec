"""A tenant: name, tier, weight and limits, and how they are read from a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any

from sqlalchemy import RowMapping

#: What a tenant may be called: it is part of paths, queue names and file names.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
#: The names of the tiers, lowest first, as ``tenants.tier`` holds them.
TIERS = ("free", "standard", "pro", "enterprise")

#: What ``tenant_of`` reads.
TENANT_COLUMNS = """
    tenant.id, tenant.name, tenant.tier, tenant.weight, tenant.tier_limits,
    tenant.submit_per_second, tenant.submit_burst, tenant.requests_per_second,
    tenant.idempotency_keys, tenant.blob_bytes, tenant.types, tenant.share,
    tenant.suspended_at IS NOT NULL AS suspended, tenant.deleted_at IS NOT NULL AS deleting,
    (SELECT json_object_agg(limits.pool, json_build_object(
                'in_flight', limits.in_flight, 'reserved', limits.reserved,
                'depth', limits.depth))
     FROM tenant_limits AS limits WHERE limits.tenant_id = tenant.id) AS limits"""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a tenant may have and is promised in one pool; None: nothing is agreed."""

    #: Most jobs dispatched or running at once.
    in_flight: int | None = None
    #: Dedicated slots, served by workers of the slice.
    reserved: int | None = None
    #: Most jobs waiting.
    depth: int | None = None


NO_LIMITS = PoolLimits()


@dataclass(frozen=True, slots=True)
class TenantProfile:
    """A tenant and its terms."""

    id: int
    name: str
    tier: str = "standard"
    #: Overrides the tier's share.
    weight: float | None = None
    #: Whether the limits of its tier hold where it has none of its own.
    tier_limits: bool = False
    #: Submissions per second and how many at once; None: the default.
    submit_per_second: float | None = None
    submit_burst: float | None = None
    #: Other requests per second to one API process; None: the default.
    requests_per_second: float | None = None
    #: Idempotency keys that are kept at most; None: the default.
    idempotency_keys: int | None = None
    #: Bytes in the blob store at most; None: the default.
    blob_bytes: int | None = None
    #: Job types that it may submit, sorted; None: all.
    types: tuple[str, ...] | None = None
    #: By pool; a pool that is missing has none.
    limits: Mapping[str, PoolLimits] = field(default_factory=lambda: MappingProxyType({}))
    #: It may submit nothing, and its queued jobs are not dispatched.
    suspended: bool = False
    #: Everything of it is being removed.
    deleting: bool = False

    #: The part of its weight and limits that holds here, if it lives in several cells.
    share: float = 1.0

    def part_of(self, limit: int) -> int:
        """The part of a limit that holds here: at least one, so that it can be used."""
        return limit if self.share == 1.0 else ceil(limit * self.share)

    def limits_of(self, pool: str) -> PoolLimits:
        """The limits in one pool."""
        return self.limits.get(pool, NO_LIMITS)


def is_tenant_name(name: str) -> bool:
    """Whether a tenant may have this name."""
    return NAME.fullmatch(name) is not None


def tenant_of(columns: RowMapping | Mapping[str, Any]) -> TenantProfile:
    """TENANT_COLUMNS, of a row or of its JSON, as a tenant."""
    limits = columns["limits"] or {}
    # JSON makes integers of whole numbers.
    numbers = {
        name: None if columns[name] is None else float(columns[name])
        for name in ("weight", "submit_per_second", "submit_burst", "requests_per_second")
    }
    return TenantProfile(
        id=columns["id"],
        name=columns["name"],
        tier=columns["tier"],
        tier_limits=columns["tier_limits"],
        idempotency_keys=columns["idempotency_keys"],
        blob_bytes=columns["blob_bytes"],
        types=None if columns["types"] is None else tuple(columns["types"]),
        limits=MappingProxyType({pool: PoolLimits(**of) for pool, of in limits.items()}),
        suspended=columns["suspended"],
        deleting=columns["deleting"],
        share=float(columns["share"]),
        **numbers,
    )
