"""The gate: the limits that a request must pass before anything of it is admitted.

The rate first, which costs nothing to refuse, then the depth. Requests that submit nothing have a
rate of their own. Refusals are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Engine

from app.admission.depth import Depth
from app.admission.rate import Rate
from app.admission.refusals import FLUSH_SECONDS, Refusals
from app.admission.request_rate import RequestRate
from app.errors import QueueDepthExceeded, Refused, TenantSuspended
from app.policy.fairshare import Tier
from app.policy.rate_limit import Limit, RateAllowance, limit_of
from app.policy.tier_limits import TIER_LIMITS
from app.tenants.caps import cap_of
from app.tenants.tenant import TenantProfile
from models.jobs.submission import IdempotencyKey, Submission
from models.store.arrays import plain_array, text_array
from models.store.group_commit import GroupCommit
from models.store.session import fetch

NO_BOUNDS: Mapping[str, float | None] = MappingProxyType({})
#: A queue does not get much shorter in a moment.
DEPTH_RETRY_SECONDS = 5.0

READ_KNOWN = """
    SELECT asked.place
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[], %(keys)s::text[])
        AS asked (place, tenant_id, key)
    JOIN idempotency_keys AS known
        ON known.tenant_id = asked.tenant_id AND known.key = asked.key
"""


class Entered(NamedTuple):
    """The room that the queues had for one request."""

    #: For how many jobs, by pool.
    jobs: dict[str, int]
    #: A pool whose queue has no room for all; None if all have.
    full: str | None = None


class SubmissionLimits:
    """How much tenants may submit: by their own terms, else the deployment's, else their tier's."""

    def __init__(
        self,
        *,
        per_second: float | None,
        burst: float,
        queue_depth: int,
        bounds: Mapping[str, float | None] = NO_BOUNDS,
    ) -> None:
        """The limits of tenants without their own; a rate, a burst or a bound of 0 is none.

        ``per_second``, ``bounds``: None is the tier's. ``bounds``: by name, as the terms have it.
        """
        self._per_second = per_second
        self._burst = burst or None
        self._queue_depth = queue_depth
        self._bounds = bounds

    def limit(self, tenant: TenantProfile) -> Limit | None:
        """How often the tenant may submit; None: no limit."""
        rate, burst = tenant.submit_per_second, tenant.submit_burst
        if rate is None and (self._per_second is not None or tenant.tier_limits):
            rate, burst = self.usual_rate(tenant.tier), burst or self._burst
        return limit_of(rate, burst) if rate else None

    def usual_rate(self, tier: str) -> float | None:
        """Submissions per second of a tier's tenants; 0 or None: no limit."""
        if self._per_second is not None:
            return self._per_second
        return TIER_LIMITS[Tier(tier)].submit_per_second

    def bound(self, tenant: TenantProfile, name: str) -> float | None:
        """The tenant's bound of that name in its terms; None: no limit."""
        own: float | None = getattr(tenant, name)
        if own is not None:
            return own
        usual = self._bounds.get(name)
        if usual is None and tenant.tier_limits:
            usual = getattr(TIER_LIMITS[Tier(tenant.tier)], name)
        return usual or None

    def depth_limit(self, tenant: TenantProfile, pool: str) -> int:
        """How many jobs of the tenant may wait in the pool."""
        depth = tenant.limits_of(pool).depth
        return self._queue_depth if depth is None else depth


