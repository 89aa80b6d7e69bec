"""What was measured, and the median of several rounds of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from loadtest.cores import MACHINE


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one thing."""

    name: str
    #: Requests or jobs a second.
    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: Answers that were not the expected one.
    unexpected: int = 0
    #: Cores in use by part of the system.
    cores: dict[str, float] = field(default_factory=dict)

    @property
    def own_cores(self) -> float:
        """Cores that everything under measurement took, the generator included."""
        return sum(used for part, used in self.cores.items() if part != MACHINE)

    @property
    def strangers(self) -> float:
        """Cores that something else took meanwhile."""
        return max(0.0, self.cores.get(MACHINE, 0.0) - self.own_cores)

    @property
    def per_core_second(self) -> float:
        """Requests or jobs for each second of CPU: the same on a busy machine."""
        return self.rate / self.own_cores if self.own_cores else 0.0


def medians(samples: Iterable[Sample]) -> dict[str, Sample]:
    """The median of each value over the rounds, by name, in order of first appearance."""
    rounds: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        rounds[sample.name].append(sample)
    return {name: median_of(group) for name, group in rounds.items()}


def median_of(group: list[Sample]) -> Sample:
    """One sample in the middle of many."""
    parts = {part for sample in group for part in sample.cores}
    return Sample(
        group[0].name,
        median(sample.rate for sample in group),
        middle(sample.p50_ms for sample in group),
        middle(sample.p99_ms for sample in group),
        max(sample.unexpected for sample in group),
        {part: median(s.cores.get(part, 0.0) for s in group) for part in sorted(parts)},
    )


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the values that are there."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
