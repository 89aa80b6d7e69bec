"""Workers of one pool in one cell: the product's autoscaler, and what a start takes."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from app.policy.scaling import ScalingState, decide, policy_of
from app.scheduler.autoscaler import reading_of
from app.scheduler.dispatching.pools import PoolState
from loadtest.simulation.world import Scenario
from models.pools import POOLS


class Workers:
    """How many workers of a pool are there, start and are paid for."""

    def __init__(self, pool: str, scenario: Scenario, busy_slots: float) -> None:
        """``busy_slots``: what the load takes at the beginning; there are enough workers."""
        self.pool = pool
        self.slots_each = POOLS[pool].slots
        self._policy = policy = policy_of(
            pool, scenario.scale_min, scenario.scale_max, scenario.scale_policy
        )
        needed = math.ceil(busy_slots / (1 - policy.headroom) / self.slots_each)
        self.live = min(max(policy.least, needed), policy.most)
        self._state = ScalingState(self.live)
        self._boot_seconds = scenario.boot_seconds
        #: When they will be there, and how many.
        self._booting: deque[tuple[float, int]] = deque()
        #: Paid for, those that start included.
        self.worker_seconds = 0.0

    @property
    def slots(self) -> int:
        return self.live * self.slots_each

    @property
    def booting(self) -> int:
        return sum(count for _, count in self._booting)

    def begin_second(self, now: float) -> None:
        while self._booting and self._booting[0][0] <= now:
            self.live += self._booting.popleft()[1]
        self.worker_seconds += self.live + self.booting

    def lose(self, workers: int) -> None:
        """They died; the process manager replaces them at its next look."""
        self.live -= workers

    def lose_all(self) -> None:
        self.live = 0
        self._booting.clear()

    def decide(self, now: float, state: PoolState, oldest: float, wait: float | None) -> None:
        """Decide as the scheduler does once a second.

        ``oldest``: the longest wait of those that were sent and do not run; ``wait``: that of
        those queued that only lack a slot, if any.
        """
        flight = SimpleNamespace(running=state.running, oldest_seconds=oldest)
        flights = cast(Any, {self.pool: flight})
        reading = reading_of(state, flights, {self.pool: state.ready}, wait)
        decision = decide(reading, self._state, self._policy, now)
        self._state = decision.state
        self.follow(now)

    def follow(self, now: float) -> None:
        """Start or stop workers until there are as many as decided."""
        missing = self._state.workers - self.live - self.booting
        if missing > 0:
            self._booting.append((now + self._boot_seconds, missing))
        while missing < 0 and self._booting:
            at, count = self._booting.pop()
            stopped = min(count, -missing)
            if count > stopped:
                self._booting.append((at, count - stopped))
            missing += stopped
        self.live += min(0, missing)

    def restore(self, now: float) -> None:
        """A new leader continues from the last decision."""
        self._state = replace(self._state, changed_at=now, quiet_since=None, tight_since=None)
        self.follow(now)
