"""What the stages say: sentences, tables, bars, pictures."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.bars import Bar
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.sampling import write_csv
from loadtest.lab.swarm.analysis import (
    GENERATOR,
    OTHERS,
    PARTS,
    Counts,
    Second,
    Summary,
    by_second,
    count,
    cpu_split,
    mean_cores,
    peak_of,
    per_server_second,
    server_cores,
    summarise,
)
from loadtest.lab.swarm.drawing import PART_NAMES, Drawn, draw_cores, draw_seconds
from loadtest.lab.swarm.plan import Plan
from loadtest.lab.swarm.stage import Stage
from loadtest.report import Picture, Report, Table
from loadtest.shapes import level_at

API_PROCESSES = 2
#: The looks themselves take some; more than this is somebody else's.
BUSY_CORES = 0.3


@dataclass(frozen=True, slots=True)
class Found:
    """A stage and what its figures say."""

    name: str
    stage: Stage
    seconds: list[Second]
    counts: Counts
    #: The seconds that are judged.
    summary: Summary
    #: Cores by part in these seconds.
    split: dict[str, float]


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


def found_at_peak(stage: Stage, plan: Plan) -> Found:
    """A stage, judged by its best stretch."""
    return found("at the peak", stage, *peak_of(seconds_of(stage), plan.window_seconds))


def seconds_of(stage: Stage) -> list[Second]:
    """Every second of the load."""
    return by_second(stage.requests, stage.begin, math.floor(stage.seconds))


def report_on(desk: Desk, plan: Plan, peak: Found, half: Found) -> Report:
    """Everything that was found, drawn and written into the desk's folder."""
    report = Report("swarm", "A swarm of clients that submit and poll")
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
    server, generator = server_cores(peak.split), peak.split[GENERATOR]
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


def in_words(*stages: Found) -> str:
    """Errors by kind: ``12 × 503, 3 × no answer``."""
    kinds: dict[int, int] = {}
    for each in stages:
        for status, number in each.counts.errors.items():
            kinds[status] = kinds.get(status, 0) + number
    return ", ".join(
        f"{number:,} × {status or 'no answer'}" for status, number in sorted(kinds.items())
    )


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
    return [
        Table(
            "Stages",
            headings,
            [
                ("clients", *(f"{each.stage.clients:,}" for each in stages)),
                ("connections open at once", *(f"{each.stage.connections:,}" for each in stages)),
                ("requests/s", *(f"{each.summary.rate:,.0f}" for each in stages)),
                ("p50 ms", *(f"{each.summary.p50_ms:,.1f}" for each in stages)),
                ("p95 ms", *(f"{each.summary.p95_ms:,.1f}" for each in stages)),
                ("p99 ms", *(f"{each.summary.p99_ms:,.1f}" for each in stages)),
                ("submissions, whole stage", *(f"{each.counts.submits:,}" for each in stages)),
                ("polls, whole stage", *(f"{each.counts.polls:,}" for each in stages)),
                ("of these unchanged (304)", *(f"{each.counts.not_modified:,}" for each in stages)),
                ("rounds ended", *(f"{each.counts.rounds:,}" for each in stages)),
                ("errors by status", *(in_words(each) or "none" for each in stages)),
            ],
        ),
        Table(
            "Cores in use",
            headings,
            [
                *(
                    (PART_NAMES.get(part, part), *(f"{each.split[part]:.2f}" for each in stages))
                    for part in PARTS
                ),
                ("the server together", *(f"{server_cores(each.split):.2f}" for each in stages)),
            ],
        ),
    ]


def draw(desk: Desk, plan: Plan, peak: Found, half: Found) -> list[Picture]:
    """Two pictures."""
    stages = [drawn(each) for each in (peak, half)]
    draw_seconds(desk.folder / "swarm.png", stages, plan.p95_bar_ms)
    splits = {each.name: each.split for each in (peak, half)}
    draw_cores(desk.folder / "cores.png", splits, os.cpu_count() or 1)
    return [
        Picture("swarm.png", "Clients, requests/s and latency over time"),
        Picture("cores.png", "Cores in use by the server, the generator and the rest"),
    ]


def drawn(each: Found) -> Drawn:
    """A stage as the picture wants it."""
    stage = each.stage
    inside = [
        (float(row["at"]) - stage.begin, float(row["connections"]))
        for row in stage.rows
        if 0 <= float(row["at"]) - stage.begin <= len(each.seconds)
    ]
    name = "ramp" if each.name == "at the peak" else "half of the peak"
    return Drawn(
        name,
        each.seconds,
        [*(level_at(stage.stretches, n) for n in range(len(each.seconds))), stage.clients],
        [at for at, _ in inside],
        [held for _, held in inside],
        (each.summary.begin, min(each.summary.end, len(each.seconds))),
    )


def data_of(peak: Found, half: Found) -> dict[str, Any]:
    """The same for machines; the counts are those of both stages together."""
    both = (peak, half)
    return {
        "clients": peak.stage.clients,
        "connections": peak.stage.connections,
        "requests": sum(each.counts.requests for each in both),
        "submits": sum(each.counts.submits for each in both),
        "polls": sum(each.counts.polls for each in both),
        "not_modified": sum(each.counts.not_modified for each in both),
        "errors": sum(each.counts.all_errors for each in both),
        "rounds": sum(each.counts.rounds for each in both),
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
