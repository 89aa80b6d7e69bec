"""The gate: the limits that a request must pass before anything of it is admitted.

The rate first, which costs nothing to refuse, then the depth, idempotency keys and blobs.
Requests that submit nothing have a rate of their own. Refusals are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Engine

from app.admission.depth import Depth, TenantQueue
from app.admission.holdings import READ_BLOBS, READ_KEYS, Holdings
from app.admission.rate import Rate
from app.admission.refusals import FLUSH_SECONDS, Refusals
from app.admission.request_rate import RequestRate
from app.admission.submission_limits import BOUND_NAMES, NO_BOUNDS, SubmissionLimits
from app.errors import (
    BlobBytesExceeded,
    IdempotencyKeysExceeded,
    QueueDepthExceeded,
    Refused,
    TenantSuspended,
)
from app.policy.rate_limit import RateAllowance
from app.tenants.caps import cap_of
from app.tenants.tenant import TenantProfile
from models.jobs.submission import IdempotencyKey, Submission
from models.store.arrays import plain_array, text_array
from models.store.group_commit import GroupCommit
from models.store.session import fetch
from models.tallies import Tallies, TallyKind

#: A queue does not get much shorter in a moment.
DEPTH_RETRY_SECONDS = 5.0
#: Keys expire a day after their use.
KEYS_RETRY_SECONDS = 60.0
#: Blobs are counted about this often.
BLOBS_RETRY_SECONDS = 300.0
#: What tenants have besides waiting jobs is read this often: processes write it every two seconds.
HELD_SECONDS = 5.0
#: What other processes may store for a tenant: less room, fresher readings.
OTHERS_BYTES_PER_SECOND = 1e8

READ_KNOWN = """
    SELECT asked.place
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[], %(keys)s::text[])
        AS asked (place, tenant_id, key)
    JOIN idempotency_keys AS known
        ON known.tenant_id = asked.tenant_id AND known.key = asked.key
