"""How often a tenant may call one API process, submissions apart.

In memory, by process: a poll must cost no statement. So a tenant may send its rate to each process
that it reaches. It is not divided by the number of processes, because a connection stays with one:
a client with one connection would get a fraction of its rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from app.errors import RequestRateExceeded
from app.policy.request_bucket import RequestBucket
from app.tenants.tenant import TenantProfile

#: Tenants that a process remembers; beyond, it begins anew.
MOST_TENANTS = 100_000


class RequestRate:
    """The requests of tenants to this process."""

    def __init__(self, limit: Callable[[TenantProfile], float | None]) -> None:
        """``limit``: requests per second of a tenant; None: no limit."""
        self._limit = limit
        self._buckets: dict[int, RequestBucket] = {}

    def spend(self, tenant: TenantProfile) -> None:
        """Let a request pass, or refuse it. Called for every poll, so it is written for speed."""
        bucket = self._buckets.get(tenant.id)
        if bucket is None or bucket.terms is not tenant:
            bucket = self._renew(tenant, bucket)
        wait = bucket.spend(time.monotonic())
        if wait:
            raise refusal(bucket, wait)

    def charge(self, tenant: TenantProfile, requests: int) -> None:
        """Count what one request did as more requests; they may leave a debt."""
        bucket = self._buckets.get(tenant.id)
        if bucket is not None:
            bucket.charge(time.monotonic(), requests)

    def _renew(self, tenant: TenantProfile, known: RequestBucket | None) -> RequestBucket:
        """The bucket by these terms; two keys of a tenant have two equal profiles."""
        renewed = RequestBucket(tenant, self._limit(tenant))
        if known is not None and known.interval == renewed.interval:
            renewed.spent_until = known.spent_until
        elif len(self._buckets) >= MOST_TENANTS:
            self._buckets.clear()
        self._buckets[tenant.id] = renewed
        return renewed


def refusal(bucket: RequestBucket, wait: float) -> RequestRateExceeded:
    """The error of a refused request."""
    rate, burst = 1 / bucket.interval, bucket.window / bucket.interval
    return RequestRateExceeded(
        f"Besides submissions you may send {rate:,.6g} requests a second to an API process,"
        f" {burst:,.6g} at once; try again in {max(1, math.ceil(wait)):,} s.",
        retry_seconds=wait,
    )
