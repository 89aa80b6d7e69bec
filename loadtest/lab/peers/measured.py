"""Everything that one run of the comparison measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loadtest.lab.peers.killing import Killed
from loadtest.percentiles import percentile
from loadtest.samples import Sample, medians

FAIRLINE = "Fairline"
CELERY = "plain Celery"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution of milliseconds in three figures."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: list[float]) -> Quantiles:
        """Of these values, in any order."""
        ordered = sorted(values)
        return cls(*(percentile(ordered, share) for share in (0.5, 0.95, 0.99)))


@dataclass(slots=True)
class Measured:
    """Filled by the experiment, read by the report and the pictures."""

    #: Contenders in the order of the report.
    names: list[str] = field(default_factory=list)
    tuning: dict[str, str] = field(default_factory=dict)
    #: Few and many, at which the accept rates were taken.
    connections: tuple[int, int] = (64, 256)
    samples: list[Sample] = field(default_factory=list)
    #: Milliseconds from submission to start, all rounds together.
    starts: dict[str, list[float]] = field(default_factory=dict)
    #: Megabytes by contender and part, after the last round.
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    killed: list[Killed] = field(default_factory=list)
    #: Milliseconds to the answer with an empty line, and with a long one.
    idle_ms: list[float] = field(default_factory=list)
    lined_ms: list[float] = field(default_factory=list)
    #: How many jobs waited then.
    waiting: int = 0

    def rates(self, what: str, suffix: str = "") -> dict[str, Sample]:
        """The medians of one kind of measurement, by contender."""
        middle = medians(self.samples)
        found = {name: middle.get(f"{what}: {name}{suffix}") for name in self.names}
        return {name: sample for name, sample in found.items() if sample}

    def sample(self, name: str) -> Sample:
        """The median of one measurement by its whole name."""
        return medians(self.samples)[name]

    def start_quantiles(self) -> dict[str, Quantiles]:
        """Submission to start, by contender."""
        return {name: Quantiles.of(values) for name, values in self.starts.items()}

    def data(self) -> Mapping[str, Any]:
        """For machines."""
        return {
            "medians": [asdict(sample) for sample in medians(self.samples).values()],
            "rounds": [asdict(sample) for sample in self.samples],
            "start_ms": self.starts,
            "memory_mb": self.memory,
            "killed": [asdict(each) for each in self.killed],
            "front_door_idle_ms": self.idle_ms,
            "front_door_lined_ms": self.lined_ms,
            "waiting": self.waiting,
            "tuning": self.tuning,
        }
