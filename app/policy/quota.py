"""Quota pacer: how many jobs may be dispatched to a dependency now. Pure.

Three bounds, and the lowest counts:

* **Pace.** A bucket per limit fills at ``MARGIN`` of the limit and holds a second's worth, at least
  one call. It starts empty, so a scheduler that restarts sends no burst.
* **Reading.** What the dependency's last response said is left, less the jobs that it cannot have
  counted yet. What is used up comes back evenly until the reset, as the Messages API describes.
* **Refusal.** A closed pacer allows nothing until it reopens, slowly if no limit is known.

A job is one call. A clock that is turned back neither fills a bucket nor blocks it. Not guaranteed:
that nothing is refused while others use the quota, or calls come long after dispatch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Share of a limit that is used. The burst may add 1/60 of it to any minute, and calls that
#: come up to two seconds later than their dispatch another 1/30: together the 5 % left out.
MARGIN = 0.95
#: What a bucket holds.
BURST_SECONDS = 1.0
#: A closed pacer reopens so much later than announced: the clocks of workers differ.
OPENING_SECONDS = 0.25
#: A pacer without limits reopens over so long.
RAMP_SECONDS = 12.0
#: A reading older than this is ignored.
READING_SECONDS = 3600.0
#: Calls dispatched so shortly before a reading may have been made after it.
LAG_SECONDS = 1.0
#: What is dispatched within such an interval is recorded as one step.
STEP_SECONDS = 0.25
#: Tokens of a call before any was measured.
UNSEEN_TOKENS_IN = 1000.0
UNSEEN_TOKENS_OUT = 500.0
#: Weight of one call in the means.
MEAN_WEIGHT = 0.1
#: Calls that cost more than was expected are paid for later, up to so many seconds of the limit.
DEBT_SECONDS = 60.0

#: Limits that operators may declare: calls, tokens of either kind. Responses may also state one
#: of both kinds together, "tokens".
DECLARED = ("requests", "tokens_in", "tokens_out")
_OPENING = "opening"


@dataclass(frozen=True, slots=True)
class Left:
    """What a response said about one limit."""

    #: Per minute.
    limit: float
    remaining: float
    #: From the response until all of it is available again.
    reset_seconds: float

    def return_rate(self) -> float:
        """How much of what is used up comes back per second."""
        if self.reset_seconds <= 0:
            return 0.0
        return max(0.0, min((self.limit - self.remaining) / self.reset_seconds, self.limit / 60.0))


@dataclass(frozen=True, slots=True)
class QuotaBucket:
    """What is known about a dependency's quota."""

    #: Limits per minute by kind, set by an operator.
    declared: Mapping[str, float] = field(default_factory=dict)
    #: The last response by kind, and how old it is.
    reading: Mapping[str, Left] = field(default_factory=dict)
    age_seconds: float = 0.0
    #: Until the dependency reopens; negative if it has, None if it was never closed.
    closed_seconds: float | None = None
    #: Jobs that are at the broker.
    dispatched: int = 0

    def limits(self) -> dict[str, float]:
        """The limits in force, per minute."""
        limits = dict(self.declared)
        if self.age_seconds < READING_SECONDS:
            for kind, left in self.reading.items():
                limits[kind] = min(limits.get(kind, left.limit), left.limit)
        return limits

    def spent_seconds(self, costs: Mapping[str, float]) -> float:
        """Until one more call is left by the last response; ``costs`` are those of a call."""
        seconds = 0.0
        for kind, left in self.reading.items():
            if self.age_seconds >= min(left.reset_seconds, READING_SECONDS):
                continue
            lacking = costs.get(kind, 1.0) - left.remaining
            if lacking > 0:
                rate = MARGIN * left.return_rate()
                back = lacking / rate if rate > 0 else left.reset_seconds
                seconds = max(seconds, min(back, left.reset_seconds) - self.age_seconds)
        return seconds


def quota_of(row: Any, dispatched: int = 0) -> QuotaBucket:
    """A row of table ``quotas``, with the age of its reading."""
    declared = {kind: getattr(row, f"{kind}_per_minute") for kind in DECLARED}
    return QuotaBucket(
        declared={kind: limit for kind, limit in declared.items() if limit is not None},
        reading={kind: Left(*said) for kind, said in (row.reading or {}).items()},
        age_seconds=max(0.0, row.age_seconds or 0.0),
        closed_seconds=row.closed_seconds,
        dispatched=dispatched,
    )


@dataclass(slots=True)
class Bucket:
    """Token bucket: fills evenly up to its capacity."""

    filled_at: float
    rate: float = 0.0
    capacity: float = 0.0
    level: float = 0.0

    def fill(self, now: float) -> None:
        self.level += self.rate * max(0.0, now - self.filled_at)
        self.level = min(self.level, self.capacity)
        self.filled_at = now

    def add(self, amount: float) -> None:
        """Add an amount, or take it if negative; the debt is bounded."""
        debt = -self.rate * DEBT_SECONDS
        self.level = max(debt, min(self.level + amount, self.capacity))


