"""The submission rate of tenants, enforced across API processes.

A bucket is one row. A process leases some of it with one conditional statement, shared by all
concurrent callers, and spends the lease from memory. While a bucket is known to be empty it refuses
from memory: a flood costs about ten statements per second, tenant and process. See
:mod:`app.policy.rate_limit` for what is guaranteed.

The lease of a process that dies is lost: a tenth of a second's worth. While the state store is
away nothing is refused for its rate: what needs a new lease fails, as the store is away.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from app.errors import RateLimited
from app.policy.rate_limit import EXACT_SECONDS, LeasedTokens, Limit, RateAllowance, TokenGrant
from models.store.arrays import plain_array
from models.store.errors import StateStoreUnavailable
from models.store.group_commit import GroupCommit
from models.store.session import connect, fetch

#: Tenants that a process remembers; beyond, those that did not submit for a while are forgotten.
MOST_TENANTS = 10_000
FORGET_SECONDS = 10.0


#: Which of these tenants' buckets somebody else has locked.
READ_LOCKED = """
    WITH unlocked AS (
        SELECT tenant_id FROM rate_buckets WHERE tenant_id = ANY (%(tenants)s::bigint[])
        FOR UPDATE SKIP LOCKED
    )
    SELECT tenant_id FROM rate_buckets WHERE tenant_id = ANY (%(tenants)s::bigint[])
      AND tenant_id NOT IN (SELECT tenant_id FROM unlocked)
"""


def lease_statement(tokens: str, if_locked: str = "") -> str:
    """Takes ``tokens`` from buckets. These are locked in order, and read again once they are:
    whoever waited for one sees what the other left."""
    return f"""
    WITH asked AS (
        SELECT * FROM unnest(%(tenants)s::bigint[], %(rates)s::float8[], %(bursts)s::float8[],
                             %(needs)s::int[], %(wants)s::int[])
            AS asked (tenant_id, per_second, burst, need, want)
    ), held AS (
        SELECT asked.*, greatest(bucket.spent_until,
                                 now() - make_interval(secs => burst / per_second)) AS since
        FROM asked JOIN rate_buckets AS bucket ON bucket.tenant_id = asked.tenant_id
        ORDER BY asked.tenant_id
        FOR UPDATE OF bucket {if_locked}
    ), measured AS (
        SELECT *, extract(epoch FROM now() - since)::float8 AS seconds FROM held
    ), weighed AS (
        SELECT *, (seconds + {EXACT_SECONDS:f}) * per_second AS there FROM measured
    ), granted AS (
        SELECT *, {tokens} AS tokens FROM weighed
    ), taken AS (
        UPDATE rate_buckets AS bucket
        SET spent_until = since + make_interval(secs => tokens / per_second)
        FROM granted
        WHERE bucket.tenant_id = granted.tenant_id AND tokens > 0
    )
    SELECT tenant_id, tokens, burst / per_second - seconds AS good_seconds,
           seconds * per_second - tokens AS remaining
    FROM granted
"""


#: For a process that keeps what it does not spend at once. It gives up soon on a bucket that
#: somebody has locked, because other tenants' leases are in the same statement.
LEASE = "SET LOCAL lock_timeout = '300ms';" + lease_statement(
    """CASE WHEN there < least(need, burst) THEN 0
            WHEN there < 2 * want THEN greatest(need, floor(there)::int)
            ELSE greatest(need, want) END"""
)
#: For one that spends them at once: as many as there are beside ``need``, which stay.
#: It asks for many tenants, which must not wait because the bucket of one is locked.
TAKE = lease_statement("greatest(0, least(want, floor(there)::int - need))", "SKIP LOCKED")
#: A bucket that nobody has taken from is full.
FILL = """
    INSERT INTO rate_buckets (tenant_id)
    SELECT tenant_id FROM unnest(%(tenants)s::bigint[]) AS new (tenant_id) ORDER BY tenant_id
    ON CONFLICT DO NOTHING
