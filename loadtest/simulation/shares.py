"""Share error: what tenants got of a saturated pool, beside what their weights entitle them to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from app.policy.fairshare import FairQueue, Tier
from loadtest.simulation.world import TIERS, Floats, Tenant

#: Shares are compared over so many seconds, by pool: many runs of its jobs.
PERIODS: Mapping[str, int] = {"short": 30, "medium": 60, "long": 200}
FREE = TIERS.index(Tier.FREE)


class ShareMeter:
    """Compares only tenants that waited at every turn of a period: others took what they wanted."""

    def __init__(self, pool: str, tenants: Sequence[Tenant]) -> None:
        self._period = PERIODS[pool]
        self._tiers = np.array([TIERS.index(tenant.tier) for tenant in tenants])
        self._got: Floats = np.zeros(len(tenants))
        self._waited: set[int] | None = None
        self._seconds = 0
        #: Slot-seconds by tier: what tenants were entitled to, what they got, and how far each was
        #: off, added up.
        self.entitled: Floats = np.zeros(len(TIERS))
        self.got: Floats = np.zeros(len(TIERS))
        self.off: Floats = np.zeros(len(TIERS))

    def sent(self, tenant: int, slot_seconds: float) -> None:
        self._got[tenant] += slot_seconds

    def turn(self, waiting: set[int]) -> None:
        """Tenants that could have used more slots after a turn."""
        self._waited = waiting if self._waited is None else self._waited & waiting

    def end_second(self, fair: FairQueue) -> None:
        self._seconds += 1
        if self._seconds >= self._period:
            self._compare(fair)
            self.restart()

    def restart(self) -> None:
        """A period begins."""
        self._got[:] = 0.0
        self._waited = None
        self._seconds = 0

    def _compare(self, fair: FairQueue) -> None:
        """Free accounts compete as one, so they are compared as one."""
        tenants = sorted(self._waited or ())
        paying = [one for one in tenants if self._tiers[one] != FREE]
        free = [one for one in tenants if self._tiers[one] == FREE]
        claims = [
            (self._tiers[one], fair.account(one + 1).weight, self._got[one]) for one in paying
        ]
        if free:
            group = float(self._got[self._tiers == FREE].sum())
            claims.append((FREE, fair.account(free[0] + 1).weight, group))
        total = sum(weight for _, weight, _ in claims)
        got = sum(seconds for _, _, seconds in claims)
        if len(claims) < 2 or got <= 0:
            return
        for tier, weight, seconds in claims:
            entitled = got * weight / total
            self.entitled[tier] += entitled
            self.got[tier] += seconds
            self.off[tier] += abs(seconds - entitled)
