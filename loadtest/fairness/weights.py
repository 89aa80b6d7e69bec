"""Shares by weight: three tenants with very different jobs saturate one pool.

Each always has jobs waiting. What counts is slot time: a tenant with short jobs gets many of them
run, one with long jobs few, and both the same part of the slots. The measurement begins when wrong
estimates of the first jobs have been corrected.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from sqlalchemy import Engine

from loadtest.fleet import admit, rows, running_fairline, tenant_id
from loadtest.lab.pictures import COLOURS, picture
from loadtest.report import RESULTS, Bar, Report, Screen, Table
from models.jobs.ids import new_id
from models.jobs.submission import Submission

RUNS = """
    SELECT tenant_id, extract(epoch FROM started_at)::float8,
           extract(epoch FROM coalesce(finished_at, clock_timestamp()))::float8
    FROM jobs WHERE started_at IS NOT NULL AND status IN ('running', 'succeeded')
      AND tenant_id = ANY (CAST(:tenants AS bigint[]))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that had a slot."""

    tenant_id: int
    started_at: float
    ended_at: float

    def seconds_in(self, begin: float, end: float) -> float:
        """How much of it lies between two moments."""
        return max(0.0, min(self.ended_at, end) - max(self.started_at, begin))


def submit(
    engine: Engine,
    tenant: int,
    payloads: Iterable[Mapping[str, Any]],
    type_name: str = "sleep",
    pool: str = "medium",
    tier: str = "standard",
) -> None:
    """Queue jobs."""
    kind, express = (tenant, type_name, pool), tier != "free"
    admit(
        engine,
        (Submission(new_id(), *kind, json.dumps(each), express=express) for each in payloads),
    )


def read_runs(engine: Engine, tenants: Sequence[int]) -> list[Run]:
    """Every run of these tenants so far."""
    return [Run(*row) for row in rows(engine, RUNS, tenants=list(tenants))]


WORKERS = 4
SLOTS = 10 * WORKERS
#: Until the duration of each tenant's jobs is known, and what was given too much is paid back.
WARM_SECONDS = 60.0
MOST_DEVIATION = 5.0
#: In less time the tenant with long jobs has too few of them to judge its share to 5 %.
LEAST_SECONDS = 240.0
TOO_SHORT = "Too short to judge: 10-second jobs need some minutes until a share is exact to 5 %."
#: Most of the pool that a tenant could use, of its share, to have enough of its jobs queued.
MOST_SHARE = 1.5


@dataclass(frozen=True, slots=True)
class Crowd:
    """A tenant of the experiment."""

    name: str
    weight: float
    #: Durations of its jobs.
    seconds: tuple[float, ...]

    @property
    def mean_seconds(self) -> float:
        """Of one of its jobs."""
        return sum(self.seconds) / len(self.seconds)


CROWDS = (
    Crowd("short jobs", 10, (0.1,)),
    Crowd("long jobs", 10, (10.0,)),
    Crowd("mixed jobs", 100, (0.1, 1.0, 3.0, 10.0)),
)


def run(seconds: float, console: Console) -> Report:
    """Saturate, measure, draw."""
    with (
        running_fairline("fairness", "medium", WORKERS) as (_, engine),
        Screen(console) as screen,
    ):
        ids = [fill(engine, crowd, seconds + WARM_SECONDS) for crowd in CROWDS]
        begin = time.time() + WARM_SECONDS
        screen.wait("until first estimates are corrected", WARM_SECONDS)
        screen.wait(f"{SLOTS} slots shared", seconds)
        runs = read_runs(engine, ids)
    report = judge(ids, runs, begin, begin + seconds)
    draw(ids, runs, begin, begin + seconds)
    return report


def fill(engine: Engine, crowd: Crowd, seconds: float) -> int:
    """More jobs than it can get through; its id."""
    total = sum(each.weight for each in CROWDS)
    share = min(1.0, MOST_SHARE * crowd.weight / total + 0.05)
    jobs = int(share * SLOTS * seconds / crowd.mean_seconds) + 100
    tenant = tenant_id(engine, crowd.name.replace(" ", "-"), weight=crowd.weight)
    durations = random.Random(crowd.name).choices(crowd.seconds, k=jobs)
    submit(engine, tenant, [{"seconds": each} for each in durations])
    return tenant


def shares_between(
    ids: Sequence[int], runs: Sequence[Run], begin: float, end: float
) -> dict[int, float]:
    """Each tenant's part of the slot time between two moments."""
    used = dict.fromkeys(ids, 0.0)
    for each in runs:
        used[each.tenant_id] += each.seconds_in(begin, end)
    total = sum(used.values())
    return {tenant_id: part / total if total else 0.0 for tenant_id, part in used.items()}


