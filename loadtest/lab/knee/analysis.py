"""What the jobs of a staircase say: figures of each step, and where the knee is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from loadtest.percentiles import percentile
from loadtest.steady import steady_rate

#: A last step that scores this share of what is offered has not come to a plateau.
KEEPS_UP = 0.97


@dataclass(frozen=True, slots=True)
class Job:
    """One submission and what became of it, in seconds since the epoch."""

    intended_at: float
    #: From then to the answer.
    latency_seconds: float
    accepted: bool
    #: None if it was never scored.
    scored_at: float | None

    @property
    def wait_seconds(self) -> float:
        """From the intended start to the score."""
        return inf if self.scored_at is None else self.scored_at - self.intended_at


@dataclass(frozen=True, slots=True)
class Tread:
    """One step of the staircase as it was offered."""

    per_second: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One step as it came out. Waits and answers are of the jobs that were to start in it;
    the scored ones are of all that ended in it."""

    offered: float
    scored: float
    jobs: int
    refused: int
    p50_seconds: float
    p99_seconds: float
    front_door_p95_ms: float
    #: Jobs in line when the step ended.
    depth: int
    waiters: int


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the line of what is offered meets the plateau of what is scored."""

    #: Jobs a second, offered and scored.
    at: float
    #: The highest offered rate that was kept up with; 0 if none was.
    kept_up: float


def find_knee(points: Iterable[tuple[float, float]]) -> Knee | None:
    """The hinge that is nearest to (offered, scored): first ``scored = offered``, then a plateau.

    Every place between two steps is tried, and the one with the least squared error wins; the
    plateau is the mean of the steps beyond it. None if even the last step keeps up.
    """
    ordered = sorted(points)
    if not ordered or ordered[-1][1] >= KEEPS_UP * ordered[-1][0]:
        return None
    hinges = [hinge(ordered, split) for split in range(len(ordered))]
    return min(hinges, key=lambda found: found[0])[1]


def hinge(ordered: Sequence[tuple[float, float]], split: int) -> tuple[float, Knee]:
    """The squared error of a hinge with the plateau from this step on, and its knee."""
    below, beyond = ordered[:split], ordered[split:]
    plateau = sum(scored for _, scored in beyond) / len(beyond)
    error = sum((scored - offered) ** 2 for offered, scored in below)
    error += sum((scored - plateau) ** 2 for _, scored in beyond)
    return error, Knee(plateau, below[-1][0] if below else 0.0)


def figures(
    tread: Tread, jobs: Sequence[Job], settle_seconds: float, *, depth: int, waiters: int
) -> Figures:
    """What one step showed. The first ``settle_seconds`` still end what the step before began."""
    own = [job for job in jobs if tread.begin <= job.intended_at < tread.end]
    waits = sorted(job.wait_seconds for job in own if job.accepted)
    answers = sorted(job.latency_seconds for job in own)
    return Figures(
        tread.per_second,
        steady_rate(endings(jobs), tread.begin + settle_seconds, tread.end),
        len(own),
        sum(not job.accepted for job in own),
        percentile(waits, 0.5),
        percentile(waits, 0.99),
        1000 * percentile(answers, 0.95),
        depth,
        waiters,
    )


def plateau_rate(
    treads: Sequence[Tread], jobs: Sequence[Job], kept_up: float, settle_seconds: float
) -> float:
    """Scored a second over all steps beyond the knee, as one stretch."""
    beyond = [tread for tread in treads if tread.per_second > kept_up]
    if not beyond:
        return 0.0
    return steady_rate(endings(jobs), beyond[0].begin + settle_seconds, beyond[-1].end)


def endings(jobs: Iterable[Job]) -> list[float]:
    """When jobs were scored."""
    return [job.scored_at for job in jobs if job.scored_at is not None]


def treads_of(rates: Sequence[float], seconds: float, begin: float) -> list[Tread]:
    """Steps of equal length, one after the other."""
    return [
        Tread(rate, begin + number * seconds, begin + (number + 1) * seconds)
        for number, rate in enumerate(rates)
    ]