class Gate(SubmissionLimits):
    """The limits of one process."""

    def __init__(
        self,
        engine: Engine,
        timeout_seconds: float,
        *,
        per_second: float | None,
        burst: float,
        queue_depth: int,
        bounds: Mapping[str, float | None] = NO_BOUNDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        super().__init__(per_second=per_second, burst=burst, queue_depth=queue_depth, bounds=bounds)
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._rate = Rate(engine, timeout_seconds)
        self._requests = RequestRate(lambda tenant: self.bound(tenant, "requests_per_second"))
        self._depth = Depth(engine, timeout_seconds)
        self._refusals = Refusals(engine, flush_seconds)
        self._known_keys: GroupCommit[tuple[int, str], bool] = GroupCommit(
            self._read_known, name="known keys"
        )

    def terms(self, tenant: TenantProfile, pools: Collection[str]) -> dict[str, Any]:
        """The tenant's terms in effect, with the deployment's defaults in place of null."""
        limit = self.limit(tenant)
        caps = {pool: cap_of(tenant, pool) for pool in pools}
        return {
            "submit_per_second": None if limit is None else limit.per_second,
            "submit_burst": None if limit is None else limit.burst,
            "requests_per_second": self.bound(tenant, "requests_per_second"),
            "depth": {pool: self.depth_limit(tenant, pool) for pool in pools},
            "in_flight": {pool: cap for pool, cap in caps.items() if cap is not None},
        }

    def pass_request(self, tenant: TenantProfile) -> None:
        """Let a request pass that submits nothing, or refuse it."""
        try:
            self._requests.spend(tenant)
        except Refused as refused:
            self.count(tenant, refused)
            raise

    def charge_requests(self, tenant: TenantProfile, requests: int) -> None:
        """Count what a request did to many jobs as so many requests more."""
        self._requests.charge(tenant, requests)

    def pass_rate(self, tenant: TenantProfile, submissions: int = 1) -> RateAllowance | None:
        """Spend the tenant's tokens, or refuse; None if it needs none."""
        self._refuse_suspended(tenant, submissions)
        limit = self.limit(tenant)
        if limit is None:
            return None
        try:
            return self._rate.take(tenant.id, limit, submissions)
        except Refused as refused:
            self.count(tenant, refused, submissions)
            raise

    def refuse_early(self, tenant: TenantProfile) -> None:
        """Refuse, before the request is read, what would be refused anyway."""
        self._refuse_suspended(tenant)
        limit = self.limit(tenant)
        if limit is not None:
            try:
                self._rate.check(tenant.id, limit)
            except Refused as refused:
                self.count(tenant, refused)
                raise

    def _refuse_suspended(self, tenant: TenantProfile, submissions: int = 1) -> None:
        if tenant.suspended:
            self._refusals.count(tenant.id, TenantSuspended.code, submissions)
            raise TenantSuspended

    def enter(self, tenant: TenantProfile, submissions: Sequence[Submission]) -> Entered:
        """Reserve room in the queues of the pools; :meth:`settle` must follow."""
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
        """What entered is committed, or certainly has not joined its queue."""
        for pool, jobs in entered.jobs.items():
            self._depth.settle((tenant.id, pool), jobs, joined=joined)

    def repeats(self, tenant: TenantProfile, key: IdempotencyKey | None) -> bool:
        """Whether a request repeats an earlier one, and so adds nothing to a queue.

        Asked only for requests that would be refused otherwise. The answer may be out of date a
        moment later; admitting decides.
        """
        asked = None if key is None else (tenant.id, key.text)
        return asked is not None and self._known_keys.submit(asked, self._timeout_seconds)

    def too_deep(self, tenant: TenantProfile, pool: str) -> QueueDepthExceeded:
        """The error of a submission that a queue has no room for."""
        return QueueDepthExceeded(
            f"At most {self.depth_limit(tenant, pool):,} of your jobs may wait in the pool"
            f" {pool}, and as many do. /tenant shows what waits.",
            retry_seconds=DEPTH_RETRY_SECONDS,
        )

    def count(self, tenant: TenantProfile, refused: Refused, submissions: int = 1) -> None:
        """Count refused submissions, or a refused request."""
        self._refusals.count(tenant.id, refused.code, submissions)

    def count_other(self, code: str) -> None:
        """Count a refused request that is no submission over a limit."""
        self._refusals.count(0, code)

    def close(self, timeout: float) -> None:
        """Write what was counted, and read nothing more."""
        self._refusals.close()
        for part in (self._rate, self._depth, self._known_keys):
            part.close(timeout)

    def _read_known(self, group: Sequence[tuple[int, str]]) -> list[bool]:
        asked = {
            "places": plain_array(range(len(group))),
            "tenants": plain_array(tenant_id for tenant_id, _ in group),
            "keys": text_array(key for _, key in group),
        }
        known = {row.place for row in fetch(self._engine, READ_KNOWN, asked)}
        return [place in known for place in range(len(group))]
