"""What became of the load on one side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.lab.sampling import Row
from loadtest.percentiles import percentile
from loadtest.steady import steady_rate
from loadtest.users.record import Arrival

#: The steady part begins here at the latest.
SETTLED_SECONDS = 10.0
ACCEPTED = 202


@dataclass(frozen=True, slots=True)
class Course:
    """One side under load, from the first arrival to the last job."""

    title: str
    workers: int
    #: Connections that the pool of a worker may open, as the process itself says.
    pool_size: int
    offered_per_second: float
    seconds: float
    arrivals: Sequence[Arrival]
    #: When each accepted application was scored, by id, in seconds since the epoch.
    finished_at: Mapping[str, float]
    #: Once a second: waiting, running, waiters and so on.
    rows: Sequence[Row]
    #: Tasks that gave up waiting for a connection.
    timeouts: int = 0

    @property
    def begin(self) -> float:
        return self.arrivals[0].intended_at if self.arrivals else 0.0

    @property
    def ended_at(self) -> float:
        """When the last job was scored, and not before the end of the load."""
        return max((self.begin + self.seconds, *self.finished_at.values()))

    @property
    def accepted(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.status == ACCEPTED]

    @property
    def refused(self) -> int:
        """Submissions that were not accepted."""
        return len(self.arrivals) - len(self.accepted)

    @property
    def unscored(self) -> int:
        """Accepted, and without a score at the end of all waiting."""
        return sum(arrival.id not in self.finished_at for arrival in self.accepted)

    @property
    def scored_per_second(self) -> float:
        """In the steady part of the load."""
        settled = min(SETTLED_SECONDS, self.seconds / 3)
        return steady_rate(
            list(self.finished_at.values()), self.begin + settled, self.begin + self.seconds
        )

    @property
    def share_of_offered(self) -> float:
        return self.scored_per_second / self.offered_per_second

    def scored_seconds(self, share: float) -> float:
        """A percentile of the time from the intended start to the score.

        What was never scored counts as slower than all the rest; if the percentile falls among
        those, the wait is as long as the slowest that is known.
        """
        known = sorted(
            self.finished_at[arrival.id] - arrival.intended_at
            for arrival in self.accepted
            if arrival.id in self.finished_at
        )
        return percentile(known + known[-1:] * self.unscored, share)

    def most(self, gauge: str) -> int:
        """The highest that a gauge stood."""
        return int(max((float(row[gauge]) for row in self.rows if gauge in row), default=0.0))

    def over_time(self, gauge: str) -> list[tuple[float, float]]:
        """A gauge by the seconds since the first arrival."""
        return [
            (float(row["at"]) - self.begin, float(row[gauge])) for row in self.rows if gauge in row
        ]


def rolling_rate(
    moments: Sequence[float], begin: float, end: float, window_seconds: int
) -> list[tuple[float, float]]:
    """Events a second over the window before each full second: (seconds since begin, rate).

    The window is to be a multiple of the time that a job takes, or slots that began together
    draw teeth.
    """
    counts = [0] * (int(end - begin) + 1)
    for moment in moments:
        second = int(moment - begin)
        if begin <= moment < end and second < len(counts):
            counts[second] += 1
    return [
        (
            float(second),
            sum(counts[max(0, second - window_seconds) : second]) / window_seconds,
        )
        for second in range(len(counts))
    ]
