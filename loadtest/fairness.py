"""``python -m loadtest.fairness``: fair share on a running stack, and the picture of it.

``weights``: three tenants with very different jobs saturate one pool, each with jobs waiting all
the time. What counts is slot time: a tenant with short jobs gets many of them run, one with long
jobs few, and both the same part of the slots. The measurement begins when wrong estimates of the
first jobs have been corrected. ``flood``: one tenant submits 100,000 jobs beside two that submit
steadily. ``free``: a thousand free accounts submit beside a paying tenant.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from rich.console import Console
from sqlalchemy import Engine

from app.tenants.changes import issue_key
from loadtest.figures import percentile
from loadtest.fleet import admit, rows, running_fairline, tenant_id, until
from loadtest.forecasts import error_bar
from loadtest.lab.pictures import COLOURS, picture
from loadtest.report import RESULTS, Bar, Report, Screen, Table, command, table
from loadtest.stampede import SteadyTenant, column, read_waits, unstarted

WORKERS = 4
SLOTS = 10 * WORKERS
#: Until the duration of each tenant's jobs is known, and what was given too much is paid back.
WARM_SECONDS = 60.0
MOST_DEVIATION = 5.0
#: In less time the tenant with long jobs has too few of them to judge its share to 5 %.
LEAST_SECONDS = 240.0
TOO_SHORT = "Too short to judge: 10-second jobs need some minutes until a share is exact to 5 %."
#: Jobs queued for a tenant, of what its share of the pool could run.
MOST_SHARE = 1.5
HEADINGS = ("tenant", "weight", "seconds per job", "ended", "fair", "got", "off")

RUNS = """
    SELECT tenant_id, extract(epoch FROM started_at)::float8 AS started,
           extract(epoch FROM coalesce(finished_at, clock_timestamp()))::float8 AS ended
    FROM jobs WHERE started_at IS NOT NULL AND status IN ('running', 'succeeded')
      AND tenant_id = ANY (CAST(:tenants AS bigint[]))
