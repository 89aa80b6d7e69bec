"""What may be admitted for tenants beside their submissions: ticks of schedules and replays.

The same limits hold: the depth of a queue is read, and tokens are taken from the tenant's bucket as
one more process would, except that none are kept. They are taken before the jobs are written, in a
transaction of their own: submissions never wait for a lock on a bucket, and what is not written
after all has cost the tenant some of its rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from app.admission.depth import TenantQueue, read_depths
from app.admission.gate import DEPTH_RETRY_SECONDS
from app.admission.rate import LEASE, TAKE, TokenRequest, lease_group
from app.admission.submission_limits import SubmissionLimits
from app.errors import QueueDepthExceeded, RateLimited, TenantSuspended
from app.policy.rate_limit import Limit
from app.tenants.tenant import TENANT_COLUMNS, TenantProfile, tenant_of
from models.store.session import connect, fetch

READ_PROFILES = f"""
    SELECT {TENANT_COLUMNS} FROM tenants AS tenant WHERE tenant.id = ANY (%(ids)s::bigint[])
"""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why not all of a tenant's jobs may be admitted, and when to ask again."""

    #: Of the limit; empty if it is none.
    code: str
    seconds: float


#: Its bucket is in use, as a rule for a moment only.
LOCKED = Hold("", 0.1)
SUSPENDED = Hold(TenantSuspended.code, DEPTH_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class GrantedJobs:
    """What may be admitted now."""

    jobs: dict[TenantQueue, int]
    #: Queues without room for all that was wanted.
    full: frozenset[TenantQueue]
    #: Tenants that may have less than was wanted.
    held: dict[int, Hold] = field(default_factory=dict)


class TenantLimits:
    """The limits of tenants, for whoever admits on their behalf."""

    def __init__(self, engine: Engine, limits: SubmissionLimits) -> None:
        self._engine = engine
        self._limits = limits

    def take(
        self, wanted: Mapping[TenantQueue, int], *, whole: bool = False, spare: bool = False
    ) -> GrantedJobs:
        """Tokens for as many of the wanted jobs as pass both limits, in the given order.

        ``whole``: of a tenant all or nothing. ``spare``: half of its burst is left to submissions.
        """
        profiles = self._read_profiles({tenant_id for tenant_id, _ in wanted})
        jobs = self._within_depth(wanted, profiles)
        full = frozenset(queue for queue, count in wanted.items() if jobs[queue] < count)
        held = {of: Hold(QueueDepthExceeded.code, DEPTH_RETRY_SECONDS) for of, _ in full}
        suspended = {of for of, profile in profiles.items() if profile.suspended}
        held |= dict.fromkeys(suspended, SUSPENDED)
        if suspended:
            jobs = {queue: 0 if queue[0] in suspended else count for queue, count in jobs.items()}
        if whole:
            jobs = {queue: 0 if queue[0] in held else count for queue, count in jobs.items()}
        needed = Counter[int]()
        for (tenant_id, _), count in jobs.items():
            needed[tenant_id] += count
        left: dict[int, int] = {}
        asked: list[TokenRequest] = []
        for tenant_id, limit in self._rate_limits(profiles, needed):
            left[tenant_id] = 0
            if not whole:
                kept = kept_of(limit, spare)
                asked.append(TokenRequest(tenant_id, limit, need=kept, want=needed[tenant_id]))
            elif needed[tenant_id] <= limit.burst:  # a larger one would leave a debt
                asked.append(TokenRequest(tenant_id, limit, need=needed[tenant_id], want=1))
        taken = self._tokens(asked, LEASE if whole else TAKE)
        left |= taken
        for tenant_id, limit in self._rate_limits(profiles, needed):
            lacking: float = needed[tenant_id] - left[tenant_id]
            if lacking > 0:
                # Not so long that the bucket would be full before.
                lacking = min(lacking, (limit.burst - kept_of(limit, spare)) / 2)
                seconds = min(lacking / limit.per_second, DEPTH_RETRY_SECONDS)
                held[tenant_id] = Hold(RateLimited.code, seconds)
        # Nothing is known of buckets that were locked: their tenants get nothing now.
        held |= {one.tenant_id: LOCKED for one in asked if one.tenant_id not in taken}
        return GrantedJobs(share_out(jobs, left), full, held)

    def _within_depth(
        self, wanted: Mapping[TenantQueue, int], profiles: Mapping[int, TenantProfile]
    ) -> dict[TenantQueue, int]:
        """As many of the wanted jobs as their queues have room for."""
        depths = read_depths(self._engine, list(wanted))
        most = {of: self._limits.depth_limit(profiles[of[0]], of[1]) for of in wanted}
        return {of: min(jobs, max(0, most[of] - depths[of])) for of, jobs in wanted.items()}

    def _rate_limits(
        self, profiles: Mapping[int, TenantProfile], needed: Mapping[int, int]
    ) -> list[tuple[int, Limit]]:
        """The tenants that need tokens."""
        limits = ((one, self._limits.limit(profiles[one])) for one, jobs in needed.items() if jobs)
        return [(tenant_id, limit) for tenant_id, limit in limits if limit is not None]

    def _read_profiles(self, ids: Collection[int]) -> dict[int, TenantProfile]:
        rows = fetch(self._engine, READ_PROFILES, {"ids": list(ids)})
        found = {row.id: tenant_of(row._mapping) for row in rows}
        return {tenant_id: found.get(tenant_id, TenantProfile(tenant_id, "")) for tenant_id in ids}

    def _tokens(self, asked: Sequence[TokenRequest], statement: str) -> dict[int, int]:
        if not asked:
            return {}
        with connect(self._engine) as connection:
            grants = lease_group(connection, asked, statement)
        return {tenant_id: grant.tokens for tenant_id, grant in grants.items()}


def kept_of(limit: Limit, spare: bool) -> int:
    """Tokens that are left to submissions."""
    return int(limit.burst / 2) if spare else 0


def share_out(jobs: Mapping[TenantQueue, int], tokens: Mapping[int, int]) -> dict[TenantQueue, int]:
    """The tokens of each tenant over its queues, in order; a tenant without an entry needs none."""
    left, shared = dict(tokens), {}
    for queue, count in jobs.items():
        shared[queue] = min(count, left.get(queue[0], count))
        if queue[0] in left:
            left[queue[0]] -= shared[queue]
    return shared