class QuotaPacer:
    def __init__(self) -> None:
        self._quota = QuotaBucket()
        self._updated_at = 0.0
        self._opens_at: float | None = None
        self._buckets: dict[str, Bucket] = {}
        #: Tokens of a call in the mean, in and out.
        self._tokens: tuple[float, float] | None = None
        self._totals: tuple[int, float, float] | None = None
        #: The highest limits that were in force, per minute.
        self._largest: dict[str, float] = {}
        #: (time, jobs dispatched), as far back as a reading may be.
        self._spent: deque[tuple[float, int]] = deque()

    def update(self, quota: QuotaBucket, now: float) -> None:
        """Use what is known now."""
        self._quota, self._updated_at = quota, now
        closed = quota.closed_seconds
        self._opens_at = None if closed is None else now + closed + OPENING_SECONDS
        limits = quota.limits()
        for kind, limit in limits.items():
            self._largest[kind] = max(limit, self._largest.get(kind, 0.0))
        self._bound_costs()
        rates = {kind: limit * MARGIN / 60.0 for kind, limit in limits.items()}
        if not rates and self._opens_at is not None and now < self._opens_at + RAMP_SECONDS:
            rates[_OPENING] = 1.0
        self._buckets = {kind: self._buckets.get(kind) or Bucket(now) for kind in rates}
        for kind, rate in rates.items():
            self._set_rate(kind, rate, now)
        if not any(quota.age_seconds < left.reset_seconds for left in quota.reading.values()):
            self._spent.clear()

    def closed(self, now: float) -> bool:
        """Whether the dependency is not to be called."""
        return self._opens_at is not None and now < self._opens_at

    def allowance(self, now: float) -> int | None:
        """Jobs that may be dispatched now; None if nothing bounds them."""
        if self.closed(now):
            for bucket in self._buckets.values():  # so that it reopens without a burst
                bucket.fill(now)
                bucket.level = min(bucket.level, 0.0)
            return 0
        if _OPENING in self._buckets:
            open_seconds = now - (self._opens_at or now)
            if open_seconds >= RAMP_SECONDS:
                return None
            self._set_rate(_OPENING, 2.0**open_seconds, now)
        bounds = [self._paced(kind, now) for kind in self._buckets]
        bounds += [self._remaining(kind, left, now) for kind, left in self._quota.reading.items()]
        least = min(bounds, default=math.inf)
        # A level that was filled in many small steps is short of the whole by a rounding error.
        return None if math.isinf(least) else max(0, math.floor(least + 1e-9))

    def spend(self, jobs: int, now: float) -> None:
        """So many jobs were dispatched; negative if they could not be sent after all."""
        for kind, bucket in self._buckets.items():
            bucket.add(-jobs * self._cost(kind))
        if self._spent and 0.0 <= now - self._spent[-1][0] < STEP_SECONDS:
            at, before = self._spent.pop()
            self._spent.append((at, before + jobs))
        elif self._quota.reading:
            self._spent.append((now, jobs))

    def report_usage(self, calls: int, tokens_in: float, tokens_out: float) -> None:
        """Totals of all calls so far. Their actual cost replaces what was expected of them; the
        first report only sets what a call costs on average."""
        before, self._totals = self._totals, (calls, tokens_in, tokens_out)
        if before is not None:
            calls -= before[0]
            tokens_in, tokens_out = tokens_in - before[1], tokens_out - before[2]
        if calls <= 0:
            return
        if before is None:
            self._tokens = (tokens_in / calls, tokens_out / calls)
            return
        for kind, tokens in by_kind(tokens_in, tokens_out).items():
            if bucket := self._buckets.get(kind):
                bucket.add(calls * self._cost(kind) - tokens)
        old = self._tokens or (tokens_in / calls, tokens_out / calls)
        keep = (1.0 - MEAN_WEIGHT) ** calls
        self._tokens = (
            keep * old[0] + (1.0 - keep) * tokens_in / calls,
            keep * old[1] + (1.0 - keep) * tokens_out / calls,
        )

    def _bound_costs(self) -> None:
        """A dependency lets no call through that costs more than a minute of its limit, so a report
        that says so is wrong. Believed, it would let no other call through to correct it."""
        if self._tokens is not None:
            both = self._largest.get("tokens", math.inf)
            most_in = max(UNSEEN_TOKENS_IN, min(both, self._largest.get("tokens_in", math.inf)))
            most_out = max(UNSEEN_TOKENS_OUT, min(both, self._largest.get("tokens_out", math.inf)))
            self._tokens = min(self._tokens[0], most_in), min(self._tokens[1], most_out)

    def _set_rate(self, kind: str, rate: float, now: float) -> None:
        bucket = self._buckets[kind]
        bucket.fill(now)
        bucket.rate = rate
        # A bucket that cannot hold the cost of one call would never let it pass; one that holds no
        # more loses what comes in until the next call of `allowance`.
        bucket.capacity = max(rate * BURST_SECONDS, self._cost(kind) + rate * STEP_SECONDS)

    def _cost(self, kind: str) -> float:
        tokens_in, tokens_out = self._tokens or (UNSEEN_TOKENS_IN, UNSEEN_TOKENS_OUT)
        return by_kind(tokens_in, tokens_out).get(kind, 1.0)

    def _paced(self, kind: str, now: float) -> float:
        bucket = self._buckets[kind]
        bucket.fill(now)
        cost = self._cost(kind)
        return bucket.level / cost if cost > 0 else math.inf

    def _remaining(self, kind: str, left: Left, now: float) -> float:
        age = max(0.0, self._quota.age_seconds + now - self._updated_at)
        cost = self._cost(kind)
        if age >= left.reset_seconds or age >= READING_SECONDS or cost <= 0:
            return math.inf
        back = MARGIN * left.return_rate() * age
        return (left.remaining + back) / cost - self._uncounted(now)

    def _uncounted(self, now: float) -> int:
        """Jobs on their way that the reading cannot include; some may be counted twice."""
        read_at = self._updated_at - self._quota.age_seconds - LAG_SECONDS
        while self._spent and not read_at <= self._spent[0][0] <= now:
            self._spent.popleft()
        return self._quota.dispatched + sum(jobs for _, jobs in self._spent)


def by_kind(tokens_in: float, tokens_out: float) -> dict[str, float]:
    return {"tokens_in": tokens_in, "tokens_out": tokens_out, "tokens": tokens_in + tokens_out}
