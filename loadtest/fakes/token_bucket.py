"""A token bucket in memory: what the statement of ``app/admission/rate.py`` does."""

from __future__ import annotations

import math

from app.policy.rate_limit import EXACT_SECONDS, Limit, TokenGrant


def lease(
    spent_until: float, now: float, limit: Limit, need: int, want: int
) -> tuple[float, TokenGrant]:
    """Take ``need`` tokens or none; up to ``want`` if that is more, and the rest if it is less."""
    since, level, there = _level(spent_until, now, limit)
    if there < min(need, limit.burst):
        tokens = 0
    else:
        tokens = max(need, math.floor(there) if there < 2 * want else want)
    good_seconds = limit.full_seconds - (now - since)
    return (
        since + tokens / limit.per_second if tokens else spent_until,
        TokenGrant(tokens, good_seconds, level - tokens),
    )


def take(
    spent_until: float, now: float, limit: Limit, kept: int, want: int
) -> tuple[float, TokenGrant]:
    """Take up to ``want`` tokens, and leave ``kept``; never into debt.

    Who comes again while one more token fits in beside those it may take, ``burst - kept``, gets
    all of the rate.
    """
    since, level, there = _level(spent_until, now, limit)
    tokens = max(0, min(want, math.floor(there) - kept))
    after = since + tokens / limit.per_second if tokens else spent_until
    return after, TokenGrant(tokens, limit.full_seconds - (now - since), level - tokens)


def _level(spent_until: float, now: float, limit: Limit) -> tuple[float, float, float]:
    """Since when tokens are there, how many, and how many are given out at the precision."""
    since = max(spent_until, now - limit.full_seconds)
    level = (now - since) * limit.per_second
    return since, level, level + limit.per_second * EXACT_SECONDS
