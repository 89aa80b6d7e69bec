"""A tenant as plain values: name, tier, weight and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

#: What a tenant may be called: it stands in paths, queue names and file names.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

#: The names of the tiers, lowest first, as ``tenants.tier`` holds them.
TIERS = ("free", "standard", "pro", "enterprise")


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """What a tenant may have and is promised in one pool; None: nothing is said."""

    #: Most jobs dispatched or running at once.
    in_flight: int | None = None
    #: Slots of its own, served by workers of the slice.
    reserved: int | None = None
    #: Most jobs waiting.
    depth: int | None = None


#: Of a pool that nothing is said about.
NO_LIMITS = PoolLimits()


@dataclass(frozen=True, slots=True)
class TenantProfile:
    """Somebody whose jobs are done here."""

    id: int
    name: str
    tier: str = "standard"
    #: Overrides the tier's share.
    weight: float | None = None
    #: Submissions a second and how many at once; None: the platform's default.
    submit_per_second: float | None = None
    submit_burst: float | None = None
    #: By pool; a pool that is missing has none.
    limits: Mapping[str, PoolLimits] = field(default_factory=lambda: MappingProxyType({}))

    def limits_of(self, pool: str) -> PoolLimits:
        """What is said about one pool."""
        return self.limits.get(pool, NO_LIMITS)


def is_tenant_name(name: str) -> bool:
    """Whether a tenant may be called so."""
    return NAME.fullmatch(name) is not None