"""


def read_runs(engine: Engine, tenants: Sequence[int]) -> Sequence[Any]:
    return rows(engine, RUNS, tenants=list(tenants))


def slots_used(
    tenants: Iterable[int], runs: Sequence[Any], begin: float, end: float
) -> dict[int, float]:
    """Slots that each tenant used between two moments, on average."""
    used = dict.fromkeys(tenants, 0.0)
    for run in runs:
        used[run.tenant_id] += max(0.0, min(run.ended, end) - max(run.started, begin))
    return {tenant: seconds / (end - begin) for tenant, seconds in used.items()}


@dataclass(frozen=True, slots=True)
class Crowd:
    """A tenant of the experiment with weights."""

    name: str
    weight: float
    #: Durations of its jobs.
    seconds: tuple[float, ...]

    @property
    def fair_share(self) -> float:
        """In percent."""
        return 100 * self.weight / sum(each.weight for each in CROWDS)


CROWDS = (
    Crowd("short jobs", 10, (0.1,)),
    Crowd("long jobs", 10, (10.0,)),
    Crowd("mixed jobs", 100, (0.1, 1.0, 3.0, 10.0)),
)


def weights(seconds: float, console: Console) -> Report:
    with running_fairline("fairness", "medium", WORKERS) as (_, engine), Screen(console) as screen:
        crowds = {fill(engine, crowd, seconds + WARM_SECONDS): crowd for crowd in CROWDS}
        begin = time.time() + WARM_SECONDS
        screen.wait("until first estimates are corrected", WARM_SECONDS)
        screen.wait(f"{SLOTS} slots shared", seconds)
        runs, error = read_runs(engine, [*crowds]), error_bar(engine)
    draw(crowds, runs, begin, begin + seconds)
    report = judge(crowds, runs, begin, begin + seconds)
    return replace(report, bars=[*report.bars, error])


def fill(engine: Engine, crowd: Crowd, seconds: float) -> int:
    """More jobs than it can get through; its id."""
    share = min(1.0, MOST_SHARE * crowd.fair_share / 100 + 0.05)
    jobs = int(share * SLOTS * seconds / fmean(crowd.seconds)) + 100
    tenant = tenant_id(engine, crowd.name.replace(" ", "-"), weight=crowd.weight)
    durations = random.Random(crowd.name).choices(crowd.seconds, k=jobs)
    admit(engine, tenant, "sleep", "medium", [{"seconds": each} for each in durations])
    return tenant


def judge(crowds: Mapping[int, Crowd], runs: Sequence[Any], begin: float, end: float) -> Report:
    """Shares against weights."""
    used = slots_used(crowds, runs, begin, end)
    total = sum(used.values())
    lines, bars = [], []
    for tenant, crowd in crowds.items():
        fair, got = crowd.fair_share, 100 * used[tenant] / max(total, 1e-9)
        off = 100 * (got / fair - 1)
        ended = sum(run.tenant_id == tenant and begin < run.ended < end for run in runs)
        durations = " ".join(f"{each:g}" for each in crowd.seconds)
        shares = (f"{fair:.2f} %", f"{got:.2f} %", f"{off:+.1f} %")
        lines.append((crowd.name, f"{crowd.weight:g}", durations, f"{ended:,}", *shares))
        claim = f"{crowd.name}: away from its weight"
        bars.append(Bar(claim, abs(off), "<=", MOST_DEVIATION, " %"))
    bars.append(Bar("slots in use", min(100.0, 100 * total / SLOTS), ">=", 97.0, " %"))
    return Report(
        "fairness",
        f"Three tenants saturate {SLOTS} slots for {end - begin:.0f} s",
        tables=[Table("Slot time by tenant", HEADINGS, lines)],
        bars=bars,
        notes=[TOO_SHORT] if end - begin < LEAST_SECONDS else [],
        data={"shares": {c.name: used[i] / max(total, 1e-9) for i, c in crowds.items()}},
    )


def draw(crowds: Mapping[int, Crowd], runs: Sequence[Any], begin: float, end: float) -> None:
    """What each tenant got in every interval, and up to it, against its weight."""
    width = max(2.0, (end - begin) / 60)
    seconds = [(number + 1) * width for number in range(int((end - begin) / width))]
    now = [slots_used(crowds, runs, begin + each - width, begin + each) for each in seconds]
    so_far = [slots_used(crowds, runs, begin, begin + each) for each in seconds]
    with picture(RESULTS / "fairness" / "fair-share.svg") as axes:
        for (tenant, crowd), colour in zip(crowds.items(), COLOURS, strict=False):
            thin, thick = (
                [100 * each[tenant] / max(sum(each.values()), 1e-9) for each in used]
                for used in (now, so_far)
            )
            axes.plot(seconds, thin, color=colour, alpha=0.35, linewidth=1)
            durations = ", ".join(f"{each:g}" for each in crowd.seconds)
            label = f"{crowd.name} (weight {crowd.weight:g}, jobs of {durations} s)"
            axes.plot(seconds, thick, color=colour, linewidth=2.2, label=label)
            axes.axhline(crowd.fair_share, color=colour, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.set(xlabel="seconds of contention", ylabel="share of slot time, %")
        axes.set(ylim=(0, 100), xlim=(0, max(seconds)))
        axes.legend(loc="center right")
        title = "Slot time by tenant. Thick: so far. Thin: at the moment. Dotted: its weight."
        axes.set_title(title)


FLOOD = 100_000
FREE_ACCOUNTS = 1_000
MOST_RATIO = 2.0
MOST_LOST = 5.0
STEADY = ("steady-1", "steady-2")
STEADY_PER_SECOND = 2.0
JOBS = "loadtest.baselines.peer_jobs"
NAP = {"ms": 50}
LASTING = {"seconds": 1.5}
FLOOD_STEP = 5_000
#: Longest wait for an idle stack.
IDLE_SECONDS = 60.0
#: Most that the creation of the free accounts takes.
ACCOUNTS_SECONDS = 60.0
#: Before each measurement.
SETTLE_SECONDS = 5.0
#: Columns of waits.
WAIT_COLUMNS: dict[str, Any] = {
    "": "{0[0]}",
    "jobs": lambda row: f"{len(row[1]):,}",
    "p50": column(0.5),
    "p90": column(0.9),
    "p99": column(0.99),
    "worst": column(1.0),
}


def flood(seconds: float, jobs: int, console: Console) -> Report:
    """Two tenants submit 2 jobs per second each; then a third floods."""
    with (
        running_fairline("flood", "short", job_modules=JOBS) as (fairline, engine),
        Screen(console) as screen,
    ):
        ids = [tenant_id(engine, name) for name in STEADY]
        crowd = tenant_id(engine, "crowd")
        job = {"type": "peer.nap", "payload": NAP}
        keys = [issue_key(engine, name, "loadtest").key for name in STEADY]
        steady = [SteadyTenant(fairline.port, STEADY_PER_SECOND, job, key) for key in keys]
        with ExitStack() as senders:
            for each in steady:
                senders.enter_context(each)
            quiet_from = time.time() + SETTLE_SECONDS
            screen.wait("quiet", SETTLE_SECONDS + seconds)
            quiet_until = time.time()
            for step in screen.steps("the flood comes in", -(-jobs // FLOOD_STEP)):
                count = min(FLOOD_STEP, jobs - step * FLOOD_STEP)
                admit(engine, crowd, "peer.nap", "short", [NAP] * count)
            flooded_from = time.time()
            screen.wait(f"{jobs:,} jobs of another tenant", seconds)
            left = unstarted(engine, [crowd])
            flooded_until = time.time()
        if unanswered := sum(each.unanswered for each in steady):
            raise RuntimeError(f"{unanswered} submissions of the steady tenants got no 202")
        until(lambda: not unstarted(engine, ids), IDLE_SECONDS, "steady tenants' jobs to start")
        waits, error = read_waits(engine, ids, {}), error_bar(engine)
    phases = {"quiet": (quiet_from, quiet_until), "flooded": (flooded_from, flooded_until)}
    found = {
        name: [wait for wait in waits if since <= wait.created_at < end]
        for name, (since, end) in phases.items()
    }
    quiet, flooded = (percentile([w.seconds for w in each], 0.99) for each in found.values())
    return Report(
        *("fairness-flood", f"One tenant submits {jobs:,} jobs, two others 2 per second each"),
        tables=[table("The two others: from submission to start", WAIT_COLUMNS, found.items())],
        bars=[
            Bar("p99 of the others, flooded to quiet", flooded / quiet, "<=", MOST_RATIO, " x"),
            Bar("jobs of the flood still waiting at the end", left, ">=", 1),
            error,
        ],
    )


def free_accounts(seconds: float, console: Console) -> Report:
    """A paying tenant saturates the pool; then a thousand free accounts want it too."""
    with running_fairline("free", "medium", WORKERS) as (_, engine), Screen(console) as screen:
        paying = tenant_id(engine, "paying")
        lasts = 3 * (seconds + SETTLE_SECONDS) + ACCOUNTS_SECONDS
        jobs = int(SLOTS * lasts / LASTING["seconds"])
        admit(engine, paying, "sleep", "medium", [LASTING] * jobs)
        begin = time.time() + SETTLE_SECONDS
        screen.wait("a paying tenant alone", SETTLE_SECONDS + seconds)
        free = [tenant_id(engine, f"free-{number}", "free") for number in range(FREE_ACCOUNTS)]
        for each in free:
            admit(engine, each, "sleep", "medium", [LASTING] * 5, express=False)
        middle = time.time() + SETTLE_SECONDS
        screen.wait(f"with {FREE_ACCOUNTS:,} free accounts", SETTLE_SECONDS + seconds)
        end = time.time()
        runs, error = read_runs(engine, [paying, *free]), error_bar(engine)
    alone = sum(slots_used([paying, *free], runs, begin, begin + seconds).values())
    used = slots_used([paying, *free], runs, middle, end)
    kept, served = used[paying], sum(used[each] > 0 for each in free)
    lost = 100 * (1 - kept / alone)
    others = 100 * (1 - kept / max(sum(used.values()), 1e-9))
    return Report(
        *("free", f"{FREE_ACCOUNTS:,} free accounts flood {SLOTS} slots"),
        tables=[
            Table(
                "Slots of the paying tenant",
                ("", "slots", "of the pool"),
                [
                    ("alone", f"{alone:.1f}", f"{100 * alone / SLOTS:.1f} %"),
                    ("with the flood", f"{kept:.1f}", f"{100 * kept / SLOTS:.1f} %"),
                    ("free accounts", f"{served} served", f"{others:.1f} %"),
                ],
            )
        ],
        bars=[
            Bar("capacity that the paying tenant lost", lost, "<=", MOST_LOST, " %"),
            Bar("free accounts that got something", served, ">=", 1),
            error,
        ],
    )


def run(asked: argparse.Namespace, console: Console) -> Report:
    if asked.experiment == "weights":
        return weights(asked.seconds or 300.0, console)
    if asked.experiment == "flood":
        return flood(asked.seconds or 60.0, asked.jobs, console)
    return free_accounts(asked.seconds or 60.0, console)


FLAGS = (
    ("experiment", ("weights", "flood", "free"), "see above"),
    ("--seconds", 0.0, "of each measurement; 0: 300 for weights, else 60"),
    ("--jobs", FLOOD, "of the flood"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.fairness", __doc__, run, *FLAGS))
