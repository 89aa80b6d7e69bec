"""Histograms of run times: mean and quantiles from a few counts. Pure.

A bin has a number, runs and their seconds; higher numbers hold longer runs. A quantile is the mean
of the bin in which it falls. Runs may be fractions: older ones count less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Runs of this age count half.
HALF_LIFE_SECONDS = 900.0

#: Fewer runs than this are none.
RUNS_ERROR = 1e-6

#: Number, runs, seconds.
Bin = tuple[int, float, float]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Runs and their seconds by bin."""

    bins: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def runs(self) -> float:
        return sum(runs for runs, _ in self.bins.values())

    @property
    def mean_seconds(self) -> float | None:
        """None without runs."""
        runs = self.runs
        return sum(seconds for _, seconds in self.bins.values()) / runs if runs > 0 else None

    def quantile(self, share: float) -> float | None:
        """Seconds that ``share`` of the runs do not exceed; None without runs."""
        # Rounding errors of fractions must not push the rank into the next bin.
        wanted, reached = self.runs * (share - 1e-9), 0.0
        for number in sorted(self.bins):
            runs, seconds = self.bins[number]
            reached += runs
            if runs > 0 and reached >= wanted:
                return seconds / runs
        return None


def gather(bins: Iterable[Bin]) -> Histogram:
    """Add up bins of the same number."""
    gathered: dict[int, tuple[float, float]] = {}
    for number, runs, seconds in bins:
        known_runs, known_seconds = gathered.get(number, (0.0, 0.0))
        gathered[number] = (known_runs + runs, known_seconds + seconds)
    # What is taken away may leave an error of rounding.
    return Histogram({n: bin for n, bin in gathered.items() if bin[0] > RUNS_ERROR})


def less(bins: Iterable[Bin]) -> list[Bin]:
    """The same bins, to be taken away from a sum that contains them."""
    return [(number, -runs, -seconds) for number, runs, seconds in bins]


def decay(age_seconds: float) -> float:
    """Weight of a run of that age, from 1 to 0."""
    return 1.0 if age_seconds <= 0 else float(0.5 ** (age_seconds / HALF_LIFE_SECONDS))
