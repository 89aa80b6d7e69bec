"""The swarm: how many clients that submit and poll one small machine carries (F60)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from loadtest.fleet import Fairline
from loadtest.lab.experiment import Desk, Experiment, Size, write_csv
from loadtest.lab.swarm.analysis import (
    GENERATOR,
    OTHERS,
    PARTS,
    PLANS,
    Plan,
    Second,
    by_second,
    count,
    cpu_split,
    mean_cores,
    peak_of,
    per_server_second,
    summarise,
)
from loadtest.lab.swarm.drawing import PART_NAMES, draw_cores, draw_seconds
from loadtest.lab.swarm.stage import POOL, Found, Serving, Stage, hold, in_words
from loadtest.report import Bar, Picture, Report, Table

TITLE = "A swarm of clients that submit and poll"
API_PROCESSES = 2
#: The looks themselves take some; more than this is somebody else's.
BUSY_CORES = 0.3


#: What the report says of a stage.
LINES = {
    "clients": "{.stage.clients:,}",
    "connections open at once": "{.stage.connections:,}",
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


def found(name: str, stage: Stage, begin: float, end: float) -> Found:
    """The figures of a stage, judged between two moments."""
    return Found(
        name,
        stage,
        seconds_of(stage),
        count(stage.requests),
        summarise(stage.requests, stage.begin, begin, end),
        cpu_split(mean_cores(stage.looks, stage.begin + begin, stage.begin + end)),
    )


def seconds_of(stage: Stage) -> list[Second]:
    """Every second of the load."""
    return by_second(stage.requests, stage.begin, math.floor(stage.seconds))


def report_on(desk: Desk, plan: Plan, peak: Found, half: Found) -> Report:
    """Everything that was found, drawn and written into the desk's folder."""
    report = Report("swarm", TITLE)
    report.findings = sentences(plan, peak, half)
    report.pictures = draw(desk, plan, peak, half)
    report.tables = tables(peak, half)
    report.bars = bars(desk.size, plan, peak, half)
    report.notes = [
        "Each client has one connection, submits three applications, asks for each once a second "
        "with the ETag that it knows, and starts over when all three have ended. Who waits longer "
        "than a second asks again at once.",
        f"{API_PROCESSES} API processes, a scheduler, and one worker that scores "
        f"{plan.jobs_a_second:.0f} applications a second ({plan.score_seconds:g} s each), so that "
        "rounds end while most of the load is polling.",
    ]
    strangers = max(each.split[OTHERS] for each in (peak, half))
    if strangers > BUSY_CORES:
        report.notes.append(
            f"Something else used up to {strangers:.1f} cores meanwhile: rates and latencies are "
            "worse than this machine's own."
        )
    report.data = data_of(peak, half)
    rows = [{"stage": each.name, **asdict(row)} for each in (peak, half) for row in each.seconds]
    write_csv(desk.folder / "answers.csv", rows)
    return report


def sentences(plan: Plan, peak: Found, half: Found) -> list[str]:
    """The most important first."""
    cores = os.cpu_count() or 1
    server, generator = peak.server_cores, peak.split[GENERATOR]
    best, calm = peak.summary, half.summary
    wrong = peak.counts.all_errors + half.counts.all_errors
    asked = peak.counts.requests + half.counts.requests
    return [
        f"{peak.stage.connections:,} of {peak.stage.clients:,} clients held a connection at once. "
        f"At the peak {best.rate:,.0f} requests/s were answered (mean of {plan.window_seconds} s), "
        f"p50 {best.p50_ms:,.0f} ms, p95 {best.p95_ms:,.0f} ms.",
        f"The server used {server:.2f} of the {cores} cores at the peak, the generator "
        f"{generator:.2f}: {per_server_second(best.rate, peak.split):,.0f} requests for each "
        "second of the server's CPU time.",
        f"At {calm.rate:,.0f} requests/s, {share(calm.rate, best.rate):.0%} of the peak, "
        f"{half.stage.clients:,} clients saw p50 {calm.p50_ms:,.1f} ms and "
        f"p95 {calm.p95_ms:,.1f} ms.",
        f"{wrong:,} of {asked:,} requests failed"
        + (f" ({in_words(peak, half)})." if wrong else "."),
    ]


