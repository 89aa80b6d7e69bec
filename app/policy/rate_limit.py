"""The token bucket of a tenant, leased to API processes in chunks.

Pure: ``now`` and chance are passed in.

A token is a stretch of time, ``1 / per_second`` long, and may be spent until ``burst`` of them
have passed since it began. The bucket is one moment, ``spent_until``: what lies between it and
now is there to be leased, the oldest first. Since every token belongs to a moment of its own
and goes bad by itself, wherever it is kept, no window of ``t`` seconds ever sees more than
``burst + per_second * t`` tokens spent, with any number of processes and whatever these keep
for how long. A counter of tokens would need to know what is lent to whom to say as much.

More tokens than ``burst`` in one request are given when the bucket is full; it is in debt then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from random import Random

#: A process that spends all it gets asks about this often.
PERIOD_SECONDS = 0.1
#: A burst is worth this long at least: what comes in between two asks must fit into the bucket.
LEAST_BURST_SECONDS = 0.25
#: Moments in the database are as exact as this; nobody is refused for less.
EXACT_SECONDS = 1e-6
#: A policy is told in windows no longer than this, if it can be.
MOST_WINDOW_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Limit:
    """How often a tenant may submit; made by :func:`limit_of`."""

    per_second: float
    burst: float
    #: Most tokens in a lease, unless one request needs more.
    chunk: int
    #: The limit in whole numbers: so many in so many seconds.
    quota: int
    window_seconds: int

    @property
    def full_seconds(self) -> float:
        """How long an empty bucket takes to be full, and how long a token is good."""
        return self.burst / self.per_second


@lru_cache(maxsize=10_000)
def limit_of(per_second: float, burst: float | None = None) -> Limit:
    """The limit; the burst is one second's worth unless given, and never less than one."""
    least = max(1.0, per_second * LEAST_BURST_SECONDS)
    told = Fraction(per_second).limit_denominator(MOST_WINDOW_SECONDS)
    if told <= 0:
        told = Fraction(1, math.ceil(1 / per_second))
    return Limit(
        per_second=per_second,
        burst=max(least, per_second if burst is None else burst),
        chunk=max(1, int(per_second * PERIOD_SECONDS)),
        quota=told.numerator,
        window_seconds=told.denominator,
    )


@dataclass(frozen=True, slots=True)
class RateAllowance:
    """What a tenant may still submit, as far as one process knows."""

    limit: Limit
    remaining: int
    #: Until the bucket is full; for who was refused, until it is worth to try again.
    reset_seconds: float


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What the bucket gave."""

    #: None, or at least as many as were needed.
    tokens: int
    #: How long the oldest of them is good; each further one is good for one token longer.
    good_seconds: float
    #: What is in the bucket now, negative if it is in debt.
    left: float


def lease(
    spent_until: float, now: float, limit: Limit, need: int, want: int
) -> tuple[float, TokenGrant]:
    """Take ``need`` tokens or none; up to ``want`` if that is more, and the rest if it is less.

    What the statement in ``rate.py`` does, for tests to compare it with.
    """
    since = max(spent_until, now - limit.full_seconds)
    level = (now - since) * limit.per_second
    there = level + limit.per_second * EXACT_SECONDS
    if there < min(need, limit.burst):
        tokens = 0
    else:
        tokens = max(need, math.floor(there) if there < 2 * want else want)
    good_seconds = limit.full_seconds - (now - since)
    return (
        since + tokens / limit.per_second if tokens else spent_until,
        TokenGrant(tokens, good_seconds, level - tokens),
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the bucket on its way."""

    at: float
    need: int
    want: int
    #: Tokens of the process that the request will spend besides.
    held: int


class Purse:
    """What one process holds of one bucket, and what it knows of the rest."""

    __slots__ = (
        "_asked_at",
        "_good_until",
        "_left",
        "_quiet_until",
        "_tokens",
        "_told_at",
        "_want",
        "limit",
    )

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._tokens = 0
        #: When the oldest token goes bad.
        self._good_until = 0.0
        #: What was in the bucket when it was last heard of. Nobody else adds to it, so there
        #: cannot be more in it than that and what time has added.
        self._left = math.inf
        self._told_at = -math.inf
        self._quiet_until = -math.inf
        self._asked_at = -math.inf
        self._want = 1

    def spend(self, now: float, tokens: int) -> bool:
        """Spend tokens that are at hand; False if these are too few."""
        self._drop_bad(now)
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        self._good_until += tokens / self.limit.per_second
        return True

    def wait_seconds(self, now: float, tokens: int) -> float:
        """How long it is pointless to ask for what is not at hand; 0 if it is not."""
        limit = self.limit
        self._drop_bad(now)
        if self._tokens >= tokens:
            return 0.0
        lacking = min(tokens - self._tokens, limit.burst) - self._left
        if lacking <= 0:
            return 0.0
        ready_at = self._told_at + lacking / limit.per_second
        return max(0.0, max(ready_at, self._quiet_until) - now)

    def remaining(self, now: float) -> int:
        """What could be submitted now, as far as this process knows."""
        self._drop_bad(now)
        return max(0, int(self._tokens + min(self._left, self.limit.burst)))

    def ask(self, now: float, tokens: int) -> Ask:
        """What to ask the bucket for.

        A process asks for more the faster it comes back, up to a chunk: one that submits now
        and then holds nothing that another one might need.
        """
        since = now - self._asked_at
        if since < PERIOD_SECONDS:
            self._want = min(2 * self._want, self.limit.chunk)
        elif since > 2 * PERIOD_SECONDS:
            self._want = max(1, self._want // 2)
        self._asked_at = now
        self._drop_bad(now)
        held, self._tokens = self._tokens, 0
        need = tokens - held
        return Ask(now, need, self._want, held)

    def receive(self, ask: Ask, grant: TokenGrant, now: float, chance: Random) -> bool:
        """Take the answer in; whether the request may pass."""
        self._left, self._told_at = grant.left, now
        # Not all at once, or the same process would come second for ever.
        self._quiet_until = now + PERIOD_SECONDS * chance.uniform(0.75, 1.25)
        if not grant.tokens:
            self.put_back(ask)
            return False
        # Counted from before the question: no token is ever good for too long.
        self._tokens = grant.tokens - ask.need
        self._good_until = ask.at + grant.good_seconds + ask.need / self.limit.per_second
        return True

    def put_back(self, ask: Ask) -> None:
        """Keep what the request would have spent; there was no answer, or none."""
        self._tokens = ask.held

    def _drop_bad(self, now: float) -> None:
        if self._tokens and now > self._good_until:
            late = (now - self._good_until) * self.limit.per_second
            bad = min(self._tokens, math.ceil(late))
            self._tokens -= bad
            self._good_until += bad / self.limit.per_second
