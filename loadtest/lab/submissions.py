"""Submissions of one load with what became of each: refused, or accepted and scored when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sqlalchemy import Engine

from loadtest.figures import rolling_rate, steady_rate
from loadtest.fleet import rows, until
from loadtest.generator import Generator
from loadtest.lab.experiment import Row, RunContext
from loadtest.users.wire import Arrival

ACCEPTED = 202
#: How long responses may take after the last submission.
GRACE_SECONDS = 10.0
#: An application outlives its job, which retention may have removed by now.
SCORED = """
    SELECT id::text, extract(epoch FROM scored_at)::float8 FROM applications
    WHERE score IS NOT NULL
"""
#: When, in seconds, and how much.
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Submissions:
    """Arrivals by intended start, when each was scored, and the gauges of every second."""

    arrivals: Sequence[Arrival]
    #: By id, in seconds since the epoch.
    scored_at: Mapping[str, float]
    rows: Sequence[Row] = ()

    @property
    def begin(self) -> float:
        """The first intended start, in seconds since the epoch."""
        return self.arrivals[0].intended_at if self.arrivals else 0.0

    @property
    def accepted(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.status == ACCEPTED]

    @property
    def refused(self) -> int:
        return len(self.arrivals) - len(self.accepted)

    @property
    def unscored(self) -> int:
        """Accepted, but without a score at the end of all waiting."""
        return sum(arrival.id not in self.scored_at for arrival in self.accepted)

    def between(self, begin: float, end: float) -> Submissions:
        """Those that were to start between two moments, and the gauges of that time."""
        return Submissions(
            [arrival for arrival in self.arrivals if begin <= arrival.intended_at < end],
            self.scored_at,
            [row for row in self.rows if begin <= float(row["at"]) < end],
        )

    def waits(self) -> list[float]:
        """Seconds from the intended start of each accepted one to its score; inf without one."""
        return [self.scored_at.get(each.id, inf) - each.intended_at for each in self.accepted]

    def scored_per_second(self, begin: float, end: float) -> float:
        """The steady rate between two moments, whenever the jobs were submitted."""
        return steady_rate(list(self.scored_at.values()), begin, end)

    def scored_over_time(self, begin: float, end: float, window_seconds: int) -> list[Point]:
        return rolling_rate(list(self.scored_at.values()), begin, end, window_seconds)

    def gauge(self, name: str) -> list[Point]:
        """A gauge by seconds since the first intended start."""
        return [
            (float(row["at"]) - self.begin, float(row[name])) for row in self.rows if name in row
        ]

    def most(self, name: str) -> int:
        return int(max((value for _, value in self.gauge(name)), default=0.0))


def read_scored(engine: Engine) -> dict[str, float]:
    """When each application of a Fairline was scored, by id."""
    return dict(map(tuple, rows(engine, SCORED)))


def await_scores(
    ids: Iterable[str],
    read: Callable[[], Mapping[str, float]],
    seconds: float,
    failed: Callable[[], int] = lambda: 0,
) -> dict[str, float]:
    """Wait until all of these are scored or have failed; when each was scored."""
    wanted = set(ids)
    scored: dict[str, float] = {}

    def ended() -> bool:
        nonlocal scored
        scored = {name: at for name, at in read().items() if name in wanted}
        return len(scored) + failed() >= len(wanted)

    until(ended, seconds, pause=0.25)
    return scored


def collect(
    context: RunContext,
    generator: Generator,
    gauges: Sequence[Row],
    read: Callable[[], Mapping[str, float]],
    seconds: float,
    failed: Callable[[], int] = lambda: 0,
) -> Submissions:
    """Wait until locust has sent everything, then until every accepted job has ended."""
    arrivals = generator.finish(GRACE_SECONDS).arrivals
    context.step("until the last job")
    ids = [arrival.id for arrival in arrivals if arrival.status == ACCEPTED]
    return Submissions(arrivals, await_scores(ids, read, seconds, failed), gauges)
