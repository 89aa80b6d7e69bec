"""What part of the slots each tenant is entitled to, among those that have work now. Pure.

The same weights, floors and ceilings as the scheduler's. Free accounts have one claim together
and are equal inside it. Caps are not looked at: they take from a share, they are no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.policy.fairshare import Entitlement, Tier, effective_weights, entitlement_of

#: Pool and tenant.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Working:
    """A tenant that has work in a pool: in line, in flight or both."""

    pool: str
    tenant_id: int
    tier: str
    #: In place of the tier's.
    weight: float | None
    waits: bool
    in_flight: int

    @property
    def place(self) -> Place:
        """Which claim it is."""
        return self.pool, self.tenant_id

    @property
    def entitlement(self) -> Entitlement:
        """Its claim, or the one that all free accounts have together."""
        return entitlement_of(Tier(self.tier), self.weight)


def entitled_shares(working: Collection[Working]) -> dict[Place, float]:
    """The part of its pool that each is entitled to; those of a pool add up to one."""
    by_pool: dict[str, list[Working]] = {}
    for one in working:
        by_pool.setdefault(one.pool, []).append(one)
    shares: dict[Place, float] = {}
    for those in by_pool.values():
        shares |= shares_of_pool(those)
    return shares


def shares_of_pool(working: Collection[Working]) -> dict[Place, float]:
    """The same in one pool."""
    free = sum(one.tier == Tier.FREE for one in working)
    claims = Counter(one.entitlement for one in working if one.tier != Tier.FREE)
    if free:
        claims[entitlement_of(Tier.FREE)] += 1
    weights = effective_weights({claim: (claim, n) for claim, n in claims.items()})
    total = sum(weights[claim] * n for claim, n in claims.items())
    return {
        one.place: weights[one.entitlement] / total / (free if one.tier == Tier.FREE else 1)
        for one in working
    }


def over_all_pools(working: Iterable[Working], shares: Mapping[Place, float]) -> dict[int, float]:
    """The part of all pools together, each pool counted by what is in flight there."""
    known = list(working)
    sizes: Counter[str] = Counter()
    for one in known:
        sizes[one.pool] += one.in_flight
    # A pool whose jobs all wait counts as one that runs a single job.
    counted = {pool: max(1, size) for pool, size in sizes.items()}
    whole = sum(counted.values())
    parts: dict[int, float] = {}
    for one in known:
        part = shares[one.place] * counted[one.pool] / whole
        parts[one.tenant_id] = parts.get(one.tenant_id, 0.0) + part
    return parts
