"""PURE: the tap of a dependency, how many jobs may be dispatched towards it now.

Three things bound the flow, and the least of them counts:

* **Pace.** A bucket for each limit fills at ``MARGIN`` of the limit and holds a second's worth,
  at least one call. It is empty when the tap is new, so a scheduler that restarts sends no burst.
* **Reading.** What the dependency's last answer said is left, less the jobs that it cannot have
  counted yet. What is used up is taken to come back evenly until the reset, which is how the
  Messages API describes its buckets.
* **Refusal.** A tap that is closed gives nothing until it opens. If no limit is known, it opens
  slowly: one job in the first second, twice as many in each after it.

A declared limit is an upper bound: one that is learned replaces it only if it is lower.

Knows no clock: every moment comes from the caller, in seconds of one clock; one that is turned
back neither fills a bucket nor blocks it. A job counts as one call. Not guaranteed: that nothing
is refused while others use the same quota, or while a call comes much later than its dispatch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Share of a limit that is used. The burst may add 1/60 of it to any minute, and calls that
#: come up to two seconds later than their dispatch another 1/30: together the 5 % left out.
MARGIN = 0.95
#: What a bucket holds.
BURST_SECONDS = 1.0
#: A closed tap opens so much later than it was told to: workers go by clocks of their own.
OPENING_SECONDS = 0.25
#: A tap without limits opens over so long.
RAMP_SECONDS = 12.0
#: A reading older than this says nothing any more.
READING_SECONDS = 3600.0
#: Calls dispatched so shortly before a reading may have been made after it.
LAG_SECONDS = 1.0
#: Nobody looks more often than he needs to: what happens in such a stretch is one step.
STEP_SECONDS = 0.25
#: Tokens of a call while none was seen.
UNSEEN_TOKENS_IN = 1000.0
UNSEEN_TOKENS_OUT = 500.0
#: Weight of one call in the means.
MEAN_WEIGHT = 0.1
#: Calls that cost more than was expected are paid for later, up to so many seconds of the limit.
DEBT_SECONDS = 60.0

#: Limits: calls, tokens of either kind, and both kinds together.
KINDS = ("requests", "tokens_in", "tokens_out", "tokens")
_OPENING = "opening"


@dataclass(frozen=True, slots=True)
class Left:
    """What an answer said of one limit."""

    #: A minute.
    limit: float
    remaining: float
    #: From the answer until all of it is there again.
    reset_seconds: float


@dataclass(frozen=True, slots=True)
class QuotaBucket:
    """All that is known of a dependency's quota at one moment."""

    #: Limits a minute by kind, as an operator said.
    declared: Mapping[str, float] = field(default_factory=dict)
    #: The last answer's words by kind, and how old they are.
    reading: Mapping[str, Left] = field(default_factory=dict)
    age_seconds: float = 0.0
    #: Until the tap opens; negative if that is past, None if it never was closed.
    closed_seconds: float | None = None
    #: Jobs that are at the broker.
    dispatched: int = 0

    def limits(self) -> dict[str, float]:
        """The limits in force, a minute."""
        limits = dict(self.declared)
        if self.age_seconds < READING_SECONDS:
            for kind, left in self.reading.items():
                limits[kind] = min(limits.get(kind, left.limit), left.limit)
        return limits


@dataclass(slots=True)
class Bucket:
    """Fills evenly, and holds no more than its capacity."""

    filled_at: float
    rate: float = 0.0
    capacity: float = 0.0
    level: float = 0.0

    def fill(self, now: float) -> None:
        """What has come in since."""
        self.level += self.rate * max(0.0, now - self.filled_at)
        self.level = min(self.level, self.capacity)
        self.filled_at = now

    def pour(self, amount: float) -> None:
        """Add, or take if negative; a debt is bounded."""
        debt = -self.rate * DEBT_SECONDS
        self.level = max(debt, min(self.level + amount, self.capacity))


