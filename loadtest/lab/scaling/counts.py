"""What is tried with how many workers, and what it comes to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from loadtest.bars import Bar
from loadtest.lab.experiment import Size
from loadtest.report import Picture, Report, Table
from models.pools import POOLS

TITLE = "Scaling: more workers, more scored"
POOL = "medium"
SLOTS = POOLS[POOL].slots
#: What a worker takes to be alive.
WORKER_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tried, and for how long."""

    workers: tuple[int, ...]
    seconds: float
    score_seconds: float = 1.5
    #: The line gets this much more than is expected to be scored: a start may take longer.
    spare: float = 1.3
    #: Shares of the ideal that the counts must reach, in percent.
    bars: tuple[tuple[int, float], ...] = ()

    @property
    def ideal(self) -> float:
        """Applications a second that one worker's slots can score."""
        return SLOTS / self.score_seconds

    @property
    def settle_seconds(self) -> float:
        """Until slots that began together with the start of a process do not matter any more."""
        return 2 * self.score_seconds

    @property
    def run_seconds(self) -> float:
        """Of all counts, their starts included."""
        each = self.seconds + self.settle_seconds
        return len(self.workers) * each + max(self.workers) * WORKER_SECONDS

    @property
    def jobs(self) -> int:
        """More than can be scored."""
        added = [after - before for before, after in pairwise((0, *self.workers))]
        return round(
            self.spare
            * sum(
                count * self.ideal * (self.seconds + self.settle_seconds + number * WORKER_SECONDS)
                for count, number in zip(self.workers, added, strict=True)
            )
        )


PLANS = {
    Size.FULL: Plan((1, 2, 3, 4, 8), 40.0, bars=((4, 99.0), (8, 97.0))),
    # In ten seconds one ending more or less is half a percent of a worker's.
    Size.QUICK: Plan((1, 2, 3, 4, 8), 8.0, bars=((4, 97.0), (8, 95.0))),
    Size.MINI: Plan((1, 2), 1.0, score_seconds=0.5, spare=2.0),
}


@dataclass(frozen=True, slots=True)
class Count:
    """So many workers at saturation."""

    workers: int
    #: Scored, and what their slots could have scored.
    per_second: float
    ideal: float
    #: The shortest that the line was meanwhile.
    least_waiting: int
    #: The most that waited for a database connection.
    waiters: int
    #: In use by Fairline and its services, and by the workers alone.
    cores: float
    worker_cores: float

    @property
    def percent(self) -> float:
        """Of the ideal."""
        return 100 * self.per_second / self.ideal

    def cells(self) -> tuple[str, ...]:
        """As a row of the report."""
        return (
            f"{self.workers}",
            f"{self.per_second:.2f}",
            f"{self.ideal:.2f}",
            f"{self.percent:.1f} %",
            f"{self.cores:.2f}",
            f"{self.worker_cores:.2f}",
            f"{self.least_waiting:,}",
            f"{self.waiters}",
        )


HEADINGS = (
    *("workers", "scored", "ideal", "share"),
    *("cores", "of them", "in line", "waiters"),
)


def per_worker(counts: Sequence[tuple[int, float]]) -> float:
    """The slope of the line through the origin that is nearest to all counts. Pure."""
    squares = sum(workers**2 for workers, _ in counts)
    return sum(workers * rate for workers, rate in counts) / squares if squares else 0.0


def judge(counts: Sequence[Count], plan: Plan, refused: int) -> Report:
    """The counts against the ideal."""
    by_workers = {count.workers: count for count in counts}
    each = per_worker([(count.workers, count.per_second) for count in counts])
    last = counts[-1]
    return Report(
        "scaling",
        TITLE,
        findings=[
            f"Each worker adds {each:.2f} applications a second, {100 * each / plan.ideal:.1f} % "
            f"of what its {SLOTS} slots can do at {plan.score_seconds:g} s each "
            f"({plan.ideal:.2f}/s).",
            f"{last.workers} workers score {last.per_second:.1f}/s of an ideal {last.ideal:.1f}/s "
            f"({last.percent:.1f} %). Fairline, PostgreSQL and RabbitMQ use {last.cores:.2f} cores "
            f"for that, {last.worker_cores:.2f} of them in the workers.",
        ],
        pictures=[Picture("scaling.png", "Applications scored a second by number of workers")],
        tables=[
            Table(
                "Scored a second; cores in use, of them by workers; least in line",
                HEADINGS,
                [count.cells() for count in counts],
            )
        ],
        bars=[
            *(
                Bar(
                    f"{workers} workers, of {workers * plan.ideal:.2f}/s",
                    by_workers[workers].percent,
                    ">=",
                    percent,
                    " %",
                )
                for workers, percent in plan.bars
            ),
            Bar(
                "least waiting for each slot while measured",
                min(count.least_waiting / (SLOTS * count.workers) for count in counts),
                ">=",
                1.0,
            ),
            Bar("waiters on a database pool of 2", max(c.waiters for c in counts), "<=", 0),
            Bar("submissions refused", refused, "<=", 0),
        ],
        data={
            "counts": [{**asdict(count), "percent": count.percent} for count in counts],
            "per_worker": each,
            "refused": refused,
            "submitted": plan.jobs,
        },
    )
