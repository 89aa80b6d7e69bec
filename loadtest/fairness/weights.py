"""Shares by weight: three tenants with very different jobs saturate one pool.

Each always has jobs waiting. What counts is slot time: whoever sends short jobs gets many of
them, whoever sends long ones few, and both the same part of the slots. The measurement begins
when what the first jobs were given too much has been paid back.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from loadtest.bars import Bar
from loadtest.fairness.house import House, Run, house
from loadtest.report import RESULTS, Report, Table

WORKERS = 4
SLOTS = 10 * WORKERS
#: Nobody knows at first what the jobs of whom take; what was given too much is paid back by then.
WARM_SECONDS = 60.0
MOST_DEVIATION = 5.0
#: In less time the tenant with long jobs has too few of them to judge its share to 5 %.
LEAST_SECONDS = 240.0
TOO_SHORT = "Too short to judge: 10-second jobs need some minutes until a share is exact to 5 %."
#: Most of the pool that a tenant could take, to have enough of its jobs in line.
MOST_SHARE = 1.5


@dataclass(frozen=True, slots=True)
class Crowd:
    """A tenant of the experiment."""

    name: str
    weight: float
    #: Lengths its jobs have, in turn.
    seconds: tuple[float, ...]

    def lengths(self) -> Iterator[float]:
        """One after the other, for ever."""
        chance = random.Random(self.name)
        for _ in itertools.count():
            yield chance.choice(self.seconds)

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
    with house("fairness", "medium", WORKERS) as stack, progress_bar(console) as progress:
        stack.fairline.await_slots("medium", SLOTS)
        ids = [fill(stack, crowd, seconds + WARM_SECONDS) for crowd in CROWDS]
        begin = time.time() + WARM_SECONDS
        watch(progress, "until first guesses are paid back", WARM_SECONDS)
        watch(progress, f"{SLOTS} slots shared", seconds)
        runs = stack.runs(ids)
    report = judge(ids, runs, begin, begin + seconds)
    draw(ids, runs, begin, begin + seconds)
    return report


def fill(stack: House, crowd: Crowd, seconds: float) -> int:
    """More jobs than it can get through; its id."""
    total = sum(each.weight for each in CROWDS)
    share = min(1.0, MOST_SHARE * crowd.weight / total + 0.05)
    jobs = int(share * SLOTS * seconds / crowd.mean_seconds) + 100
    tenant_id = stack.tenant(crowd.name.replace(" ", "-"), weight=crowd.weight)
    lengths = itertools.islice(crowd.lengths(), jobs)
    stack.submit(tenant_id, [{"seconds": each} for each in lengths])
    return tenant_id


def shares_between(
    ids: Sequence[int], runs: Sequence[Run], begin: float, end: float
) -> dict[int, float]:
    """Each tenant's part of the slot time between two moments."""
    used = dict.fromkeys(ids, 0.0)
    for each in runs:
        used[each.tenant_id] += each.seconds_in(begin, end)
    total = sum(used.values())
    return {tenant_id: part / total if total else 0.0 for tenant_id, part in used.items()}


def judge(ids: Sequence[int], runs: Sequence[Run], begin: float, end: float) -> Report:
    """Shares against weights."""
    total = sum(crowd.weight for crowd in CROWDS)
    found = shares_between(ids, runs, begin, end)
    rows, bars = [], []
    for tenant_id, crowd in zip(ids, CROWDS, strict=True):
        fair, got = crowd.weight / total, found[tenant_id]
        off = 100 * (got / fair - 1)
        ended = sum(each.tenant_id == tenant_id and begin < each.ended_at < end for each in runs)
        rows.append(
            (
                crowd.name,
                f"{crowd.weight:g}",
                " ".join(f"{each:g}" for each in crowd.seconds),
                f"{ended:,}",
                f"{100 * fair:.2f} %",
                f"{100 * got:.2f} %",
                f"{off:+.1f} %",
            )
        )
        bars.append(
            Bar(f"{crowd.name}: away from its weight", abs(off), "<=", MOST_DEVIATION, " %")
        )
    used = sum(each.seconds_in(begin, end) for each in runs)
    in_use = min(100.0, 100 * used / (SLOTS * (end - begin)))
    bars.append(Bar("slots in use", in_use, ">=", 97.0, " %"))
    return Report(
        "fairness",
        f"Three tenants saturate {SLOTS} slots for {end - begin:.0f} s",
        tables=[
            Table(
                "Slot time by tenant",
                ("tenant", "weight", "seconds a job", "ended", "fair", "got", "off"),
                rows,
            )
        ],
        bars=bars,
        notes=[TOO_SHORT] if end - begin < LEAST_SECONDS else [],
        data={"shares": {crowd.name: found[i] for i, crowd in zip(ids, CROWDS, strict=True)}},
    )


def draw(ids: Sequence[int], runs: Sequence[Run], begin: float, end: float) -> None:
    """The picture, beside the report."""
    from loadtest.fairness.picture import draw_shares

    width = max(2.0, (end - begin) / 60)
    steps = [begin + number * width for number in range(int((end - begin) / width))]
    lines = {crowd.name: list[float]() for crowd in CROWDS}
    sums = {crowd.name: list[float]() for crowd in CROWDS}
    for step in steps:
        now = shares_between(ids, runs, step, step + width)
        so_far = shares_between(ids, runs, begin, step + width)
        for tenant_id, crowd in zip(ids, CROWDS, strict=True):
            lines[crowd.name].append(100 * now[tenant_id])
            sums[crowd.name].append(100 * so_far[tenant_id])
    total = sum(crowd.weight for crowd in CROWDS)
    draw_shares(
        RESULTS / "fairness" / "fair-share.svg",
        [step + width - begin for step in steps],
        lines,
        sums,
        {crowd.name: 100 * crowd.weight / total for crowd in CROWDS},
        {crowd.name: describe(crowd) for crowd in CROWDS},
    )


def describe(crowd: Crowd) -> str:
    """A tenant for the legend."""
    lengths = ", ".join(f"{each:g}" for each in crowd.seconds)
    return f"weight {crowd.weight:g}, jobs of {lengths} s"


def watch(progress: Progress, name: str, seconds: float) -> None:
    """Let time pass, visibly."""
    task = progress.add_task(name, total=seconds)
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        progress.update(task, completed=passed)
        time.sleep(min(0.25, seconds - passed))
    progress.update(task, completed=seconds)


def progress_bar(console: Console) -> Progress:
    """How far it is."""
    return Progress(
        TextColumn("{task.description:<36}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
