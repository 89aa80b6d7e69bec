"""A tenant's terms: what may be agreed with it, and what a change makes of them.

Decides, writes nothing: the command line and the operator's routes share it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from app.errors import FieldError, ValidationFailed, field_error
from app.tenants.tenant import NO_LIMITS, TIERS, PoolLimits, TenantProfile, is_tenant_name
from tasks.registry import NAME as TYPE_NAME

#: Job types that a tenant may be limited to.
MOST_TYPES = 200

#: Smallest and largest value of each field.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "weight": (0.001, 1_000_000),
    "submit_per_second": (0.001, 1_000_000),
    "submit_burst": (1, 10_000_000),
    "requests_per_second": (0.001, 1_000_000),
    "idempotency_keys": (1, 1_000_000_000_000),
    "blob_bytes": (1, 1_000_000_000_000_000),
}
#: Those that are whole numbers.
WHOLE = frozenset({"idempotency_keys", "blob_bytes"})
LIMIT_BOUNDS: Mapping[str, tuple[int, int]] = {
    "in_flight": (1, 1_000_000),
    "reserved": (1, 1_000_000),
    "depth": (0, 1_000_000_000_000),
}


@dataclass(frozen=True, slots=True)
class Change:
    """What to change; what is not named stays, None clears."""

    #: Of ``tier``, ``tier_limits``, ``types`` and BOUNDS.
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: By pool, of LIMIT_BOUNDS.
    limits: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    #: Whether existing limits are removed first.
    clear_limits: bool = False


def changed(tenant: TenantProfile, change: Change, pools: Collection[str]) -> TenantProfile:
    """The tenant after the change; ValidationFailed says what is wrong with it."""
    limits = {} if change.clear_limits else dict(tenant.limits)
    for pool, wanted in change.limits.items():
        limits[pool] = replace(limits.get(pool, NO_LIMITS), **wanted)
    kept = {pool: of for pool, of in sorted(limits.items()) if of != NO_LIMITS}
    result = replace(tenant, **change.fields, limits=MappingProxyType(kept))
    if result.types is not None:
        result = replace(result, types=tuple(sorted(set(result.types))))
    wrong = [*_wrong(result)]
    # A pool that is gone may keep limits, and lose them; it gets no new ones.
    for pool, of in kept.items():
        if pool not in pools and of != tenant.limits.get(pool):
            known = ", ".join(sorted(pools))
            wrong.append(FieldError(f"limits.{pool[:100]}", f"is no pool; known: {known}"))
    if wrong:
        raise ValidationFailed(errors=tuple(wrong))
    return result


def _wrong(tenant: TenantProfile) -> Iterator[FieldError]:
    if not is_tenant_name(tenant.name):
        yield FieldError("name", "must be 1 to 63 of a-z, 0-9, _ and -, and not begin with _ or -")
    if tenant.tier not in TIERS:
        yield FieldError("tier", f"must be one of {', '.join(TIERS)}")
    if len(tenant.types or ()) > MOST_TYPES:
        yield FieldError("types", f"must be {MOST_TYPES} at most")
    # Not whether it is registered: a type may be added later, or not be known to a command.
    for name in tenant.types or ():
        if not TYPE_NAME.fullmatch(name):
            yield field_error("types", f"{name!r} is not a name of a job type")
    yield from _outside("", tenant, BOUNDS)
    if tenant.tier == "free" and tenant.weight is not None:
        yield FieldError("weight", "is not for the tier free, whose accounts share one")
    for pool, limits in tenant.limits.items():
        path = f"limits.{pool}."
        yield from _outside(path, limits, LIMIT_BOUNDS)
        if limits.reserved is None:
            continue
        if tenant.tier != "enterprise":
            yield FieldError(f"{path}reserved", "is for the tier enterprise only")
        if limits.in_flight is not None and limits.in_flight < limits.reserved:
            yield FieldError(f"{path}reserved", "is more than in_flight, the cap")


def _outside(
    path: str, terms: TenantProfile | PoolLimits, bounds: Mapping[str, tuple[float, float]]
) -> Iterator[FieldError]:
    for name, (least, most) in bounds.items():
        value = getattr(terms, name)
        if value is not None and not least <= value <= most:
            yield FieldError(f"{path}{name}", f"must be from {least:,} to {most:,}")
