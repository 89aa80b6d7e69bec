"""Queued jobs of a pool by tenant and lane, first come, first served within a lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loadtest.simulation.waits import Why
from loadtest.simulation.world import Counts
from tasks.retry.decision import History


@dataclass(slots=True)
class Batch:
    """Jobs of one tenant and kind that became ready at the same time."""

    at: float
    tenant: int
    kind: int
    jobs: int
    #: Of a single job that ran before.
    history: History | None = None
    why: Why = Why.SLOT


@dataclass(slots=True)
class Lane:
    batches: deque[Batch] = field(default_factory=deque)
    jobs: int = 0


class Lanes(dict[tuple[int, str], Lane]):
    def __init__(self, tenants: int) -> None:
        super().__init__()
        self.jobs = 0
        self._tenants = tenants
        #: Jobs by tenant, of each lane's name.
        self._counts: dict[str, Counts] = {}

    def by_tenant(self, lane: str) -> Counts:
        """Jobs of each tenant in the lanes of this name."""
        if lane not in self._counts:
            self._counts[lane] = np.zeros(self._tenants, np.int64)
        return self._counts[lane]

    def add(self, lane: str, batch: Batch) -> bool:
        """Add jobs; whether the lane was empty."""
        key = (batch.tenant, lane)
        is_new = key not in self
        found = self.setdefault(key, Lane())
        found.batches.append(batch)
        found.jobs += batch.jobs
        self.jobs += batch.jobs
        self.by_tenant(lane)[batch.tenant] += batch.jobs
        return is_new

    def take(self, tenant: int, jobs: int, limits: Mapping[str, int]) -> list[tuple[str, Batch]]:
        """Up to so many jobs of a tenant, oldest first, at most so many of each lane."""
        left, limits = jobs, dict(limits)
        taken: list[tuple[str, Batch]] = []
        while left > 0:
            able = [
                (self[tenant, lane].batches[0].at, lane)
                for lane, most in limits.items()
                if most > 0 and (tenant, lane) in self
            ]
            if not able:
                break
            lane = min(able)[1]
            batch = self._take_first((tenant, lane), min(left, limits[lane]))
            taken.append((lane, batch))
            left -= batch.jobs
            limits[lane] -= batch.jobs
        return taken

    def _take_first(self, key: tuple[int, str], most: int) -> Batch:
        lane = self[key]
        first = lane.batches[0]
        if first.jobs <= most:
            lane.batches.popleft()
            batch = first
        else:
            batch = replace(first, jobs=most)
            first.jobs -= most
        lane.jobs -= batch.jobs
        self.jobs -= batch.jobs
        self.by_tenant(key[1])[key[0]] -= batch.jobs
        if not lane.jobs:
            del self[key]
        return batch
