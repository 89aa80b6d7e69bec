"""Crowding: what others feel while one tenant floods, or a thousand free accounts do.

Both run quiet first and crowded then, on one stack, and compare the two.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence

from rich.console import Console

from app.tenants.changes import issue_key
from loadtest.bars import Bar
from loadtest.fairness.house import House, Wait, house
from loadtest.fairness.weights import SLOTS, WORKERS, progress_bar, shares_between, watch
from loadtest.percentiles import percentile
from loadtest.report import Report, Table

FLOOD = 100_000
FREE_ACCOUNTS = 1_000
MOST_RATIO = 2.0
MOST_LOST = 5.0
STEADY = ("steady-1", "steady-2")
STEADY_PER_SECOND = 2.0
JOBS = "loadtest.fairness.jobs"
NAP = {"seconds": 0.05}
JOB_SECONDS = 1.5
FLOOD_STEP = 5_000
#: Before each measurement.
SETTLE_SECONDS = 5.0


class Steady:
    """A tenant that submits naps by a clock, over HTTP with a key of its own."""

    def __init__(self, stack: House, tenant: str) -> None:
        self._stack, self._tenant = stack, tenant
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _send(self) -> None:
        key = issue_key(self._stack.engine, self._tenant, "loadtest").key
        connection = http.client.HTTPConnection("127.0.0.1", self._stack.fairline.port, timeout=30)
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += 1 / STEADY_PER_SECOND
            body = json.dumps({"type": "nap", "payload": NAP})
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            connection.request("POST", "/jobs", body, headers)
            answer = connection.getresponse()
            if answer.status != 202:
                raise RuntimeError(f"{answer.status}: {answer.read()[:200]!r}")
            answer.read()
        connection.close()


def flood(seconds: float, jobs: int, console: Console) -> Report:
    """Two tenants submit 2 a second each; then a third floods."""
    with house("flood", "short", 1, job_modules=JOBS) as stack, progress_bar(console) as progress:
        ids = [stack.tenant(name) for name in STEADY]
        crowd = stack.tenant("crowd")
        steady = [Steady(stack, name) for name in STEADY]
        for each in steady:
            each.start()
        quiet_from = time.time() + SETTLE_SECONDS
        watch(progress, "quiet", SETTLE_SECONDS + seconds)
        quiet = stack.waits(ids, quiet_from)
        task = progress.add_task("the flood comes in", total=jobs)
        for done in range(0, jobs, FLOOD_STEP):
            stack.submit(crowd, [NAP] * min(FLOOD_STEP, jobs - done), "nap", "short")
            progress.update(task, completed=done + FLOOD_STEP)
        crowded_from = time.time()
        watch(progress, f"{jobs:,} jobs of another tenant", seconds)
        left = stack.waiting(crowd)
        crowded_until = time.time()
        for each in steady:
            each.stop()
        stack.await_started(ids)
        crowded = [
            wait for wait in stack.waits(ids, crowded_from) if wait.created_at < crowded_until
        ]
    report = Report("flood", f"One tenant submits {jobs:,} jobs, two others 2 a second each")
    report.tables.append(
        Table(
            "The two others: from submission to start",
            ("", "jobs", "p50", "p90", "p99", "worst"),
            [row("quiet", quiet), row("flooded", crowded)],
        )
    )
    ratio = p99(crowded) / p99(quiet)
    report.bars += [
        Bar("p99 of the others, flooded to quiet", ratio, "<=", MOST_RATIO, " x"),
        Bar("jobs of the flood still waiting at the end", left, ">=", 1),
    ]
    return report


def free_accounts(seconds: float, console: Console) -> Report:
    """A paying tenant saturates the pool; then a thousand free accounts want it too."""
    with house("free", "medium", WORKERS) as stack, progress_bar(console) as progress:
        stack.fairline.await_slots("medium", SLOTS)
        paying = stack.tenant("paying")
        jobs = int(3 * SLOTS * (seconds + SETTLE_SECONDS) / JOB_SECONDS)
        stack.submit(paying, [{"seconds": JOB_SECONDS}] * jobs)
        begin = time.time() + SETTLE_SECONDS
        watch(progress, "a paying tenant alone", SETTLE_SECONDS + seconds)
        free = [stack.tenant(f"free-{number}", "free") for number in range(FREE_ACCOUNTS)]
        for each in free:
            stack.submit(each, [{"seconds": JOB_SECONDS}] * 5, tier="free")
        middle = time.time() + SETTLE_SECONDS
        watch(progress, f"with {FREE_ACCOUNTS:,} free accounts", SETTLE_SECONDS + seconds)
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
    report = Report("free", f"{FREE_ACCOUNTS:,} free accounts flood {SLOTS} slots")
    report.tables.append(
        Table(
            "Slots of the paying tenant",
            ("", "slots", "of the pool"),
            [
                ("alone", f"{alone:.1f}", f"{100 * alone / SLOTS:.1f} %"),
                ("with the flood", f"{crowded:.1f}", f"{100 * crowded / SLOTS:.1f} %"),
                ("free accounts", f"{served} served", f"{100 * (1 - shares[paying]):.1f} %"),
            ],
        )
    )
    report.bars += [
        Bar("capacity that the paying tenant lost", lost, "<=", MOST_LOST, " %"),
        Bar("free accounts that got something", served, ">=", 1),
    ]
    return report


def row(name: str, waits: Sequence[Wait]) -> tuple[str, ...]:
    """Waits as a row of a table."""
    ordered = sorted(1000 * wait.seconds for wait in waits)
    figures = (f"{percentile(ordered, share):.0f} ms" for share in (0.5, 0.9, 0.99, 1.0))
    return (name, f"{len(ordered):,}", *figures)


def p99(waits: Sequence[Wait]) -> float:
    """Of the waits, in seconds."""
    return percentile(sorted(wait.seconds for wait in waits), 0.99)
