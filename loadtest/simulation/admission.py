"""Submissions beyond a tenant's rate: the product's token bucket, leased to API processes."""

from __future__ import annotations

from random import Random

from app.policy.fairshare import Tier
from app.policy.rate_limit import PERIOD_SECONDS, LeasedTokens, limit_of
from app.policy.tier_limits import TIER_LIMITS
from loadtest.fakes.token_bucket import lease

#: API processes that a tenant's requests come to in turn.
PROCESSES = 4
FLOOD_BEGIN, FLOOD_SECONDS, FLOOD_PER_SECOND = 10 * 3600, 1800, 300.0


class SubmissionRate:
    """The rate of one tenant in one cell."""

    def __init__(self, tier: Tier, cells: int, dice: Random) -> None:
        per_second = TIER_LIMITS[tier].submit_per_second
        assert per_second is not None, f"tier {tier} has no limit"
        self._limit = limit_of(per_second / cells)
        self._purses = [LeasedTokens(self._limit) for _ in range(PROCESSES)]
        self._spent_until = 0.0
        self._dice = dice

    def admit(self, now: float, jobs: int) -> int:
        """How many of the jobs that are submitted one by one within a second pass."""
        periods = round(1 / PERIOD_SECONDS)
        passed = 0
        for period in range(periods):
            at = now + period * PERIOD_SECONDS
            submitted = jobs // periods + (period < jobs % periods)
            for number, purse in enumerate(self._purses):
                share = submitted // PROCESSES + (number < submitted % PROCESSES)
                passed += self._spend(purse, at, share)
        return passed

    def _spend(self, purse: LeasedTokens, now: float, jobs: int) -> int:
        passed = 0
        while passed < jobs:
            if not purse.spend(now, 1) and not self._ask(purse, now):
                break  # all others of this moment are refused too
            passed += 1
        return passed

    def _ask(self, purse: LeasedTokens, now: float) -> bool:
        if purse.wait_seconds(now, 1) > 0:
            return False
        ask = purse.ask(now, 1)
        self._spent_until, grant = lease(self._spent_until, now, self._limit, ask.need, ask.want)
        return purse.receive(ask, grant, now, self._dice)
