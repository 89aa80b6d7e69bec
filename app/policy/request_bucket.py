"""Token bucket of the requests that one tenant sends to one process. Pure.

As in :mod:`app.policy.rate_limit` a request is an interval of time, and the bucket is one moment:
what lies between it and now may be spent, up to a window. No lock: a race of two threads lets one
request more pass.
"""

from __future__ import annotations

import math

#: What an unused bucket holds: the requests of so many seconds, and at least one.
BURST_SECONDS = 5.0
#: Nobody is refused for less: sums of floats are not exact.
EXACT_SECONDS = 1e-6


class RequestBucket:
    """What a tenant may still send, by terms that were read once."""

    __slots__ = ("interval", "spent_until", "terms", "window")

    def __init__(self, terms: object, per_second: float | None) -> None:
        """``per_second``: None is no limit. ``terms``: what the limit was read from."""
        self.terms = terms
        self.interval = 1 / per_second if per_second else 0.0
        self.window = max(BURST_SECONDS, self.interval)
        self.spent_until = -math.inf

    def spend(self, now: float) -> float:
        """Spend one request: 0, or how long to wait for it."""
        spent, least = self.spent_until, now - self.window
        spent = (least if spent < least else spent) + self.interval
        if spent > now + EXACT_SECONDS:
            return spent - now
        self.spent_until = spent
        return 0.0

    def charge(self, now: float, requests: int) -> None:
        """Spend requests that were made already; what is not there is a debt."""
        self.spent_until = max(self.spent_until, now - self.window) + requests * self.interval
