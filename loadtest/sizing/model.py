"""Sizes of a deployment by its jobs per day. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadtest.simulation.world import POOL_NAMES, slot_seconds
from loadtest.sizing.inputs import (
    API,
    ARCHIVE_GB_MONTH,
    BUSY,
    CELL_PER_SECOND,
    CLUSTER_CORES,
    COPIES,
    CORE_HOUR,
    FILLED,
    GROUPED_FLUSHES,
    GROUPED_MS,
    GROUPED_PER_SECOND,
    GROUPED_WAL,
    HEADROOM,
    IDLE_PERCENT,
    KEPT_DAYS,
    ONE_MACHINE_CORES,
    ONE_MACHINE_PER_SECOND,
    OTHERS,
    PEAK,
    POSTGRES,
    SINGLE_FLUSHES,
    SINGLE_MS,
    SINGLE_PER_SECOND,
    SINGLE_WAL,
    SSD_GB_MONTH,
    WORKER_CORES,
    WORKERS,
)
from models.pools import POOLS

DAY_SECONDS, MONTH_HOURS = 86_400, 720


@dataclass(frozen=True, slots=True)
class Size:
    jobs_per_day: float

    @property
    def mean(self) -> float:
        """Jobs per second."""
        return self.jobs_per_day / DAY_SECONDS

    @property
    def peak(self) -> float:
        return self.mean * PEAK

    @property
    def cells(self) -> int:
        return max(1, math.ceil(self.peak / CELL_PER_SECOND - 1e-9))

    def between(self, single: float, grouped: float) -> float:
        """A cost of a job at the peak: it falls as a power of the rate between two measurements."""
        rate = self.peak / self.cells
        span = math.log(GROUPED_PER_SECOND / SINGLE_PER_SECOND)
        way = math.log(max(rate, SINGLE_PER_SECOND) / SINGLE_PER_SECOND) / span
        return single * math.pow(grouped / single, min(1.0, way))

    def cores(self, part: str) -> float:
        """Cores that a part needs at the peak, in all cells."""
        ms = self.between(SINGLE_MS[part], GROUPED_MS[part])
        return ms / 1000 * self.peak / BUSY + IDLE_PERCENT / 100 / len(SINGLE_MS)

    @property
    def engine_cores(self) -> float:
        """All but workers; the database in two copies."""
        return self.cores(API) + COPIES * self.cores(POSTGRES) + self.cores(OTHERS)

    def workers(self, pool: str) -> int:
        """Workers at the peak, with some slots free."""
        slots = self.peak * slot_seconds(pool) / (1 - HEADROOM)
        return max(1, math.ceil(slots / POOLS[pool].slots - 1e-9))

    @property
    def wal_per_second(self) -> float:
        """Bytes at the peak, of one cell."""
        return self.between(SINGLE_WAL, GROUPED_WAL) * self.peak / self.cells

    @property
    def flushes_per_second(self) -> float:
        """At the peak, of one cell."""
        return self.between(SINGLE_FLUSHES, GROUPED_FLUSHES) * self.peak / self.cells

    def disk(self, stored_bytes: float) -> float:
        """Bytes of one cell's finished jobs."""
        return self.jobs_per_day * KEPT_DAYS * stored_bytes / self.cells

    def money(self, stored_bytes: float) -> dict[str, float]:
        """Per month, by what it is for."""
        hours = {
            pool: DAY_SECONDS * self.mean * slot_seconds(pool) / POOLS[pool].slots / FILLED / 3600
            for pool in POOL_NAMES
        }
        worker_cores = sum(max(24.0, hours[p]) * 30 * WORKER_CORES[p] for p in POOL_NAMES)
        engine_cores = max(self.engine_cores, CLUSTER_CORES)
        if self.peak <= ONE_MACHINE_PER_SECOND:
            engine_cores, worker_cores = ONE_MACHINE_CORES, 0.0
        stored = COPIES * self.cells * self.disk(stored_bytes) / 1e9 * SSD_GB_MONTH
        wal = self.between(SINGLE_WAL, GROUPED_WAL) * self.jobs_per_day * KEPT_DAYS / 1e9
        return {
            "engines and API": engine_cores * MONTH_HOURS * CORE_HOUR,
            "workers": worker_cores * CORE_HOUR,
            "disks and archive": stored + wal * ARCHIVE_GB_MONTH,
        }


def overhead_cores(size: Size) -> float:
    """What workers take besides the jobs themselves, at the peak."""
    return size.cores(WORKERS)
