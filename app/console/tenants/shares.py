"""The share of the slots that each tenant is entitled to, among those with work now. Pure.

With the scheduler's weights, floors and ceilings. Free accounts divide one share equally. Caps are
not considered: they limit what a tenant gets, not what it is entitled to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.policy.fairshare import Entitlement, Tier, effective_weights, entitlement_of

#: Pool and tenant.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Working:
    """A tenant with work in a pool: queued, in flight or both."""

    pool: str
    tenant_id: int
    tier: str
    #: Instead of the tier's.
    weight: float | None
    #: The part of its entitlement that holds in this cell.
    share: float
    waits: bool
    in_flight: int

    @property
    def place(self) -> Place:
        return self.pool, self.tenant_id

    @property
    def entitlement(self) -> Entitlement:
        """What it is entitled to; all free accounts have the same one together."""
        return entitlement_of(Tier(self.tier), self.weight, self.share)


def entitled_shares(working: Collection[Working]) -> dict[Place, float]:
    """The fraction of its pool that each is entitled to; those of a pool add up to one."""
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
    """The fraction of all pools together, each pool weighted by its jobs in flight."""
    known = list(working)
    sizes: Counter[str] = Counter()
    for one in known:
        sizes[one.pool] += one.in_flight
    # A pool with queued jobs only counts as one that runs a single job.
    counted = {pool: max(1, size) for pool, size in sizes.items()}
    whole = sum(counted.values())
    fractions: dict[int, float] = defaultdict(float)
    for one in known:
        fractions[one.tenant_id] += shares[one.place] * counted[one.pool] / whole
    return dict(fractions)
