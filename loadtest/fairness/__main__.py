"""``python -m loadtest.fairness``: fair share on a running stack, and the picture of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console

from app.tenants.changes import issue_key
from loadtest.fairness import weights
from loadtest.fairness.weights import SLOTS, WORKERS, read_runs, shares_between, submit
from loadtest.figures import percentile
from loadtest.fleet import running_fairline, tenant_id, until
from loadtest.report import Bar, Report, Screen, Table, table
from loadtest.stampede import SteadyTenant, p, read_waits, unstarted

FLOOD = 100_000
FREE_ACCOUNTS = 1_000
MOST_RATIO = 2.0
MOST_LOST = 5.0
STEADY = ("steady-1", "steady-2")
STEADY_PER_SECOND = 2.0
#: Columns of waits.
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}
JOBS = "loadtest.baselines.peer_jobs"
NAP = {"ms": 50}
JOB_SECONDS = 1.5
FLOOD_STEP = 5_000
#: Longest wait for an idle stack.
IDLE_SECONDS = 60.0
#: Before each measurement.
SETTLE_SECONDS = 5.0


def flood(seconds: float, jobs: int, console: Console) -> Report:
    """Two tenants submit 2 jobs per second each; then a third floods."""
    with (
        running_fairline("flood", "short", job_modules=JOBS) as (fairline, engine),
        Screen(console) as screen,
    ):
        ids = [tenant_id(engine, name) for name in STEADY]
        crowd = tenant_id(engine, "crowd")
        with ExitStack() as senders:
            steady = [
                SteadyTenant(
                    *(fairline.port, STEADY_PER_SECOND),
                    {"type": "peer.nap", "payload": NAP},
                    issue_key(engine, name, "loadtest").key,
                )
                for name in STEADY
            ]
            for each in steady:
                senders.enter_context(each)
            quiet_from = time.time() + SETTLE_SECONDS
            screen.wait("quiet", SETTLE_SECONDS + seconds)
            quiet_until = time.time()
            for step in screen.steps("the flood comes in", -(-jobs // FLOOD_STEP)):
                count = min(FLOOD_STEP, jobs - step * FLOOD_STEP)
                submit(engine, crowd, [NAP] * count, "peer.nap", "short")
            crowded_from = time.time()
            screen.wait(f"{jobs:,} jobs of another tenant", seconds)
            left = unstarted(engine, [crowd])
            crowded_until = time.time()
        if unanswered := sum(each.unanswered for each in steady):
            raise RuntimeError(f"{unanswered} submissions of the steady tenants got no 202")
        until(lambda: not unstarted(engine, ids), IDLE_SECONDS, "steady tenants' jobs to start")
        waits = read_waits(engine, ids, {})
    quiet, crowded = (
        [wait for wait in waits if since <= wait.created_at < end]
        for since, end in ((quiet_from, quiet_until), (crowded_from, crowded_until))
    )
    ratio = percentile([wait.seconds for wait in crowded], 0.99) / percentile(
        [wait.seconds for wait in quiet], 0.99
    )
    columns: dict[str, Any] = {
        "": "{0[0]}",
        "jobs": lambda row: f"{len(row[1]):,}",
        **{name: p(share) for name, share in SHARES.items()},
    }
    found = (("quiet", quiet), ("flooded", crowded))
    return Report(
        *("flood", f"One tenant submits {jobs:,} jobs, two others 2 per second each"),
        tables=[table("The two others: from submission to start", columns, found)],
        bars=[
            Bar("p99 of the others, flooded to quiet", ratio, "<=", MOST_RATIO, " x"),
            Bar("jobs of the flood still waiting at the end", left, ">=", 1),
        ],
    )


def free_accounts(seconds: float, console: Console) -> Report:
    """A paying tenant saturates the pool; then a thousand free accounts want it too."""
    with running_fairline("free", "medium", WORKERS) as (_, engine), Screen(console) as screen:
        paying = tenant_id(engine, "paying")
        jobs = int(3 * SLOTS * (seconds + SETTLE_SECONDS) / JOB_SECONDS)
        submit(engine, paying, [{"seconds": JOB_SECONDS}] * jobs)
        begin = time.time() + SETTLE_SECONDS
        screen.wait("a paying tenant alone", SETTLE_SECONDS + seconds)
        free = [tenant_id(engine, f"free-{number}", "free") for number in range(FREE_ACCOUNTS)]
        for each in free:
            submit(engine, each, [{"seconds": JOB_SECONDS}] * 5, tier="free")
        middle = time.time() + SETTLE_SECONDS
        screen.wait(f"with {FREE_ACCOUNTS:,} free accounts", SETTLE_SECONDS + seconds)
        end = time.time()
        ids = [paying, *free]
        runs = read_runs(engine, ids)
    alone = sum(run.seconds_in(begin, begin + seconds) for run in runs) / seconds
    shares = shares_between(ids, runs, middle, end)
    crowded = sum(run.seconds_in(middle, end) for run in runs if run.tenant_id == paying) / (
        end - middle
    )
    served = sum(1 for each in free if shares[each] > 0)
    lost = 100 * (1 - crowded / alone)
    return Report(
        *("free", f"{FREE_ACCOUNTS:,} free accounts flood {SLOTS} slots"),
        tables=[
            Table(
                "Slots of the paying tenant",
                ("", "slots", "of the pool"),
                [
                    ("alone", f"{alone:.1f}", f"{100 * alone / SLOTS:.1f} %"),
                    ("with the flood", f"{crowded:.1f}", f"{100 * crowded / SLOTS:.1f} %"),
                    ("free accounts", f"{served} served", f"{100 * (1 - shares[paying]):.1f} %"),
                ],
            )
        ],
        bars=[
            Bar("capacity that the paying tenant lost", lost, "<=", MOST_LOST, " %"),
            Bar("free accounts that got something", served, ">=", 1),
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fairness", description=__doc__)
    parser.add_argument(
        "experiment",
        nargs="?",
        choices=("weights", "flood", "free"),
        default="weights",
        help="weights: three tenants saturate a pool; flood: one submits 100,000 jobs; "
        "free: a thousand free accounts do (weights)",
    )
    parser.add_argument("--seconds", type=float, help="of each measurement (300, 60, 60)")
    parser.add_argument("--jobs", type=int, default=FLOOD, help="of the flood (100000)")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    asked = parser.parse_args(arguments)
    console = Console()
    seconds = asked.seconds or (300.0 if asked.experiment == "weights" else 60.0)
    if asked.experiment == "weights":
        report = weights.run(seconds, console)
    elif asked.experiment == "flood":
        report = flood(seconds, asked.jobs, console)
    else:
        report = free_accounts(seconds, console)
    return report.conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
