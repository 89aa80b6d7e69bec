"""Who else waits for the slots of a pool, and what part of them is left to one tenant.

By the weights of those that wait now, as the scheduler would count them: what it wrote down may
be older than the burst that is asked about. Only where very many wait is that taken instead.
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
    SELECT coalesce(tenant.tier, 'standard') AS tier, tenant.weight, count(*)::int AS tenants,
           (SELECT max(place) FROM lane) >= {MOST_LANES} AS cut
    FROM (
        SELECT DISTINCT tenant_id FROM lane
        WHERE tenant_id <> %(tenant_id)s AND dependency NOT IN ({HELD_DEPENDENCIES})
    ) AS rival
    LEFT JOIN tenants AS tenant ON tenant.id = rival.tenant_id
    GROUP BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Rivals:
    """The others that wait."""

    #: How many of each claim.
    paying: Counter[Entitlement] = field(default_factory=Counter)
    #: Free accounts, which have one claim together.
    free: int = 0
    #: Whether there are more than were looked at.
    more: bool = False

    def share_of(self, own: Entitlement, told: float | None = None) -> float:
        """The part of who has this claim and pays; ``told``: the weight of all, if there are more.

        The parts of all that wait add up to one.
        """
        claims = self.paying + Counter([own])
        if self.free:
            claims[entitlement_of(Tier.FREE)] += 1
        weights = effective_weights({claim: (claim, n) for claim, n in claims.items()})
        total = sum(weights[claim] * n for claim, n in claims.items())
        if self.more and told:
            total = max(total, told)
        return min(1.0, weights[own] / total) if total > 0 else 1.0


def read_rivals(connection: Connection, pool: str, tenant_id: int) -> Rivals:
    """Those that wait in the pool besides the tenant."""
    paying: Counter[Entitlement] = Counter()
    free, more = 0, False
    for row in connection.exec_driver_sql(READ_RIVALS, {"pool": pool, "tenant_id": tenant_id}):
        more = row.cut
        if row.tier == Tier.FREE:
            free += row.tenants
        else:
            paying[entitlement_of(Tier(row.tier), row.weight)] += row.tenants
    return Rivals(paying, free, more)
