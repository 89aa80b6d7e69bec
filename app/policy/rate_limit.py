"""Rate limit: a tenant's token bucket, leased to API processes in chunks. Pure.

A token is an interval of time, ``1 / per_second`` long, and may be spent until ``burst`` of them
have passed since it began. The bucket is one moment, ``spent_until``: what lies between it and now
may be leased, oldest first. Every token expires by itself, so no window of ``t`` seconds ever sees
more than ``burst + per_second * t`` tokens spent, whatever processes keep. A counter of tokens
would have to know what is leased to whom. A request for more than ``burst`` passes when the bucket
is full, and leaves it in debt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from random import Random

#: A process that spends all it gets leases more about this often.
PERIOD_SECONDS = 0.1
#: Least burst in seconds: what comes in between two leases must fit into the bucket.
LEAST_BURST_SECONDS = 0.25
#: Precision of times in the database; nobody is refused for less.
EXACT_SECONDS = 1e-6
#: A limit is stated in windows no longer than this, if it can be.
MOST_WINDOW_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Limit:
    """How often a tenant may submit; made by :func:`limit_of`."""

    per_second: float
    burst: float
    #: Most tokens in a lease, unless one request needs more.
    chunk: int
    #: The limit in whole numbers: ``quota`` in ``window_seconds``.
    quota: int
    window_seconds: int

    @property
    def full_seconds(self) -> float:
        """How long an empty bucket takes to fill, and how long a token is valid."""
        return self.burst / self.per_second


@lru_cache(maxsize=10_000)
def limit_of(per_second: float, burst: float | None = None) -> Limit:
    """The limit; the burst is one second's worth unless given, and never less than one."""
    least = max(1.0, per_second * LEAST_BURST_SECONDS)
    stated = Fraction(per_second).limit_denominator(MOST_WINDOW_SECONDS)
    if stated <= 0:
        stated = Fraction(1, math.ceil(1 / per_second))
    return Limit(
        per_second=per_second,
        burst=max(least, per_second if burst is None else burst),
        chunk=max(1, int(per_second * PERIOD_SECONDS)),
        quota=stated.numerator,
        window_seconds=stated.denominator,
    )


@dataclass(frozen=True, slots=True)
class RateAllowance:
    """What a tenant may still submit, as far as one process knows."""

    limit: Limit
    remaining: int
    #: Until the bucket is full; after a refusal, until a retry may pass.
    reset_seconds: float


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Tokens leased from the bucket."""

    #: 0, or at least as many as were needed.
    tokens: int
    #: How long the oldest of them is valid; each further one for one interval longer.
    good_seconds: float
    #: Tokens left in the bucket, negative if it is in debt.
    left: float


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request to the bucket on its way."""

    at: float
    need: int
    want: int
    #: Tokens of the process that the request will spend besides.
    held: int


@dataclass(slots=True, eq=False)
class LeasedTokens:
    """Tokens of one bucket that one process holds, and what it knows of the rest."""

    limit: Limit
    _tokens: int = 0
    #: When the oldest token expires.
    _good_until: float = 0.0
    #: What was left in the bucket at the last lease. Only time adds to it.
    _left: float = math.inf
    _left_at: float = -math.inf
    _quiet_until: float = -math.inf
    _asked_at: float = -math.inf
    _want: int = 1

    def spend(self, now: float, tokens: int) -> bool:
        """Spend tokens that are held; False if these are too few."""
        self._drop_expired(now)
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        self._good_until += tokens / self.limit.per_second
        return True

    def wait_seconds(self, now: float, tokens: int) -> float:
        """How long it is pointless to request the tokens that are not held; 0 if it is not."""
        limit = self.limit
        self._drop_expired(now)
        if self._tokens >= tokens:
            return 0.0
        lacking = min(tokens - self._tokens, limit.burst) - self._left
        if lacking <= 0:
            return 0.0
        ready_at = self._left_at + lacking / limit.per_second
        return max(0.0, max(ready_at, self._quiet_until) - now)

    def remaining(self, now: float) -> int:
        """What could be submitted now, as far as this process knows."""
        self._drop_expired(now)
        return max(0, int(self._tokens + min(self._left, self.limit.burst)))

    def ask(self, now: float, tokens: int) -> LeaseRequest:
        """What to request from the bucket.

        The sooner a process comes back, the more it requests, up to a chunk: one that submits now
        and then holds nothing that another one might need.
        """
        since = now - self._asked_at
        if since < PERIOD_SECONDS:
            self._want = min(2 * self._want, self.limit.chunk)
        elif since > 2 * PERIOD_SECONDS:
            self._want = max(1, self._want // 2)
        self._asked_at = now
        self._drop_expired(now)
        held, self._tokens = self._tokens, 0
        need = tokens - held
        return LeaseRequest(now, need, self._want, held)

    def receive(self, ask: LeaseRequest, grant: TokenGrant, now: float, chance: Random) -> bool:
        """Add what was granted; whether the request may pass."""
        self._left, self._left_at = grant.left, now
        # Jittered, or the same process would come second for ever.
        self._quiet_until = now + PERIOD_SECONDS * chance.uniform(0.75, 1.25)
        if not grant.tokens:
            self.put_back(ask)
            return False
        # Counted from before the request: no token is ever valid for too long.
        self._tokens = grant.tokens - ask.need
        self._good_until = ask.at + grant.good_seconds + ask.need / self.limit.per_second
        return True

    def put_back(self, ask: LeaseRequest) -> None:
        """Keep what the request would have spent: nothing was granted."""
        self._tokens = ask.held

    def _drop_expired(self, now: float) -> None:
        if self._tokens and now > self._good_until:
            late = (now - self._good_until) * self.limit.per_second
            expired = min(self._tokens, math.ceil(late))
            self._tokens -= expired
            self._good_until += expired / self.limit.per_second