HEADINGS = ("tenant", "weight", "seconds per job", "ended", "fair", "got", "off")


def judge(ids: Sequence[int], runs: Sequence[Run], begin: float, end: float) -> Report:
    """Shares against weights."""
    total = sum(crowd.weight for crowd in CROWDS)
    found = shares_between(ids, runs, begin, end)
    lines, bars = [], []
    for tenant, crowd in zip(ids, CROWDS, strict=True):
        fair, got = 100 * crowd.weight / total, 100 * found[tenant]
        off = 100 * (got / fair - 1)
        ended = sum(each.tenant_id == tenant and begin < each.ended_at < end for each in runs)
        lengths = " ".join(f"{each:g}" for each in crowd.seconds)
        shares = (f"{fair:.2f} %", f"{got:.2f} %", f"{off:+.1f} %")
        lines.append((crowd.name, f"{crowd.weight:g}", lengths, f"{ended:,}", *shares))
        claim = f"{crowd.name}: away from its weight"
        bars.append(Bar(claim, abs(off), "<=", MOST_DEVIATION, " %"))
    used = sum(each.seconds_in(begin, end) for each in runs)
    in_use = min(100.0, 100 * used / (SLOTS * (end - begin)))
    bars.append(Bar("slots in use", in_use, ">=", 97.0, " %"))
    return Report(
        "fairness",
        f"Three tenants saturate {SLOTS} slots for {end - begin:.0f} s",
        tables=[Table("Slot time by tenant", HEADINGS, lines)],
        bars=bars,
        notes=[TOO_SHORT] if end - begin < LEAST_SECONDS else [],
        data={"shares": {crowd.name: found[i] for i, crowd in zip(ids, CROWDS, strict=True)}},
    )


def draw(ids: Sequence[int], runs: Sequence[Run], begin: float, end: float) -> None:
    """What each tenant got in every interval, and up to it, against its weight."""
    width = max(2.0, (end - begin) / 60)
    ends = [begin + (number + 1) * width for number in range(int((end - begin) / width))]
    now = [shares_between(ids, runs, each - width, each) for each in ends]
    so_far = [shares_between(ids, runs, begin, each) for each in ends]
    seconds = [each - begin for each in ends]
    total = sum(crowd.weight for crowd in CROWDS)
    with picture(RESULTS / "fairness" / "fair-share.svg") as axes:
        for tenant, crowd, colour in zip(ids, CROWDS, COLOURS, strict=False):
            thin, thick = ([100 * each[tenant] for each in shares] for shares in (now, so_far))
            axes.plot(seconds, thin, color=colour, alpha=0.35, linewidth=1)
            durations = ", ".join(f"{each:g}" for each in crowd.seconds)
            label = f"{crowd.name} (weight {crowd.weight:g}, jobs of {durations} s)"
            axes.plot(seconds, thick, color=colour, linewidth=2.2, label=label)
            fair = 100 * crowd.weight / total
            axes.axhline(fair, color=colour, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.set(xlabel="seconds of contention", ylabel="share of slot time, %")
        axes.set(ylim=(0, 100), xlim=(0, max(seconds)))
        axes.legend(loc="center right")
        axes.set_title(
            "Slot time by tenant. Thick: so far. Thin: at the moment. Dotted: its weight."
        )