"""


class Reserved(NamedTuple):
    """Room for one request."""

    of: Depth
    queue: TenantQueue
    amount: int


@dataclass(slots=True)
class Entered:
    """The room that there was for one request."""

    reserved: list[Reserved] = field(default_factory=list)
    #: For how many jobs, by pool.
    jobs: dict[str, int] = field(default_factory=dict)
    #: For how many bytes of blobs.
    blob_bytes: int = 0
    #: If there is not room for all of it: why.
    refused: Refused | None = None

    def reserve(self, of: Depth, queue: TenantQueue, amount: int, limit: int) -> int:
        """Reserve room for up to ``amount``; for how much."""
        self.reserved.append(Reserved(of, queue, of.enter(queue, amount, limit)))
        return self.reserved[-1].amount


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
        tallies: Tallies | None = None,
        keep_keys_hours: float = 24.0,
    ) -> None:
        """``tallies``: where the process counts what it admits."""
        super().__init__(per_second=per_second, burst=burst, queue_depth=queue_depth, bounds=bounds)
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._rate = Rate(engine, timeout_seconds)
        self._requests = RequestRate(lambda tenant: self.bound(tenant, "requests_per_second"))
        self._depth = Depth(engine, timeout_seconds)
        tallies = tallies or Tallies()
        self._keep_keys_hours = keep_keys_hours
        self._keys = Depth(
            engine,
            timeout_seconds,
            Holdings(
                tallies, TallyKind.IDEMPOTENCY_KEY, READ_KEYS, kept_seconds=keep_keys_hours * 3600.0
            ),
            fresh_seconds=HELD_SECONDS,
        )
        self._blobs = Depth(
            engine,
            timeout_seconds,
            Holdings(tallies, TallyKind.STORED_BLOB, READ_BLOBS),
            fresh_seconds=HELD_SECONDS,
            others_per_second=OTHERS_BYTES_PER_SECOND,
            exact=False,
        )
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
            **{name: self.bound(tenant, name) for name in BOUND_NAMES},
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
        """Count a request that passed, and did as much as so many, as that many."""
        self._requests.charge(tenant, max(0, requests - 1))

    def pass_rate(
        self, tenant: TenantProfile, submissions: int = 1, *, spent: bool = False
    ) -> RateAllowance | None:
        """Spend the tenant's tokens, or refuse; None if it needs none.

        ``spent``: it has spent them for this request, in a cell that it has left.
        """
        self._refuse_suspended(tenant, submissions)
        limit = self.limit(tenant)
        if limit is None or spent:
            return None
        try:
            return self._rate.take(tenant.id, limit, submissions)
        except Refused as refused:
            self.count(tenant, refused, submissions)
            raise

    def refuse_early(self, tenant: TenantProfile, *, spent: bool = False) -> None:
        """Refuse, before the request is read, what would be refused anyway."""
        self._refuse_suspended(tenant)
        limit = self.limit(tenant)
        if limit is not None and not spent:
            try:
                self._rate.check(tenant.id, limit)
            except Refused as refused:
                self.count(tenant, refused)
                raise

    def _refuse_suspended(self, tenant: TenantProfile, submissions: int = 1) -> None:
        if tenant.suspended:
            self._refusals.count(tenant.id, TenantSuspended.code, submissions)
            raise TenantSuspended

    def enter(
        self,
        tenant: TenantProfile,
        submissions: Sequence[Submission],
        key: IdempotencyKey | None = None,
        blob_bytes: int = 0,
    ) -> Entered:
        """Reserve room in the queues of the pools, for a key and for blobs.

        :meth:`settle` must follow.
        """
        if len(submissions) == 1:
            wanted: Mapping[str, int] = {submissions[0].pool: 1}
        else:
            wanted = Counter(submission.pool for submission in submissions)
        entered = Entered()
        try:
            for pool, jobs in wanted.items():
                limit = self.depth_limit(tenant, pool)
                fitting = entered.reserve(self._depth, (tenant.id, pool), jobs, limit)
                entered.jobs[pool] = fitting
                if fitting < jobs and entered.refused is None:
                    entered.refused = self.too_deep(tenant, pool)
            if key is not None:
                self._enter_key(tenant, entered)
            if blob_bytes:
                self._enter_blobs(tenant, entered, blob_bytes)
        except BaseException:
            self.settle(entered, joined=False)
            raise
        return entered

    def _enter_key(self, tenant: TenantProfile, entered: Entered) -> None:
        most = self.bound(tenant, "idempotency_keys")
        if most is None or entered.reserve(self._keys, (tenant.id, ""), 1, int(most)):
            return
        entered.refused = IdempotencyKeysExceeded(
            f"At most {most:,.0f} of your idempotency keys are kept, and as many are, each for"
            f" {self._keep_keys_hours:g} hours. Wait, or submit without a key.",
            retry_seconds=KEYS_RETRY_SECONDS,
        )

    def _enter_blobs(self, tenant: TenantProfile, entered: Entered, wanted: int) -> None:
        most, entered.blob_bytes = self.bound(tenant, "blob_bytes"), wanted
        if most is not None:
            entered.blob_bytes = entered.reserve(self._blobs, (tenant.id, ""), wanted, int(most))
        if entered.blob_bytes < wanted:
            entered.refused = self.too_large(tenant)

    def too_large(self, tenant: TenantProfile) -> BlobBytesExceeded:
        """The error of a submission whose payload the blob store has no room for."""
        return BlobBytesExceeded(
            f"At most {self.bound(tenant, 'blob_bytes'):,.0f} bytes of your large payloads and"
            " checkpoints are stored, and this would be more. They are removed with their jobs.",
            retry_seconds=BLOBS_RETRY_SECONDS,
        )

    def settle(self, entered: Entered, *, joined: bool = True) -> None:
        """What entered is committed, or certainly has not joined its queue."""
        for of, queue, amount in entered.reserved:
            of.settle(queue, amount, joined=joined)

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
        for part in (self._rate, self._depth, self._keys, self._blobs, self._known_keys):
            part.close(timeout)

    def _read_known(self, group: Sequence[tuple[int, str]]) -> list[bool]:
        asked = {
            "places": plain_array(range(len(group))),
            "tenants": plain_array(tenant_id for tenant_id, _ in group),
            "keys": text_array(key for _, key in group),
        }
        known = {row.place for row in fetch(self._engine, READ_KNOWN, asked)}
        return [place in known for place in range(len(group))]
