"""The rate limits of the fake Claude: buckets that fill evenly, as the API describes its own."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


@dataclass
class Meter:
    """One limit."""

    #: A minute.
    limit: float
    #: What may be used at once.
    capacity: float
    level: float = field(init=False)
    filled_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.level = self.capacity

    def fill(self) -> None:
        now = time.monotonic()
        self.level = min(self.capacity, self.level + (now - self.filled_at) * self.limit / 60)
        self.filled_at = now

    def seconds_until(self, level: float) -> float:
        return max(0.0, (level - self.level) * 60 / self.limit)


class FakeQuota:
    """Takes so many requests, and input tokens, a minute; refuses what is beyond.

    ``burst_seconds`` is what an idle quota saves up: a minute's worth as a rule, less in tests
    that cannot wait for a minute. ``refused`` and ``taken`` are counted.
    """

    def __init__(
        self, requests: float, input_tokens: float | None = None, *, burst_seconds: float = 60.0
    ) -> None:
        share = burst_seconds / 60.0
        self._meters = {"requests": Meter(requests, max(1.0, requests * share))}
        if input_tokens is not None:
            self._meters["input-tokens"] = Meter(input_tokens, input_tokens * share)
        self._lock = threading.Lock()
        self.taken = 0
        self.refused = 0

    def take(self, tokens: int) -> float | None:
        """Count a request; None if it fits, else the seconds to wait."""
        costs = {"requests": 1.0, "input-tokens": float(tokens)}
        with self._lock:
            waits = []
            for name, meter in self._meters.items():
                meter.fill()
                waits.append(meter.seconds_until(min(costs[name], meter.capacity)))
            if max(waits) > 0:
                self.refused += 1
                return max(waits)
            for name, meter in self._meters.items():
                meter.level -= costs[name]
            self.taken += 1
            return None

    def headers(self) -> dict[str, str]:
        """What is left of each limit, and when all of it is there again."""
        told = {}
        with self._lock:
            for name, meter in self._meters.items():
                meter.fill()
                full = datetime.now(UTC) + timedelta(seconds=meter.seconds_until(meter.capacity))
                prefix = f"anthropic-ratelimit-{name}"
                told[f"{prefix}-limit"] = f"{meter.limit:.0f}"
                told[f"{prefix}-remaining"] = str(max(0, math.floor(meter.level)))
                told[f"{prefix}-reset"] = full.isoformat().replace("+00:00", "Z")
        return told