def bars(size: Size, plan: Plan, peak: Found, half: Found) -> list[Bar]:
    """What must be shown."""
    shorter = "" if size is Size.FULL else " (a short run)"
    errors = peak.counts.all_errors + half.counts.all_errors
    wanted = [
        Bar(f"requests/s at the peak{shorter}", round(peak.summary.rate), ">=", plan.peak_bar),
        Bar(f"p95 at half of the peak{shorter}", half.summary.p95_ms, "<=", plan.p95_bar_ms, " ms"),
        Bar("requests that failed", errors, "<=", 0),
        Bar("connections open at once", peak.stage.connections, ">=", plan.clients),
    ]
    if not wanted[0].passed:
        # Whoever else wants the cores lowers the rate; what a request costs stays.
        cores = os.cpu_count() or 1
        wanted.insert(
            1,
            Bar(
                "instead: requests for each second of the server's CPU time, at the peak",
                round(per_server_second(peak.summary.rate, peak.split)),
                ">=",
                plan.peak_bar / cores,
            ),
        )
    return wanted


def tables(*stages: Found) -> list[Table]:
    """The stages beside each other, and who used the cores."""
    headings = ("", *(each.name for each in stages))
    cores = {PART_NAMES.get(part, part): f"{{.split[{part}]:.2f}}" for part in PARTS}
    cores["the server together"] = "{.server_cores:.2f}"
    return [
        Table(title, headings, [(name, *map(form.format, stages)) for name, form in lines.items()])
        for title, lines in (("Stages", LINES), ("Cores in use", cores))
    ]


def draw(desk: Desk, plan: Plan, peak: Found, half: Found) -> list[Picture]:
    """Two pictures."""
    draw_seconds(desk.folder / "swarm.png", (peak, half), plan.p95_bar_ms)
    splits = {each.name: each.split for each in (peak, half)}
    draw_cores(desk.folder / "cores.png", splits, os.cpu_count() or 1)
    return [
        Picture("swarm.png", "Clients, requests/s and latency over time"),
        Picture("cores.png", "Cores in use by the server, the generator and the rest"),
    ]


def data_of(peak: Found, half: Found) -> dict[str, Any]:
    """The same for machines; the counts are those of both stages together."""
    both = (peak, half)
    return {
        "clients": peak.stage.clients,
        "connections": peak.stage.connections,
        **{
            name: sum(getattr(each.counts, name) for each in both)
            for name in ("requests", "submits", "polls", "not_modified", "rounds")
        },
        "errors": sum(each.counts.all_errors for each in both),
        "stages": {
            each.name: {
                "clients": each.stage.clients,
                "connections": each.stage.connections,
                **asdict(each.summary),
                **asdict(each.counts),
                "cores": each.split,
                "per_server_second": round(per_server_second(each.summary.rate, each.split)),
            }
            for each in both
        },
    }


def share(part: float, whole: float) -> float:
    """A part of a whole; of nothing, none."""
    return part / whole if whole else 0.0


#: Services, two starts of a Fairline, two of locust.
START_SECONDS = 24.0


def run(desk: Desk) -> Report:
    """First the ramp, as its peak says what half of it is."""
    plan = PLANS[desk.size]
    half = None
    with serving(desk, plan, "swarm") as served:
        step = f"ramp to {plan.clients:,} clients"
        stage = hold(desk, served, step, plan.ramp(), plan.look_seconds)
        peak = found("at the peak", stage, *peak_of(seconds_of(stage), plan.window_seconds))
        if not plan.afresh:
            half = at_half(desk, served, plan, peak)
    if half is None:
        with serving(desk, plan, "swarm_half") as served:
            half = at_half(desk, served, plan, peak)
    return report_on(desk, plan, peak, half)


def seconds(size: Size) -> float:
    """Both stages, and everything that has to be started for them."""
    plan = PLANS[size]
    return START_SECONDS + plan.ramp_seconds + plan.hold_seconds + plan.half_seconds


@contextmanager
def serving(desk: Desk, plan: Plan, name: str) -> Iterator[Serving]:
    """A Fairline with its API processes, a scheduler and a worker that ends jobs steadily."""
    desk.step("starting a Fairline")
    settings = {"score_seconds": str(plan.score_seconds), "api_workers": str(API_PROCESSES)}
    fairline = Fairline(desk.fleet, served_pools=POOL, name=name, **settings)
    with fairline.running(POOL):
        yield Serving.of(fairline)


def at_half(desk: Desk, served: Serving, plan: Plan, peak: Found) -> Found:
    """As many clients as ask for half of what was answered at the peak."""
    stretches = plan.half(peak.summary.rate)
    step = f"{stretches[0].begin:,.0f} clients, half of the peak"
    stage = hold(desk, served, step, stretches, plan.look_seconds)
    return found("at half of the peak", stage, plan.settle_seconds, stage.seconds)


EXPERIMENT = Experiment(
    "swarm",
    TITLE,
    "How many clients can submit and poll every second, and who pays for it in CPU?",
    seconds,
    run,
)