"""


class TokenRequest(NamedTuple):
    """What a process wants of one bucket."""

    tenant_id: int
    limit: Limit
    need: int
    want: int


@dataclass(slots=True, eq=False)
class Holder:
    """The tokens that this process has leased of one bucket, and their locks."""

    leased: LeasedTokens
    #: Held for a moment, around each use of the tokens.
    guard: threading.Lock = field(default_factory=threading.Lock)
    #: Held while the bucket is read: the others wait, then look again.
    asking: threading.Lock = field(default_factory=threading.Lock)
    #: Requests to the bucket that failed.
    failures: int = 0
    used_at: float = 0.0


class Rate:
    """Lets the submissions of tenants pass or refuses them, in one process."""

    def __init__(self, engine: Engine, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._holders: dict[int, Holder] = {}
        self._keeping = threading.Lock()
        self._chance = Random()
        self._leases: GroupCommit[TokenRequest, TokenGrant] = GroupCommit(
            self._lease, name="lease", locked=self._locked
        )
        self.close = self._leases.close

    def take(self, tenant_id: int, limit: Limit, tokens: int = 1) -> RateAllowance:
        """Spend tokens of the tenant's; RateLimited if there are too few."""
        holder = self._holder(tenant_id, limit)
        if allowed := self._spend(holder, tokens):
            return allowed
        failures = holder.failures
        if not holder.asking.acquire(timeout=self._timeout_seconds):
            raise StateStoreUnavailable
        try:
            # The request before us may have brought something, or may have failed.
            if allowed := self._spend(holder, tokens):
                return allowed
            if holder.failures != failures:
                raise StateStoreUnavailable
            return self._ask(tenant_id, holder, tokens)
        finally:
            holder.asking.release()

    def check(self, tenant_id: int, limit: Limit) -> None:
        """RateLimited if this process knows that there is not even one token."""
        holder = self._holder(tenant_id, limit)
        with holder.guard:
            wait = holder.leased.wait_seconds(time.monotonic(), 1)
        if wait > 0:
            raise refusal(limit, 1, wait)

    def _spend(self, holder: Holder, tokens: int) -> RateAllowance | None:
        """From memory: pass, be refused, or have to ask."""
        leased = holder.leased
        with holder.guard:
            now = time.monotonic()
            if leased.spend(now, tokens):
                return allowance(leased, now)
            wait = leased.wait_seconds(now, tokens)
        if wait > 0:
            raise refusal(leased.limit, tokens, wait)
        return None

    def _ask(self, tenant_id: int, holder: Holder, tokens: int) -> RateAllowance:
        leased = holder.leased
        with holder.guard:
            ask = leased.ask(time.monotonic(), tokens)
        asked = TokenRequest(tenant_id, leased.limit, ask.need, ask.want)
        try:
            grant = self._leases.submit(asked, self._timeout_seconds)
        except BaseException:
            with holder.guard:
                leased.put_back(ask)
                holder.failures += 1
            raise
        with holder.guard:
            now = time.monotonic()
            if leased.receive(ask, grant, now, self._chance):
                return allowance(leased, now)
            wait = leased.wait_seconds(now, tokens)
        raise refusal(leased.limit, tokens, wait)

    def _holder(self, tenant_id: int, limit: Limit) -> Holder:
        holder = self._holders.get(tenant_id)
        now = time.monotonic()
        if holder is None or holder.leased.limit is not limit:
            with self._keeping:
                if len(self._holders) >= MOST_TENANTS:
                    # Forgotten tokens are lost to their tenant, and cost a statement.
                    for known, of in list(self._holders.items()):
                        if now - of.used_at > FORGET_SECONDS:
                            del self._holders[known]
                holder = self._holders.get(tenant_id)
                if holder is None or holder.leased.limit != limit:
                    holder = self._holders[tenant_id] = Holder(LeasedTokens(limit))
        holder.used_at = now
        return holder

    def _lease(self, group: Sequence[TokenRequest]) -> list[TokenGrant]:
        grants: dict[int, TokenGrant] = {}
        with connect(self._engine) as connection:
            while left := [place for place in range(len(group)) if place not in grants]:
                # One request of a tenant at a time; a second one is rare: the limit was
                # changed, or the first one's caller gave up.
                turn = {group[place].tenant_id: place for place in reversed(left)}
                found = lease_group(connection, [group[place] for place in turn.values()])
                grants |= {turn[tenant_id]: grant for tenant_id, grant in found.items()}
        return [grants[place] for place in range(len(group))]

    def _locked(self, group: Sequence[TokenRequest]) -> list[bool]:
        tenants = {"tenants": plain_array(one.tenant_id for one in group)}
        locked = {row.tenant_id for row in fetch(self._engine, READ_LOCKED, tenants)}
        return [one.tenant_id in locked for one in group]


def lease_group(
    connection: Connection, group: Sequence[TokenRequest], statement: str = LEASE
) -> dict[int, TokenGrant]:
    """Lease from the buckets of these tenants, each named once; make those that are missing."""
    found = lease_existing(connection, group, statement)
    missing = [one for one in group if one.tenant_id not in found]
    if missing:
        connection.exec_driver_sql(FILL, {"tenants": plain_array(one.tenant_id for one in missing)})
        found |= lease_existing(connection, missing, statement)
    return found


def lease_existing(
    connection: Connection, group: Sequence[TokenRequest], statement: str = LEASE
) -> dict[int, TokenGrant]:
    """What the buckets gave, by tenant; one without a bucket, or that was skipped, is left out."""
    rows = connection.exec_driver_sql(
        statement,
        {
            "tenants": plain_array(one.tenant_id for one in group),
            "rates": plain_array(str(one.limit.per_second) for one in group),
            "bursts": plain_array(str(one.limit.burst) for one in group),
            "needs": plain_array(one.need for one in group),
            "wants": plain_array(one.want for one in group),
        },
    )
    return {row.tenant_id: TokenGrant(row.tokens, row.good_seconds, row.remaining) for row in rows}


def allowance(leased: LeasedTokens, now: float) -> RateAllowance:
    """What a reply says of the tokens; in debt, when something passes again."""
    remaining = leased.remaining(now)
    full_seconds = (leased.limit.burst - remaining) / leased.limit.per_second
    return RateAllowance(leased.limit, remaining, max(full_seconds, leased.wait_seconds(now, 1)))


def refusal(limit: Limit, tokens: int, wait: float) -> RateLimited:
    """The error of a refused request."""
    asked = "" if tokens == 1 else f" This request asked for {tokens:,} at once."
    seconds = limit.window_seconds
    window = "a second" if seconds == 1 else f"in {seconds:,} seconds"
    return RateLimited(
        f"You may submit {limit.quota:,} {window}, {limit.burst:,.12g} at once;"
        f" try again in {max(1, math.ceil(wait)):,} s.{asked}",
        retry_seconds=wait,
        allowance=RateAllowance(limit, 0, wait),
    )
