"""Histograms of waits: how long jobs waited from being ready to their start."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from loadtest.simulation.world import TIERS, Counts

#: Bins grow by 5 %, from a millisecond to a day; a quantile is the upper bound of its bin.
LEAST_SECONDS, RATIO, BINS = 0.001, 1.05, 380
#: Waits over the day are kept for so many seconds at a time.
BUCKET_SECONDS = 300
#: The longest pause between two turns of the scheduler, which is the longest wait of a job for
#: which there is a slot; and from a dispatch to the start: p99 of a single job on an idle stack.
TURN_SECONDS = 0.05
START_SECONDS = 0.009
#: Parts into which the turn is divided.
PARTS = 5


class Why(IntEnum):
    """What a job waited for."""

    SLOT = 0
    #: A quota, a circuit, its tenant's cap or the slice of free accounts.
    HELD = 1
    #: Its cell, which was lost.
    CELL = 2


def bin_of(seconds: float) -> int:
    if seconds <= LEAST_SECONDS:
        return 0
    return min(BINS - 1, math.ceil(math.log(seconds / LEAST_SECONDS) / math.log(RATIO) - 1e-9))


def upper_bound(number: int) -> float:
    return LEAST_SECONDS * RATIO**number


def quantile(counts: Counts, share: float) -> float:
    """Seconds that ``share`` of the jobs do not exceed; 0 without any."""
    total = int(counts.sum())
    if not total:
        return 0.0
    return upper_bound(int(np.searchsorted(np.cumsum(counts), math.ceil(share * total))))


#: Bins of a job for which there is a slot: it arrives anywhere between two turns.
AT_ONCE = [bin_of(START_SECONDS + TURN_SECONDS * (part + 0.5) / PARTS) for part in range(PARTS)]


class Waits:
    """Waits of one pool in one cell."""

    def __init__(self, begin_second: int, end_second: int) -> None:
        self._first = begin_second // BUCKET_SECONDS
        buckets = -(-end_second // BUCKET_SECONDS) - self._first
        #: Those for a slot, by time; and all by tier and by what they were for.
        self.by_time: NDArray[np.int64] = np.zeros((buckets, BINS), np.int64)
        self.by_tier: NDArray[np.int64] = np.zeros((len(TIERS), len(Why), BINS), np.int64)
        #: Jobs that had a slot at once, gathered for a time and by what they waited for.
        self._at_once: Counts = np.zeros(len(TIERS), np.int64)
        self._adding = (0, Why.SLOT)

    def add(self, second: float, tier: int, why: Why, seconds: float, jobs: int) -> None:
        number = bin_of(seconds + START_SECONDS)
        self.by_tier[tier, why, number] += jobs
        if why is Why.SLOT:
            self.by_time[self._bucket(second), number] += jobs

    def add_at_once(self, second: float, by_tier: Counts, why: Why = Why.SLOT) -> None:
        """So many jobs of each tier had a slot by the next turn."""
        bucket = self._bucket(second)
        if (bucket, why) != self._adding:
            self.flush()
            self._adding = (bucket, why)
        self._at_once += by_tier

    def flush(self) -> None:
        """Add what was gathered to the histograms, spread over a turn of the scheduler."""
        bucket, why = self._adding
        each, rest = np.divmod(self._at_once, PARTS)
        for part, number in enumerate(AT_ONCE):
            jobs = each + rest if part == PARTS - 1 else each
            self.by_tier[:, why, number] += jobs
            if why is Why.SLOT:
                self.by_time[bucket, number] += int(jobs.sum())
        self._at_once[:] = 0

    def _bucket(self, second: float) -> int:
        # The last moment of a bucket belongs to it.
        return max(0, min(int(second) // BUCKET_SECONDS - self._first, len(self.by_time) - 1))
