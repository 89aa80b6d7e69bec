"""The staircases of the three sizes."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.lab.experiment import Size
from loadtest.shapes import Stretch, steps
from models.pools import POOLS

POOL = "medium"
SLOTS = POOLS[POOL].slots


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of equal length, after a short warm-up at the first one's rate."""

    rates: tuple[float, ...]
    step_seconds: float
    warm_seconds: float
    score_seconds: float = 1.5
    #: Of the capacity, scored beyond the knee.
    least_percent: float = 99.0
    #: The front door's p95 in the last step, of that in the first.
    most_times: float = 1.5

    @property
    def capacity(self) -> float:
        """Applications a second that the slots can score."""
        return SLOTS / self.score_seconds

    @property
    def settle_seconds(self) -> float:
        """How long a step still ends what the step before began."""
        return 2 * self.score_seconds

    @property
    def stretches(self) -> list[Stretch]:
        """What is offered."""
        warm = Stretch(self.warm_seconds, self.rates[0], self.rates[0])
        return [warm, *steps(self.rates, self.step_seconds)]

    @property
    def load_seconds(self) -> float:
        """While anything arrives."""
        return self.warm_seconds + self.step_seconds * len(self.rates)

    @property
    def drain_seconds(self) -> float:
        """For what the steps beyond the capacity leave in line."""
        left = self.step_seconds * sum(max(0.0, rate - self.capacity) for rate in self.rates)
        return left / self.capacity + self.score_seconds


STAIRS = (2.0, 4.0, 6.0, 6.6, 8.0, 10.0, 12.0, 14.0)
PLANS = {
    Size.FULL: Plan(STAIRS, 30.0, 5.0),
    # Twenty answers at 2/s: their p95 is the slowest but one.
    Size.QUICK: Plan(STAIRS, 10.0, 4.0, least_percent=98.0, most_times=2.0),
    # Nothing to hold against a bar: only that it runs.
    Size.MINI: Plan((10.0, 60.0), 1.5, 0.5, score_seconds=0.3),
}
