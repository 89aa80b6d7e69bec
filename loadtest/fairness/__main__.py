"""``python -m loadtest.fairness``: fair share on a stack of its own, and the picture of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console

from app.tenants.changes import issue_key
from loadtest.fairness import weights
from loadtest.fairness.weights import SLOTS, WORKERS, Wait, house, shares_between
from loadtest.figures import percentile
from loadtest.fleet import until
from loadtest.report import Bar, Report, Screen, Table
from loadtest.stampede import SteadyTenant

FLOOD = 100_000
FREE_ACCOUNTS = 1_000
MOST_RATIO = 2.0
MOST_LOST = 5.0
STEADY = ("steady-1", "steady-2")
STEADY_PER_SECOND = 2.0
JOBS = "loadtest.baselines.peer_jobs"
NAP = {"ms": 50}
JOB_SECONDS = 1.5
FLOOD_STEP = 5_000
#: Longest wait for an idle stack.
IDLE_SECONDS = 60.0
#: Before each measurement.
SETTLE_SECONDS = 5.0


def flood(seconds: float, jobs: int, console: Console) -> Report:
    """Two tenants submit 2 a second each; then a third floods."""
    with house("flood", "short", 1, job_modules=JOBS) as stack, Screen(console) as screen:
        ids = [stack.tenant(name) for name in STEADY]
        crowd = stack.tenant("crowd")
        with ExitStack() as senders:
            steady = [
                senders.enter_context(
                    SteadyTenant(
                        *(stack.fairline.port, STEADY_PER_SECOND),
                        {"type": "peer.nap", "payload": NAP},
                        issue_key(stack.engine, name, "loadtest").key,
                    )
                )
                for name in STEADY
            ]
            quiet_from = time.time() + SETTLE_SECONDS
            screen.wait("quiet", SETTLE_SECONDS + seconds)
            quiet = stack.waits(ids, quiet_from)
            for step in screen.steps("the flood comes in", -(-jobs // FLOOD_STEP)):
                count = min(FLOOD_STEP, jobs - step * FLOOD_STEP)
                stack.submit(crowd, [NAP] * count, "peer.nap", "short")
            crowded_from = time.time()
            screen.wait(f"{jobs:,} jobs of another tenant", seconds)
            left = stack.waiting([crowd])
            crowded_until = time.time()
        if unanswered := sum(each.unanswered for each in steady):
            raise RuntimeError(f"{unanswered} submissions of the steady tenants got no 202")
        until(lambda: not stack.waiting(ids), IDLE_SECONDS, "jobs of the steady tenants to start")
        crowded = [
            wait for wait in stack.waits(ids, crowded_from) if wait.created_at < crowded_until
        ]
    ratio = percentile([wait.seconds for wait in crowded], 0.99) / percentile(
        [wait.seconds for wait in quiet], 0.99
    )
    return Report(
        *("flood", f"One tenant submits {jobs:,} jobs, two others 2 a second each"),
        tables=[
            Table(
                "The two others: from submission to start",
                ("", "jobs", "p50", "p90", "p99", "worst"),
                [row("quiet", quiet), row("flooded", crowded)],
            )
        ],
        bars=[
            Bar("p99 of the others, flooded to quiet", ratio, "<=", MOST_RATIO, " x"),
            Bar("jobs of the flood still waiting at the end", left, ">=", 1),
        ],
    )


def free_accounts(seconds: float, console: Console) -> Report:
    """A paying tenant saturates the pool; then a thousand free accounts want it too."""
    with house("free", "medium", WORKERS) as stack, Screen(console) as screen:
        paying = stack.tenant("paying")
        jobs = int(3 * SLOTS * (seconds + SETTLE_SECONDS) / JOB_SECONDS)
        stack.submit(paying, [{"seconds": JOB_SECONDS}] * jobs)
        begin = time.time() + SETTLE_SECONDS
        screen.wait("a paying tenant alone", SETTLE_SECONDS + seconds)
        free = [stack.tenant(f"free-{number}", "free") for number in range(FREE_ACCOUNTS)]
        for each in free:
            stack.submit(each, [{"seconds": JOB_SECONDS}] * 5, tier="free")
        middle = time.time() + SETTLE_SECONDS
        screen.wait(f"with {FREE_ACCOUNTS:,} free accounts", SETTLE_SECONDS + seconds)
        end = time.time()
        ids = [paying, *free]
        runs = stack.runs(ids)
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


def row(name: str, waits: Sequence[Wait]) -> tuple[str, ...]:
    """Waits as a row of a table."""
    ordered = [1000 * wait.seconds for wait in waits]
    figures = (f"{percentile(ordered, share):.0f} ms" for share in (0.5, 0.9, 0.99, 1.0))
    return (name, f"{len(ordered):,}", *figures)


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
    if asked.experiment == "weights":
        report = weights.run(asked.seconds or 300.0, console)
    elif asked.experiment == "flood":
        report = flood(asked.seconds or 60.0, asked.jobs, console)
    else:
        report = free_accounts(asked.seconds or 60.0, console)
    return report.conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
