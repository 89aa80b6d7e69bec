"""What came out of a run: waits by pool, tier and time, shares, workers, money, all accounts."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadtest.simulation.cell import CellResult, CellSimulation
from loadtest.simulation.waits import BUCKET_SECONDS, Why, quantile
from loadtest.simulation.world import (
    OBJECTIVES,
    POOL_NAMES,
    TIERS,
    Counts,
    Scenario,
    World,
    build,
)
from loadtest.sizing.inputs import CORE_HOUR, WORKER_CORES

#: A quantile of fewer jobs than this means nothing.
LEAST_JOBS = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the cells that were simulated, and figures of all cells made from them."""

    world: World
    cells: tuple[CellResult, ...]

    @property
    def scenario(self) -> Scenario:
        return self.world.scenario

    def stands_for(self, cell: CellResult) -> float:
        """How many cells a simulated one stands for, by load; the lost one for itself."""
        all_cells = sum(each.rate for each in self.world.cells)
        lost = sum(each.rate for each in self.cells if each.number == self.world.lost)
        others = sum(each.rate for each in self.cells) - lost
        if not others:
            return all_cells / lost
        return 1.0 if cell.number == self.world.lost else (all_cells - lost) / others

    @property
    def arrived_in_all(self) -> float:
        """Jobs that were submitted to all cells."""
        return sum(self.stands_for(cell) * cell.arrived for cell in self.cells)

    @property
    def arrived(self) -> int:
        return sum(cell.arrived for cell in self.cells)

    @property
    def balanced(self) -> bool:
        """Whether every arrival is refused, taken in, under way or ended, and counted once."""
        return all(cell.arrived == cell.accounted for cell in self.cells)

    def refused(self, why: str) -> int:
        return sum(cell.refused[why] for cell in self.cells)

    def ended(self, what: str) -> int:
        """``succeeded``, ``dead`` or ``unfinished`` jobs."""
        return sum(getattr(pool, what) for cell in self.cells for pool in cell.pools.values())

    def failures(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for cell in self.cells:
            for pool in cell.pools.values():
                found.update(pool.failures)
        return found

    def waits(self, pool: str, why: Why = Why.SLOT, tier: int | None = None) -> Counts:
        """The histogram of waits for this, of all tiers or one."""
        by_tier = sum(cell.pools[pool].by_tier for cell in self.cells)
        chosen = (
            np.asarray(by_tier)[:, why]
            if tier is None
            else np.asarray(by_tier)[tier : tier + 1, why]
        )
        return np.asarray(chosen.sum(0))

    def start(self, pool: str, share: float, tier: int | None = None) -> float:
        """Seconds within which this share of the jobs that waited for a slot started."""
        return quantile(self.waits(pool, Why.SLOT, tier), share)

    def over_time(self, pool: str, share: float) -> list[float | None]:
        """The same for every five minutes; None where few jobs started."""
        counts = np.asarray(sum(cell.pools[pool].by_time for cell in self.cells))
        return [quantile(row, share) if row.sum() >= LEAST_JOBS else None for row in counts]

    def worst(self, pool: str) -> float:
        """The highest p99 of any five minutes."""
        return max((each for each in self.over_time(pool, 0.99) if each is not None), default=0.0)

    def missed(self) -> list[str]:
        """Pools whose p99 is above the objective."""
        return [pool for pool in POOL_NAMES if self.start(pool, 0.99) > OBJECTIVES[pool]]

    def share(self, what: str, tier: int, pool: str | None = None) -> float | None:
        """Part of the slot time of saturated pools that a tier was ``entitled`` to or ``got``, or
        by which its tenants were ``off``; None if no pool was saturated."""
        pools = [
            found
            for cell in self.cells
            for name, found in cell.pools.items()
            if pool in (None, name)
        ]
        total = sum(sum(one.entitled) for one in pools)
        return sum(getattr(one, what)[tier] for one in pools) / total if total > 0 else None

    def workers(self, pool: str) -> list[float]:
        """Workers of all cells, of every five minutes."""
        return self._of_all([cell.pools[pool].workers for cell in self.cells])

    def arrivals(self) -> list[float]:
        """Per second, of every five minutes."""
        totals = self._of_all([cell.arrivals for cell in self.cells])
        return [each / BUCKET_SECONDS for each in totals]

    def worker_hours(self, pool: str) -> float:
        [seconds] = self._of_all([[cell.pools[pool].worker_seconds] for cell in self.cells])
        return seconds / 3600

    def _of_all(self, by_cell: Sequence[Sequence[float] | Counts]) -> list[float]:
        """Sums over all cells, made from those of the simulated ones."""
        times = [self.stands_for(cell) for cell in self.cells]
        scaled = [n * np.asarray(values) for n, values in zip(times, by_cell, strict=True)]
        return [float(each) for each in np.sum(scaled, axis=0)]

    def worker_money(self) -> float:
        """What the workers cost in the simulated time."""
        return sum(self.worker_hours(pool) * WORKER_CORES[pool] * CORE_HOUR for pool in POOL_NAMES)

    def data(self) -> dict[str, Any]:
        """All of it, for machines; the same run gives the same bytes."""
        return {
            "scenario": asdict(self.scenario),
            "lost_cell": self.world.lost,
            "arrived": self.arrived,
            "balanced": self.balanced,
            "refused": {why: self.refused(why) for why in ("rate", "engine")},
            "ended": {what: self.ended(what) for what in ("succeeded", "dead", "unfinished")},
            "failures": dict(sorted(self.failures().items())),
            "pools": {pool: self._pool_data(pool) for pool in POOL_NAMES},
            "share_error": {
                tier.value: self.share("off", place) for place, tier in enumerate(TIERS)
            },
            "arrivals_per_second": self.arrivals(),
            "cells": [
                {
                    "number": cell.number,
                    "rate": cell.rate,
                    "arrived": cell.arrived,
                    "lost_runs": cell.lost_runs,
                    "recovered_seconds": cell.recovered_seconds,
                    "circuit_opened": cell.circuit_opened,
                }
                for cell in self.cells
            ],
        }

    def _pool_data(self, pool: str) -> dict[str, Any]:
        return {
            "p50": self.start(pool, 0.5),
            "p99": self.start(pool, 0.99),
            "worst_p99": self.worst(pool),
            "held_p99": quantile(self.waits(pool, Why.HELD), 0.99),
            "jobs": {why.name: int(self.waits(pool, why).sum()) for why in Why},
            "p99_by_tier": {
                tier.value: self.start(pool, 0.99, place) for place, tier in enumerate(TIERS)
            },
            "p99_over_time": self.over_time(pool, 0.99),
            "workers": self.workers(pool),
            "worker_hours": self.worker_hours(pool),
        }

    def text(self) -> str:
        return json.dumps(self.data(), indent=1, sort_keys=True) + "\n"


def run_cell(world: World, number: int) -> CellResult:
    return CellSimulation(world, number).run()


def simulate(scenario: Scenario, numbers: Sequence[int], processes: int = 0) -> Outcome:
    """Simulate these cells, as many at a time as there are cores."""
    world = build(scenario)
    processes = min(processes or os.cpu_count() or 1, len(numbers))
    if processes == 1:
        return Outcome(world, tuple(run_cell(world, number) for number in numbers))
    with ProcessPoolExecutor(processes) as executor:
        results = executor.map(run_cell, [world] * len(numbers), numbers)
        return Outcome(world, tuple(results))