class QuotaPacer:
    """The flow towards one dependency."""

    def __init__(self) -> None:
        self._quota = QuotaBucket()
        self._looked_at = 0.0
        self._opens_at: float | None = None
        self._buckets: dict[str, Bucket] = {}
        self._tokens: tuple[float, float] | None = None
        #: When how many jobs were dispatched, as far back as a reading may be.
        self._spent: deque[tuple[float, int]] = deque()

    def look(self, quota: QuotaBucket, now: float) -> None:
        """Take note of what is known."""
        self._quota, self._looked_at = quota, now
        closed = quota.closed_seconds
        self._opens_at = None if closed is None else now + closed + OPENING_SECONDS
        rates = {kind: limit * MARGIN / 60.0 for kind, limit in quota.limits().items()}
        if not rates and self._opens_at is not None and now < self._opens_at + RAMP_SECONDS:
            rates[_OPENING] = 1.0
        self._buckets = {kind: self._buckets.get(kind) or Bucket(now) for kind in rates}
        for kind, rate in rates.items():
            self._set_rate(kind, rate, now)
        if not any(quota.age_seconds < left.reset_seconds for left in quota.reading.values()):
            self._spent.clear()

    def closed(self, now: float) -> bool:
        """Whether nothing may flow."""
        return self._opens_at is not None and now < self._opens_at

    def room(self, now: float) -> int | None:
        """Jobs that may be dispatched now; None if nothing bounds them."""
        if self.closed(now):
            for bucket in self._buckets.values():  # so that it opens without a burst
                bucket.fill(now)
                bucket.level = min(bucket.level, 0.0)
            return 0
        if _OPENING in self._buckets:
            open_seconds = now - (self._opens_at or now)
            if open_seconds >= RAMP_SECONDS:
                return None
            self._set_rate(_OPENING, 2.0**open_seconds, now)
        rooms = [self._paced(kind, now) for kind in self._buckets]
        rooms += [self._remaining(kind, left, now) for kind, left in self._quota.reading.items()]
        least = min(rooms, default=math.inf)
        # An amount that was filled up in many small steps is short of the whole by a rounding.
        return None if math.isinf(least) else max(0, math.floor(least + 1e-9))

    def spend(self, jobs: int, now: float) -> None:
        """So many jobs were dispatched; negative if they did not leave after all."""
        for kind, bucket in self._buckets.items():
            bucket.pour(-jobs * self._cost(kind))
        if self._spent and 0.0 <= now - self._spent[-1][0] < STEP_SECONDS:
            at, before = self._spent.pop()
            self._spent.append((at, before + jobs))
        elif self._quota.reading:
            self._spent.append((now, jobs))

    def learn_means(self, calls: int, tokens_in: float, tokens_out: float) -> None:
        """Begin with what calls have cost so far."""
        if calls > 0:
            self._tokens = (tokens_in / calls, tokens_out / calls)

    def used(self, calls: int, tokens_in: float, tokens_out: float) -> None:
        """So many calls have told what they cost; the difference is settled now."""
        if calls <= 0:
            return
        for kind, tokens in (
            ("tokens_in", tokens_in),
            ("tokens_out", tokens_out),
            ("tokens", tokens_in + tokens_out),
        ):
            if bucket := self._buckets.get(kind):
                bucket.pour(calls * self._cost(kind) - tokens)
        old = self._tokens or (tokens_in / calls, tokens_out / calls)
        keep = (1.0 - MEAN_WEIGHT) ** calls
        self._tokens = (
            keep * old[0] + (1.0 - keep) * tokens_in / calls,
            keep * old[1] + (1.0 - keep) * tokens_out / calls,
        )

    def _set_rate(self, kind: str, rate: float, now: float) -> None:
        bucket = self._buckets[kind]
        bucket.fill(now)
        bucket.rate = rate
        # A bucket that cannot hold the price of one call would never let it pass; one that holds
        # no more loses what comes in until somebody looks.
        bucket.capacity = max(rate * BURST_SECONDS, self._cost(kind) + rate * STEP_SECONDS)

    def _cost(self, kind: str) -> float:
        tokens_in, tokens_out = self._tokens or (UNSEEN_TOKENS_IN, UNSEEN_TOKENS_OUT)
        match kind:
            case "tokens_in":
                return tokens_in
            case "tokens_out":
                return tokens_out
            case "tokens":
                return tokens_in + tokens_out
            case _:
                return 1.0

    def _paced(self, kind: str, now: float) -> float:
        bucket = self._buckets[kind]
        bucket.fill(now)
        cost = self._cost(kind)
        return bucket.level / cost if cost > 0 else math.inf

    def _remaining(self, kind: str, left: Left, now: float) -> float:
        age = max(0.0, self._quota.age_seconds + now - self._looked_at)
        cost = self._cost(kind)
        if age >= left.reset_seconds or age >= READING_SECONDS or cost <= 0:
            return math.inf
        rate = min((left.limit - left.remaining) / left.reset_seconds, left.limit / 60.0)
        back = MARGIN * max(0.0, rate) * age
        return (left.remaining + back) / cost - self._uncounted(now)

    def _uncounted(self, now: float) -> int:
        """Jobs on their way that the reading cannot know of; some may be counted twice."""
        read_at = self._looked_at - self._quota.age_seconds - LAG_SECONDS
        while self._spent and not read_at <= self._spent[0][0] <= now:
            self._spent.popleft()
        return self._quota.dispatched + sum(jobs for _, jobs in self._spent)
