"""The swarm: how many clients that submit and poll one small machine carries (F60).

The API is not asked for its own figures here: that request would wait in the queue that it asks
about. Connections are counted in the kernel's tables, queued jobs in the database.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine

from loadtest.figures import CoreMeter
from loadtest.fleet import Fairline
from loadtest.generator import Order
from loadtest.lab.experiment import POOL, SLOTS, QueueGauges, RunContext, Size, write_csv
from loadtest.lab.swarm.analysis import (
    GENERATOR,
    OTHERS,
    PARTS,
    PLANS,
    Look,
    Plan,
    Stage,
    errors_by_status,
    peak_of,
    per_server_second,
)
from loadtest.lab.swarm.drawing import PART_NAMES, draw_cores, draw_seconds
from loadtest.report import Bar, Picture, Report, Table, at_least, at_most
from loadtest.shapes import Stretch, highest, total_seconds

TITLE = "A swarm of clients that submit and poll"
QUESTION = "How many clients can submit and poll every second, and which process uses how much CPU?"
API_PROCESSES = 2
CORES = os.cpu_count() or 1
#: The measuring itself uses some; more than this is another program.
BUSY_CORES = 0.3
#: Services, two starts of a Fairline, two of locust.
START_SECONDS = 24.0

#: Rows of the report's table, a column per stage.
LINES = {
    "clients": "{.clients:,}",
    "connections open at once": "{.connections:,}",
    "requests/s": "{.summary.rate:,.0f}",
    "p50 ms": "{.summary.p50_ms:,.1f}",
    "p95 ms": "{.summary.p95_ms:,.1f}",
    "p99 ms": "{.summary.p99_ms:,.1f}",
    "submissions, whole stage": "{.counts.submits:,}",
    "polls, whole stage": "{.counts.polls:,}",
    "of these unchanged (304)": "{.counts.not_modified:,}",
    "rounds ended": "{.counts.rounds:,}",
    "errors by status": "{.errors}",
}


def run(context: RunContext) -> Report:
    """First the ramp, as half of its peak is the second stage."""
    plan = PLANS[context.size]
    with serving(context, plan, "swarm") as served:
        step = f"ramp to {plan.clients:,} clients"
        peak = hold(context, served, "at the peak", step, plan.ramp(), plan.look_seconds)
        peak = replace(peak, judged=peak_of(peak.seconds, plan.window_seconds))
        half = None if plan.afresh else at_half(context, served, plan, peak)
    if half is None:
        with serving(context, plan, "swarm_half") as served:
            half = at_half(context, served, plan, peak)
    stages = (peak, half)
    rows = [{"stage": each.name, **asdict(row)} for each in stages for row in each.seconds]
    write_csv(context.folder / "answers.csv", rows)
    draw_seconds(context.folder / "swarm.png", stages, plan.p95_bar_ms)
    draw_cores(context.folder / "cores.png", {each.name: each.split for each in stages}, CORES)
    return judge(context.size, plan, peak, half)


def seconds(size: Size) -> float:
    """Both stages, and everything that has to be started for them."""
    plan = PLANS[size]
    return START_SECONDS + plan.ramp_seconds + plan.hold_seconds + plan.half_seconds


class Serving:
    """A Fairline without clients so far."""

    def __init__(self, fairline: Fairline) -> None:
        self.fairline = fairline
        api = psutil.Process(fairline.fleet.children["api"].pid)
        #: Files that each process of its API has open when it has no clients.
        self._idle_files = {process: process.num_fds() for process in api.children()}

    def connections(self) -> int:
        """Connections of clients. The kernel also counts those that are not accepted yet, the
        API's open files also those to its own services."""
        files = sum(process.num_fds() - idle for process, idle in self._idle_files.items())
        return max(0, min(files, established(self.fairline.port)))


class StageGauges:
    """Connections and the queue, once per second, and every few seconds the cores in use."""

    def __init__(
        self, serving: Serving, engine: Engine, generator: Sequence[int], look_seconds: float
    ) -> None:
        self._serving = serving
        self._generator = generator
        self._look_seconds = look_seconds
        self._queue = QueueGauges(engine)
        self._meter = CoreMeter({**serving.fairline.fleet.pids(), GENERATOR: generator})
        self._looked_at = time.time()
        self.looks: list[Look] = []

    def __call__(self) -> Mapping[str, float]:
        held = self._serving.connections()
        if time.time() - self._looked_at >= self._look_seconds:
            self._look()
        return {"connections": held, **self._queue(pool=POOL)}

    def _look(self) -> None:
        """Cores in use since the last time."""
        begin, self._looked_at = self._looked_at, time.time()
        cores = self._meter.read()
        # A process that has ended can no longer be read, as if it had used no time.
        if all(map(psutil.pid_exists, self._generator)):
            self.looks.append(Look(begin, self._looked_at, cores))


def hold(
    context: RunContext,
    serving: Serving,
    name: str,
    step: str,
    stretches: Sequence[Stretch],
    look_seconds: float,
) -> Stage:
    order = Order(serving.fairline.url, "SwarmClient", stretches)
    with serving.fairline.engine() as engine, context.generate(order) as generator:
        gauges = StageGauges(serving, engine, generator.pids, look_seconds)
        with context.watch(step, gauges) as sampler:
            requests = generator.finish().requests
    # A client that had to connect again may be counted twice for a moment.
    most = min(int(sampler.most("connections")), round(highest(stretches)))
    return Stage(name, stretches, requests, gauges.looks, sampler.rows, most)


