"""Everything that one run of the comparison measured, as tables."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.figures import Sample, medians, percentile, percentiles
from loadtest.lab.peers.costs import HEADINGS, Cost, typical
from loadtest.lab.peers.killing import Killed
from loadtest.report import Table, table

FAIRLINE = "Fairline"
CELERY = "plain Celery"
#: Kinds of measurement in the order of the report, with the heading of their column.
JOB_KINDS = {
    "no-op end to end": "no-op, HTTP batch to done",
    "drain": "no-op, from a full queue",
    "10-ms end to end": "10-ms, HTTP batch to done",
}
#: The jobs whose cost is measured, per second and in words.
COST_MS, COST_RATE = 50, 100.0
COST_JOBS = f"a {COST_MS}-ms job at {COST_RATE:g} per second"


@dataclass(slots=True)
class Measured:
    """Filled by the experiment, read by the report and the pictures."""

    #: Contenders in the order of the report.
    names: list[str] = field(default_factory=list)
    tuning: dict[str, str] = field(default_factory=dict)
    #: Few and many, at which the accept rates were measured.
    connections: tuple[int, int] = (64, 256)
    samples: list[Sample] = field(default_factory=list)
    #: Milliseconds from submission to start, all rounds together.
    starts: dict[str, list[float]] = field(default_factory=dict)
    #: Megabytes by contender and part, after the last round.
    memory: dict[str, dict[str, float]] = field(default_factory=dict)
    killed: list[Killed] = field(default_factory=list)
    #: Of jobs at a fixed rate, all rounds.
    costs: list[Cost] = field(default_factory=list)
    #: Milliseconds to the response with an empty queue, and with a long one.
    idle_ms: list[float] = field(default_factory=list)
    lined_ms: list[float] = field(default_factory=list)
    #: How many jobs waited then.
    waiting: int = 0

    def sample(self, name: str) -> Sample:
        """The median of one measurement by its whole name."""
        return medians(self.samples)[name]

    def rate(self, name: str) -> float:
        """The same, without its latency."""
        return self.sample(name).rate

    def by_contender(self, what: str) -> dict[str, Sample]:
        """The medians of one kind of measurement, at few connections if there is a choice."""
        middle = medians(self.samples)
        names = {f"{what}: {name}{at}": name for name in self.names for at in ("", " @few")}
        return {name: middle[full] for full, name in names.items() if full in middle}

    def rates(self, what: str) -> dict[str, float]:
        """The median rates of one kind of measurement, by contender."""
        return {name: sample.rate for name, sample in self.by_contender(what).items()}

    def start_ms(self, share: float = 0.5) -> dict[str, float]:
        """A percentile of the time from submission to start, by contender."""
        return {name: percentile(values, share) for name, values in self.starts.items()}

    def megabytes(self) -> dict[str, float]:
        return {name: sum(parts.values()) for name, parts in self.memory.items()}

    def job_ms(self) -> dict[str, float]:
        """Processor milliseconds of a job in all processes together, by contender."""
        return {name: cost.total for name, cost in typical(self.costs).items()}

    def data(self) -> Mapping[str, Any]:
        """For ``report.json``."""
        return {
            "medians": [asdict(sample) for sample in medians(self.samples).values()],
            "rounds": [asdict(sample) for sample in self.samples],
            "start_ms": self.starts,
            "memory_mb": self.memory,
            "killed": [asdict(each) for each in self.killed],
            "costs": [asdict(each) for each in self.costs],
            "front_door_idle_ms": self.idle_ms,
            "front_door_lined_ms": self.lined_ms,
            "waiting": self.waiting,
            "tuning": self.tuning,
        }


def guarantees() -> Table:
    """What each contender guarantees, from their documentation and sources."""
    with (Path(__file__).parent / "guarantees.csv").open(newline="") as opened:
        headings, *lines = csv.reader(opened)
    return Table("What each guarantees", headings, lines)


GUARANTEES = guarantees()


def times(rate: float, base: Sample) -> str:
    """How many times another's rate; empty if that is nothing."""
    return f"{rate / base.rate:.2f}" if base.rate else ""


