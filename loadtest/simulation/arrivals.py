"""Arrivals by tenant and kind, and counts of which a part is drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadtest.simulation.world import Counts, Floats


class Arrivals:
    """A Poisson stream of one pool's jobs: how many is drawn first, then whose they are."""

    def __init__(self, shares: Sequence[float], chance: np.random.Generator) -> None:
        self._shares: Floats = np.array(shares)
        self._chance = chance
        self._shape = (0, len(self._shares))
        self._up_to: Floats = np.zeros(0)

    def set_rates(self, rates: Floats) -> None:
        """Jobs per second by tenant, of all pools."""
        self._shape = (len(rates), len(self._shares))
        self._up_to = np.cumsum(np.outer(rates, self._shares))

    @property
    def rate(self) -> float:
        """Of this pool's jobs."""
        return float(self._up_to[-1])

    def slots(self, seconds: Floats) -> float:
        """Slots that these jobs keep busy if runs of each kind take so long."""
        return self.rate * float(self._shares @ seconds) / float(self._shares.sum())

    def draw(self, seconds: float) -> Counts:
        """Arrivals within so many seconds, by tenant and kind."""
        jobs = int(self._chance.poisson(self.rate * seconds))
        drawn = self._chance.random(jobs) * self.rate
        places = np.searchsorted(self._up_to, drawn, side="right")
        counts = np.bincount(places, minlength=len(self._up_to))
        return counts.reshape(self._shape)


def part_of(counts: Counts, chances: Floats, chance: np.random.Generator) -> Counts:
    """How many of each count, given the chance of one."""
    drawn = np.zeros_like(counts)
    places = np.flatnonzero(counts)
    if places.size:
        drawn.flat[places] = chance.binomial(counts.ravel()[places], chances.ravel()[places])
    return drawn
