"""``python -m loadtest.idle``: what a stack costs that nobody uses, by kind of process.

Starts a stack as ``make up`` does, waits until it is ready, lets it settle, and reads processor
time and memory of all its processes from /proc: what the start took, and what the idle stack uses
over a minute. At the end it submits single jobs, each on an idle stack, and times their start.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

import psutil
from rich.console import Console

from loadtest.chaos.client import Api
from loadtest.chaos.stack import Stack, embedded_stack
from loadtest.fleet import rows, until
from loadtest.report import Bar, Report, Table, at_most, command

#: Of a core, in all processes.
MOST_IDLE = 3.0
#: By then the last of the start is over: first turns of workers, forecasts, the code of RabbitMQ.
SETTLE_SECONDS = 15.0
#: A job may start no later than this, on a machine that is otherwise idle.
MOST_START_MS = 50.0
#: Between two single jobs: longer than any back-off of a look.
JOB_PAUSE_SECONDS = 1.5
POSTGRES = "PostgreSQL"
CLIENTS = "SELECT pid, application_name FROM pg_stat_activity WHERE backend_type = 'client backend'"

#: What every process of a kind used or holds, by kind.
ByKind = dict[str, float]


@dataclass(slots=True)
class Observed:
    """What was read from a stack."""

    start_seconds: float
    start_cpu: ByKind
    idle_seconds: float = 0.0
    idle_cpu: ByKind = field(default_factory=dict)
    memory_mb: ByKind = field(default_factory=dict)
    start_ms: list[float] = field(default_factory=list)

    @property
    def idle_percent(self) -> ByKind:
        """Of a core."""
        return {kind: 100 * used / self.idle_seconds for kind, used in self.idle_cpu.items()}


def kinds(stack: Stack) -> dict[psutil.Process, str]:
    """Every process of the stack with its kind; one of PostgreSQL's by whom it serves."""
    assert stack.process is not None
    leaders = {pid: name for name, pid in stack.pids().items()}
    supervisor = psutil.Process(stack.process.pid)
    found = {supervisor: "supervisor"}
    with stack.engine() as engine:
        clients = {pid: f"{POSTGRES} for {name}" for pid, name in rows(engine, CLIENTS)}
    for process in supervisor.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            chain = [process.pid, *(parent.pid for parent in process.parents())]
            name = next((leaders[pid] for pid in chain if pid in leaders), "other")
            found[process] = kind_of(name, clients.get(process.pid))
    return found


def kind_of(name: str, client: str | None) -> str:
    """``scheduler-2`` is a scheduler; a backend belongs to its client, the rest to itself."""
    if name == "postgres":
        return POSTGRES if client is None else numbered(client.partition("@")[0])
    return numbered(name)


def numbered(name: str) -> str:
    """Without the number of the process."""
    return re.sub(r"-\d+$", "", name)


def cpu(processes: Iterable[psutil.Process]) -> dict[psutil.Process, float]:
    """Seconds of processor time of each, without those of its children."""
    used = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used[process] = times.user + times.system
    return used


def by_kind(figures: Mapping[psutil.Process, float], named: Mapping[psutil.Process, str]) -> ByKind:
    total: Counter[str] = Counter()
    for process, figure in figures.items():
        total[named[process]] += figure  # type: ignore[assignment]  # a Counter of floats
    return dict(total)


def measure_idle(stack: Stack, observed: Observed, seconds: float) -> None:
    """Processor time between two readings; a process that began meanwhile counts from its start."""
    before, began = cpu(kinds(stack)), time.monotonic()
    time.sleep(seconds)
    named = kinds(stack)
    used = {process: spent - before.get(process, 0.0) for process, spent in cpu(named).items()}
    observed.idle_seconds = time.monotonic() - began
    observed.idle_cpu = by_kind(used, named)
    sizes = {}
    for process in named:
        with suppress(psutil.Error):
            sizes[process] = process.memory_full_info().pss / 1e6
    observed.memory_mb = by_kind(sizes, named)


def ended_children(stack: Stack) -> float:
    """Processor time of what has ended again, such as migrations."""
    assert stack.process is not None
    times = psutil.Process(stack.process.pid).cpu_times()
    return float(times.children_user + times.children_system)


def start_of_one_job(api: Api) -> float:
    """Milliseconds from the row's creation to the start of its run."""
    job = {"type": "echo", "payload": {}}
    made = api.call("POST", "/jobs", job).document

    def ended() -> Any:
        shown = api.call("GET", f"/jobs/{made['id']}").document
        return shown if shown["status"] == "succeeded" else None

    shown = until(ended, 10.0, "a job", pause=0.02)
    created, started = (
        datetime.fromisoformat(shown[name]) for name in ("created_at", "started_at")
    )
    return 1000 * (started - created).total_seconds()


def observe(asked: argparse.Namespace, console: Console) -> Observed:
    with embedded_stack() as stack:
        named = kinds(stack)
        start = by_kind(cpu(named), named) | {"migrations and the like": ended_children(stack)}
        observed = Observed(stack.took, start)
        console.print(f"ready after {stack.took:.1f} s, {sum(start.values()):.1f} s of a core")
        time.sleep(asked.settle)
        measure_idle(stack, observed, asked.seconds)
        with Api(stack.port) as api:
            for _ in range(asked.jobs):
                time.sleep(JOB_PAUSE_SECONDS)
                observed.start_ms.append(start_of_one_job(api))
    return observed


def run(asked: argparse.Namespace, console: Console) -> Report:
    observed = observe(asked, console)
    shares = observed.idle_percent
    total = sum(shares.values())
    groups: dict[str, float] = defaultdict(float)
    for kind, share in shares.items():
        groups[POSTGRES if kind.startswith(POSTGRES) else kind] += share
    most = sorted(groups.items(), key=lambda item: -item[1])
    lines = sorted(shares, key=lambda kind: -shares[kind])
    bars = [Bar("an idle stack, all processes, of a core", total, "<=", MOST_IDLE, " %")]
    if observed.start_ms:
        middle = median(observed.start_ms)
        bars.append(at_most("start of one job on an idle stack, p50", middle, MOST_START_MS, " ms"))
    return Report(
        "idle",
        f"An idle stack over {observed.idle_seconds:.0f} s",
        findings=[
            f"{total:.1f} % of a core: "
            + ", ".join(f"{kind} {share:.1f}" for kind, share in most[:6]),
            f"start: {sum(observed.start_cpu.values()):.1f} s of a core; memory "
            f"{sum(observed.memory_mb.values()):.0f} MB, shared pages counted once",
        ],
        tables=[
            Table(
                "By kind of process",
                ("kind", "idle, % of a core", "start, s of a core", "memory, MB"),
                [
                    (
                        kind,
                        f"{shares[kind]:.2f}",
                        f"{observed.start_cpu.get(kind, 0.0):.2f}",
                        f"{observed.memory_mb.get(kind, 0.0):.1f}",
                    )
                    for kind in lines
                ],
            )
        ],
        bars=bars,
        data={
            "idle_percent": shares,
            "start_cpu_seconds": observed.start_cpu,
            "start_seconds": observed.start_seconds,
            "memory_mb": observed.memory_mb,
            "start_ms": observed.start_ms,
        },
    )


FLAGS = (
    ("--seconds", 60.0, "of measurement"),
    ("--settle", SETTLE_SECONDS, "seconds before it"),
    ("--jobs", 10, "single jobs at the end"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.idle", __doc__, run, *FLAGS))