def figures(name: str, sample: Sample) -> tuple[str, ...]:
    latencies = (sample.p50_ms, sample.p99_ms)
    texts = ("" if value is None else f"{value:.1f}" for value in latencies)
    return (name, f"{sample.rate:,.0f}", *texts)


def tables(found: Measured) -> list[Table]:
    return [
        *(make(found) for make in (accept_table, poll_table, jobs_table, start_table)),
        *(kill_table(found), memory_table(found), cost_table(found), GUARANTEES),
        Table("How each was set up", ("", "settings"), list(found.tuning.items())),
    ]


def accept_table(found: Measured) -> Table:
    """APIs at 64 connections, and Fairline's against the empty route at 256."""
    samples, (at_few, at_many) = found.by_contender("accept"), found.connections
    ours = found.sample(f"accept: {FAIRLINE} @many")
    few, many = (found.sample(f"empty Flask route @{at}") for at in ("few", "many"))
    lines = [
        *((name, each, few, times(each.rate, samples[CELERY])) for name, each in samples.items()),
        ("empty Flask route", few, few, ""),
        (f"Fairline, {at_many} connections", ours, many, ""),
        (f"empty Flask route, {at_many} connections", many, many, ""),
    ]
    return Table(
        f"Accept rate through HTTP, one job per request, {at_few} connections",
        ("", "requests/s", "p50 ms", "p99 ms", "x plain Celery", "x empty route"),
        [
            (*figures(name, each), celery, times(each.rate, empty))
            for name, each, empty, celery in lines
        ],
    )


def poll_table(found: Measured) -> Table:
    empty = found.sample("empty Flask route @few")
    polls = {kind: found.sample(f"poll: {kind} @few") for kind in ("pending", "304", "terminal")}
    return Table(
        f"Polls of Fairline, {found.connections[0]} connections",
        ("", "requests/s", "p50 ms", "p99 ms", "x empty route"),
        [(*figures(kind, each), times(each.rate, empty)) for kind, each in polls.items()],
    )


def jobs_table(found: Measured) -> Table:
    columns = [found.rates(kind) for kind in JOB_KINDS]
    rows = [
        (name, *(f"{column[name]:,.0f}" if name in column else "" for column in columns))
        for name in found.names
    ]
    return Table("Jobs per second", ("", *JOB_KINDS.values()), rows)


def start_table(found: Measured) -> Table:
    rows = [
        (name, str(len(each)), *map("{:.1f}".format, percentiles(each, 0.5, 0.95, 0.99)))
        for name, each in found.starts.items()
    ]
    title = "From submission to start, one job at a time on an idle stack"
    return Table(title, ("", "jobs", "p50 ms", "p95 ms", "p99 ms"), rows)


def kill_table(found: Measured) -> Table:
    return table(
        "The worker killed -9 in mid-run, then another one started",
        {
            "": "{.name}",
            "promised": "{.survival.promised}",
            "lost": "{.survival.lost}",
            "interrupted": "{.survival.interrupted}",
            "ended twice": "{.survival.repeated}",
            "all back after s": lambda k: "never" if k.survival.lost else f"{k.seconds:.1f}",
        },
        found.killed,
    )


def memory_table(found: Measured) -> Table:
    parts = ("API", "scheduler", "workers")
    return Table(
        "Memory after the run, MB; pages shared between processes count once",
        ("", *parts, "together"),
        [
            (
                name,
                *(f"{sizes[part]:.0f}" if part in sizes else "" for part in parts),
                f"{sum(sizes.values()):.0f}",
            )
            for name, sizes in found.memory.items()
        ],
    )


def cost_table(found: Measured) -> Table:
    return Table(
        f"Processor milliseconds of {COST_JOBS}; `make lab-cost` has more",
        ("", *HEADINGS),
        [(name, *cost.cells()) for name, cost in typical(found.costs).items()],
    )