def established(port: int) -> int:
    """Established connections to this port, by the kernel's table (IPv4)."""
    table = Path("/proc/net/tcp").read_bytes()
    return len(re.findall(rb":%04X [0-9A-F]{8}:[0-9A-F]{4} 01 " % port, table))


@contextmanager
def serving(context: RunContext, plan: Plan, name: str) -> Iterator[Serving]:
    """A Fairline with its API processes, a scheduler and a worker that ends jobs steadily."""
    context.step("starting a Fairline")
    fairline = context.fairline(name, plan.score_seconds, api_workers=str(API_PROCESSES))
    with fairline.running(POOL):
        yield Serving(fairline)


def at_half(context: RunContext, served: Serving, plan: Plan, peak: Stage) -> Stage:
    """As many clients as send half of the peak's requests."""
    stretches = plan.half(peak.summary.rate)
    step = f"{stretches[0].begin:,.0f} clients, half of the peak"
    half = hold(context, served, "at half of the peak", step, stretches, plan.look_seconds)
    return replace(half, judged=(plan.settle_seconds, total_seconds(stretches)))


def judge(size: Size, plan: Plan, peak: Stage, half: Stage) -> Report:
    notes = [
        "Each client has one connection, submits three applications, polls each once per second "
        "with the ETag that it has, and starts over when all three have ended. A client that "
        "waits longer than a second for a response polls again immediately.",
        f"{API_PROCESSES} API processes, a scheduler, and one worker that scores "
        f"{SLOTS / plan.score_seconds:.0f} applications per second ({plan.score_seconds:g} s "
        "each), so that rounds end while most of the load is polling.",
    ]
    others = max(each.split[OTHERS] for each in (peak, half))
    if others > BUSY_CORES:
        notes.append(
            f"Other programs used up to {others:.1f} cores meanwhile: rates and latencies are "
            "worse than this machine's own."
        )
    return Report(
        "swarm",
        TITLE,
        findings=findings(plan, peak, half),
        pictures=[
            Picture("swarm.png", "Clients, requests/s and latency over time"),
            Picture("cores.png", "Cores in use by the server, the generator and the rest"),
        ],
        tables=tables(peak, half),
        bars=bars(size, plan, peak, half),
        notes=notes,
        data=figures(peak, half),
    )


def findings(plan: Plan, peak: Stage, half: Stage) -> list[str]:
    best, calm = peak.summary, half.summary
    wrong = peak.counts.all_errors + half.counts.all_errors
    sent = peak.counts.requests + half.counts.requests
    share = calm.rate / best.rate if best.rate else 0.0
    return [
        f"{peak.connections:,} of {peak.clients:,} clients held a connection at once. "
        f"At the peak {best.rate:,.0f} requests/s were answered (mean of {plan.window_seconds} s), "
        f"p50 {best.p50_ms:,.0f} ms, p95 {best.p95_ms:,.0f} ms.",
        f"The server used {peak.server_cores:.2f} of the {CORES} cores at the peak, the generator "
        f"{peak.split[GENERATOR]:.2f}: {per_server_second(best.rate, peak.split):,.0f} requests "
        "per second of the server's CPU time.",
        f"At {calm.rate:,.0f} requests/s, {share:.0%} of the peak, {half.clients:,} clients saw "
        f"p50 {calm.p50_ms:,.1f} ms and p95 {calm.p95_ms:,.1f} ms.",
        f"{wrong:,} of {sent:,} requests failed"
        + (f" ({errors_by_status(peak, half)})." if wrong else "."),
    ]


def bars(size: Size, plan: Plan, peak: Stage, half: Stage) -> list[Bar]:
    shorter = "" if size is Size.FULL else " (a short run)"
    errors = peak.counts.all_errors + half.counts.all_errors
    found = [
        at_least(f"requests/s at the peak{shorter}", round(peak.summary.rate), plan.peak_bar),
        at_most(f"p95 at half of the peak{shorter}", half.summary.p95_ms, plan.p95_bar_ms, " ms"),
        at_most("requests that failed", errors),
        at_least("connections open at once", peak.connections, plan.clients),
    ]
    if not found[0].passed:
        # Other programs on the machine lower the rate; what a request costs stays.
        cost = round(per_server_second(peak.summary.rate, peak.split))
        claim = "instead: requests per second of the server's CPU time, at the peak"
        found.insert(1, at_least(claim, cost, plan.peak_bar / CORES))
    return found


def tables(*stages: Stage) -> list[Table]:
    """The stages beside each other, and the cores each part used."""
    headings = ("", *(each.name for each in stages))
    cores = {PART_NAMES.get(part, part): f"{{.split[{part}]:.2f}}" for part in PARTS}
    cores["the server together"] = "{.server_cores:.2f}"
    return [
        Table(title, headings, [(name, *map(form.format, stages)) for name, form in lines.items()])
        for title, lines in (("Stages", LINES), ("Cores in use", cores))
    ]


def figures(*stages: Stage) -> dict[str, Any]:
    """For ``report.json``; the counts are those of both stages together."""
    return {
        "clients": stages[0].clients,
        "connections": stages[0].connections,
        **{
            name: sum(getattr(each.counts, name) for each in stages)
            for name in ("requests", "submits", "polls", "not_modified", "rounds")
        },
        "errors": sum(each.counts.all_errors for each in stages),
        "stages": {
            each.name: {
                "clients": each.clients,
                "connections": each.connections,
                **asdict(each.summary),
                **asdict(each.counts),
                "cores": each.split,
                "per_server_second": round(per_server_second(each.summary.rate, each.split)),
            }
            for each in stages
        },
    }
