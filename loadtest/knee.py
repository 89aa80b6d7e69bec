"""``python -m loadtest.knee``: what happens at and beyond the capacity of the workers.

Beyond: one medium worker, 10 slots, 1.5 s of scoring, is offered 12 submissions a second, almost
twice what it can score. It must go on at its capacity, and the front door must not notice. Below:
four such workers are offered 20 a second and must keep up. Both with two database connections a
process, on which nobody may wait in the second case.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from sqlalchemy import text

from loadtest.bars import Bar
from loadtest.fairline import Fairline
from loadtest.fleet import fleet
from loadtest.open_loop import Arrival, Arrivals, Sender
from loadtest.percentiles import percentile
from loadtest.pool_watch import PoolReading, most_waiters, watch_pools
from loadtest.report import RESULTS, Report, Table
from loadtest.steady import steady_rate

SCORE_SECONDS = 1.5
SLOTS = 10
CAPACITY = SLOTS / SCORE_SECONDS
#: The steady part begins here.
SETTLED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of arrivals and what became of it."""

    name: str
    per_second: float
    seconds: float
    arrivals: list[Arrival]
    #: When each job of this phase ended, by id, in seconds since the epoch.
    finished_at: dict[str, float]
    pools: list[PoolReading]

    @property
    def begin(self) -> float:
        return self.arrivals[0].intended_at

    @property
    def completed_per_second(self) -> float:
        """In the steady part."""
        settled = min(SETTLED_SECONDS, self.seconds / 3)
        return steady_rate(
            list(self.finished_at.values()), self.begin + settled, self.begin + self.seconds
        )

    @property
    def refused(self) -> int:
        """Submissions that did not get a 202."""
        return sum(arrival.status != 202 for arrival in self.arrivals)

    def front_door_ms(self, share: float) -> float:
        """A percentile of the front door's latency."""
        return 1000 * percentile(sorted(a.latency_seconds for a in self.arrivals), share)

    def scored_seconds(self, share: float) -> float:
        """A percentile of the time from the intended start to the score."""
        waits = (
            self.finished_at.get(a.id, float("inf")) - a.intended_at
            for a in self.arrivals
            if a.status == 202
        )
        return percentile(sorted(waits), share)

    def cells(self) -> tuple[str, ...]:
        """The phase as a row of the report."""
        return (
            self.name,
            f"{self.per_second:g}",
            f"{self.completed_per_second:.3f}",
            f"{self.front_door_ms(0.5):.1f}",
            f"{self.front_door_ms(0.95):.1f}",
            f"{self.front_door_ms(0.99):.1f}",
            f"{self.scored_seconds(0.99):.2f}",
            str(most_waiters(self.pools)),
        )


HEADINGS = (
    *("", "offered/s", "completed/s", "front door p50 ms", "p95 ms", "p99 ms"),
    *("submit to scored p99 s", "waiters"),
)


def run_phase(
    fairline: Fairline, name: str, per_second: float, seconds: float, linger: float
) -> Phase:
    """Offer the arrivals, watch the pools, and read from the rows what was completed.

    ``linger`` is how long to wait for the last jobs to end; what has not ended by then counts as
    never scored.
    """
    sender = Sender(Arrivals(fairline.port, per_second, seconds))
    pools = watch_pools(fairline.url, sender.is_over)
    arrivals = sender.finish()
    deadline = arrivals[-1].intended_at + linger
    ids = [arrival.id for arrival in arrivals if arrival.status == 202]
    pools += watch_pools(
        fairline.url,
        lambda: time.time() > deadline or len(read_endings(fairline, ids)) == len(ids),
    )
    return Phase(name, per_second, seconds, arrivals, read_endings(fairline, ids), pools)


def read_endings(fairline: Fairline, ids: Sequence[str]) -> dict[str, float]:
    """When each of these jobs was scored, if it was."""
    with fairline.engine() as engine, engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT id::text, extract(epoch FROM finished_at)::float8 FROM jobs "
                "WHERE id = ANY (CAST(:ids AS uuid[])) AND status = 'succeeded'"
            ),
            {"ids": list(ids)},
        )
        return {row[0]: row[1] for row in rows}


