"""Meter of one pool: how many jobs end per second, and how much work should wait at the broker.

Fed at every look at the pool. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.policy.window import RESERVE_SECONDS, next_reserve, smoothed_rate

#: The rate of endings is measured over so long: ten jobs that end at once are no rate of hundreds.
RATE_SECONDS = 1.0


@dataclass(slots=True)
class PoolMeter:
    #: How often workers report how many slots are busy: the reserve is adapted as often.
    report_seconds: float
    ended_per_second: float = 0.0
    reserve_seconds: float = RESERVE_SECONDS
    #: Endings, and when they were counted; None before the first look.
    _counted: tuple[int, float] | None = None
    _adapt_at: float | None = None

    def count(self, ended: int, now: float) -> float:
        """The rate, given how many jobs of the pool ever ended."""
        if self._counted is None:
            self._counted = (ended, now)
        before, at = self._counted
        if now - at >= RATE_SECONDS:
            self.ended_per_second = smoothed_rate(self.ended_per_second, ended - before, now - at)
            self._counted = (ended, now)
        return self.ended_per_second

    def adapt(self, queued: int, busy: int, slots: int, now: float) -> float:
        """Seconds of work that should wait at the broker; adapted only while jobs are queued."""
        if self._adapt_at is None or not queued:
            self._adapt_at = now + self.report_seconds
        elif now >= self._adapt_at:
            self.reserve_seconds = next_reserve(self.reserve_seconds, busy, slots)
            self._adapt_at = now + self.report_seconds
        return self.reserve_seconds
