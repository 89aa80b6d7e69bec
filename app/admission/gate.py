"""The gate: what a tenant must pass before anything of its request is admitted.

The rate first, which costs nothing to refuse, then the depth. Whoever is refused is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from app.admission.depth import Depth
from app.admission.keys import KnownKeys
from app.admission.rate import Rate
from app.admission.refusals import Refusals
from app.errors import QueueDepthExceeded, Refused
from app.policy.rate_limit import Limit, RateAllowance, limit_of
from app.tenants.tenant import TenantProfile
from models.jobs.submission import IdempotencyKey, Submission

#: A line of waiting jobs does not get much shorter in a moment.
DEPTH_RETRY_SECONDS = 5.0


class Entered(NamedTuple):
    """What the lines took of one request."""

    #: How many, by pool.
    jobs: dict[str, int]
    #: A pool whose line did not take all; None if all were taken.
    full: str | None = None


class Gate:
    """The limits of one process."""

    def __init__(
        self,
        rate: Rate,
        depth: Depth,
        known_keys: KnownKeys,
        refusals: Refusals,
        *,
        per_second: float,
        burst: float,
        queue_depth: int,
    ) -> None:
        """The limits of tenants that have none of their own; a rate of 0 is none."""
        self._rate = rate
        self._depth = depth
        self._known_keys = known_keys
        self._refusals = refusals
        self._limit = limit_of(per_second, burst or None) if per_second else None
        self._queue_depth = queue_depth

    def limit(self, tenant: TenantProfile) -> Limit | None:
        """How often the tenant may submit; None: as often as it likes."""
        if tenant.submit_per_second is not None:
            return limit_of(tenant.submit_per_second, tenant.submit_burst)
        if self._limit is not None and tenant.submit_burst is not None:
            return limit_of(self._limit.per_second, tenant.submit_burst)
        return self._limit

    def terms(self, tenant: TenantProfile, pools: Iterable[str]) -> dict[str, Any]:
        """What the tenant's terms come to where the deployment's defaults stand for null."""
        limit = self.limit(tenant)
        caps = {pool: of.in_flight for pool, of in tenant.limits.items()}
        return {
            "submit_per_second": None if limit is None else limit.per_second,
            "submit_burst": None if limit is None else limit.burst,
            "depth": {pool: self.depth_limit(tenant, pool) for pool in pools},
            "in_flight": {pool: cap for pool, cap in caps.items() if cap is not None},
        }

    def pass_rate(self, tenant: TenantProfile, submissions: int = 1) -> RateAllowance | None:
        """Spend the tenant's tokens, or refuse; None if it needs none."""
        limit = self.limit(tenant)
        if limit is None:
            return None
        try:
            return self._rate.take(tenant.id, limit, submissions)
        except Refused as refused:
            self.count(tenant, refused, submissions)
            raise

    def knock(self, tenant: TenantProfile) -> None:
        """Refuse at once who would be refused anyway, before the request is read."""
        limit = self.limit(tenant)
        if limit is not None:
            try:
                self._rate.look(tenant.id, limit)
            except Refused as refused:
                self.count(tenant, refused)
                raise

    def enter(self, tenant: TenantProfile, submissions: Sequence[Submission]) -> Entered:
        """What of the submissions the lines of their pools take; :meth:`settle` must follow."""
        if len(submissions) == 1:
            wanted: Mapping[str, int] = {submissions[0].pool: 1}
        else:
            wanted = Counter(submission.pool for submission in submissions)
        entered = Entered({})
        try:
            for pool, jobs in wanted.items():
                limit = self.depth_limit(tenant, pool)
                entered.jobs[pool] = self._depth.enter((tenant.id, pool), jobs, limit)
        except BaseException:
            self.settle(tenant, entered, joined=False)
            raise
        full = next((pool for pool in wanted if entered.jobs[pool] < wanted[pool]), None)
        return entered if full is None else Entered(entered.jobs, full)

    def settle(self, tenant: TenantProfile, entered: Entered, *, joined: bool = True) -> None:
        """What entered is committed, or certainly has not joined its line."""
        for pool, jobs in entered.jobs.items():
            self._depth.settle((tenant.id, pool), jobs, joined=joined)

    def repeats(self, tenant: TenantProfile, key: IdempotencyKey | None) -> bool:
        """Whether a request only repeats an earlier one, and adds nothing to a line."""
        return key is not None and self._known_keys.is_known(tenant.id, key.text)

    def too_deep(self, tenant: TenantProfile, pool: str) -> QueueDepthExceeded:
        """What is said to a submission that a line does not take."""
        return QueueDepthExceeded(
            f"At most {self.depth_limit(tenant, pool):,} of your jobs may wait in the pool"
            f" {pool}, and as many do. /tenant shows what waits.",
            retry_seconds=DEPTH_RETRY_SECONDS,
        )

    def depth_limit(self, tenant: TenantProfile, pool: str) -> int:
        """How many jobs of the tenant may wait in the pool."""
        depth = tenant.limits_of(pool).depth
        return self._queue_depth if depth is None else depth

    def count(self, tenant: TenantProfile, refused: Refused, submissions: int = 1) -> None:
        """Note that submissions were refused."""
        self._refusals.count(tenant.id, refused.code, submissions)

    def close(self, timeout: float) -> None:
        """Write what was counted, and ask nothing more."""
        self._refusals.close()
        self._rate.close(timeout)
        self._depth.close(timeout)
        self._known_keys.close(timeout)
