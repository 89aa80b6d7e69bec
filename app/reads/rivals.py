"""Tenants that compete for the slots of a pool, and the share that is left to one tenant.

By the weights of those with queued jobs now, as the scheduler would count them: what it wrote
may be older than the burst in question. Only where very many wait is that used instead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import Connection

from app.policy.fairshare import Entitlement, Tier, effective_weights, entitlement_of
from models.jobs.held_back import HELD_DEPENDENCIES
from models.jobs.lane_walk import lane_walk

#: Lanes that are looked at.
MOST_LANES = 200

#: A lane that is held back competes for nothing.
READ_RIVALS = f"""{lane_walk(most=MOST_LANES)}
    SELECT coalesce(tenant.tier, 'standard') AS tier, tenant.weight,
           coalesce(tenant.share, 1) AS share, count(*)::int AS tenants,
           (SELECT max(place) FROM lane) >= {MOST_LANES} AS cut
    FROM (
        SELECT DISTINCT tenant_id FROM lane
        WHERE tenant_id <> %(tenant_id)s AND dependency NOT IN ({HELD_DEPENDENCIES})
    ) AS rival
    LEFT JOIN tenants AS tenant ON tenant.id = rival.tenant_id
    GROUP BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class Rivals:
    """The other tenants with queued jobs."""

    #: How many of each entitlement.
    paying: Counter[Entitlement] = field(default_factory=Counter)
    #: Free accounts, which share one entitlement.
    free: int = 0
    #: Whether there are more than were read.
    more: bool = False

    def share_of(self, own: Entitlement, written: float | None = None) -> float:
        """The share of a paying tenant; ``written``: the weight of all, if there are more.

        The shares of all that wait add up to one.
        """
        claims = self.paying + Counter([own])
        if self.free:
            claims[entitlement_of(Tier.FREE)] += 1
        weights = effective_weights({claim: (claim, n) for claim, n in claims.items()})
        total = sum(weights[claim] * n for claim, n in claims.items())
        if self.more and written:
            total = max(total, written)
        return min(1.0, weights[own] / total) if total > 0 else 1.0


def read_rivals(connection: Connection, pool: str, tenant_id: int) -> Rivals:
    """Those with queued jobs in the pool besides the tenant."""
    paying: Counter[Entitlement] = Counter()
    free, more = 0, False
    for row in connection.exec_driver_sql(READ_RIVALS, {"pool": pool, "tenant_id": tenant_id}):
        more = row.cut
        if row.tier == Tier.FREE:
            free += row.tenants
        else:
            paying[entitlement_of(Tier(row.tier), row.weight, row.share)] += row.tenants
    return Rivals(paying, free, more)