def run(asked: argparse.Namespace, console: Console) -> list[Phase]:
    """Before the knee, beyond it with one worker, below it with four."""
    phases = []
    with fleet("knee") as started:
        fairline = Fairline(
            started,
            served_pools="medium",
            score_seconds=str(SCORE_SECONDS),
            db_pool_size="2",
        )
        for name, workers, per_second, seconds, linger in (
            ("one worker, calm", 1, 1.0, asked.calm_seconds, 5.0),
            ("one worker, beyond capacity", 1, 12.0, asked.seconds, 0.0),
            ("four workers", 4, 20.0, asked.seconds, 10.0),
        ):
            names = start(fairline, workers)
            console.print(f"{name}: {per_second:g}/s for {seconds:g} s")
            phases.append(run_phase(fairline, name, per_second, seconds, linger))
            started.stop("api", *names, "scheduler")
            empty_line(fairline)
    return phases


def start(fairline: Fairline, workers: int) -> list[str]:
    """API, scheduler and so many workers, ready."""
    fairline.start_api()
    fairline.start_scheduler()
    names = [fairline.start_worker("medium", number) for number in range(1, workers + 1)]
    fairline.await_ready()
    fairline.await_slots("medium", SLOTS * workers)
    return names


def empty_line(fairline: Fairline) -> None:
    """Drop what a phase left waiting, so that the next begins with an empty line."""
    with fairline.engine() as engine, engine.connect() as connection:
        connection.execute(text("DELETE FROM jobs WHERE finished_at IS NULL"))


def judge(phases: Sequence[Phase]) -> Report:
    """The bars."""
    calm, beyond, four = phases
    p95 = beyond.front_door_ms(0.95) / calm.front_door_ms(0.95)
    completed = beyond.completed_per_second / CAPACITY
    return Report(
        "knee",
        "At and beyond the capacity of the workers",
        tables=[Table("Phases", HEADINGS, [phase.cells() for phase in phases])],
        bars=[
            Bar("one worker at 12/s: completions of its 6.67/s", 100 * completed, ">=", 99.0, " %"),
            Bar("front-door p95 at 12/s, of that at 1/s", p95, "<=", 1.5, " x"),
            Bar("four workers at 20/s: completed", four.completed_per_second, ">=", 19.8, "/s"),
            Bar("p99 from submission to score", four.scored_seconds(0.99), "<=", 2.5, " s"),
            Bar("waiters on a database pool", most_waiters(four.pools), "<=", 0),
            Bar("submissions refused", sum(phase.refused for phase in phases), "<=", 0),
        ],
        data={"phases": [dict(zip(HEADINGS, p.cells(), strict=True)) for p in phases]},
    )


def write_seconds(phases: Sequence[Phase]) -> None:
    """Second by second, as CSV."""
    folder = RESULTS / "knee"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "seconds.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("phase", "second", "submitted", "completed", "slowest_ms", "waiters"))
        for phase in phases:
            completed = Counter(int(at - phase.begin) for at in phase.finished_at.values())
            waiters: Counter[int] = Counter()
            for reading in phase.pools:
                waiters[int(reading.at - phase.begin)] = max(reading.waiting.values(), default=0)
            for second in range(int(phase.seconds)):
                these = [a for a in phase.arrivals if int(a.intended_at - phase.begin) == second]
                slowest = 1000 * max((a.latency_seconds for a in these), default=0.0)
                rows.writerow(
                    (
                        *(phase.name, second, len(these), completed[second]),
                        *(f"{slowest:.1f}", waiters[second]),
                    )
                )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.knee", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (60)")
    parser.add_argument("--calm-seconds", type=float, default=30.0, help="at 1/s before (30)")
    parser.add_argument("--quick", action="store_true", help="20 s of load, 10 s of calm")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.seconds, asked.calm_seconds = 20.0, 10.0
    console = Console()
    phases = run(asked, console)
    report = judge(phases)
    report.show(console)
    write_seconds(phases)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
