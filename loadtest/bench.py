"""``make bench``: Fairline and a plain Celery application, measured in one run on one machine.

The two take turns on the same PostgreSQL and the same RabbitMQ, several rounds, and medians are
compared, so that whatever else the machine does hits both alike. Absolute rates differ from
machine to machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console

from loadtest.accept import accept_fairline, accept_plain
from loadtest.bars import Bar
from loadtest.fairline import Fairline
from loadtest.fleet import Fleet, fleet
from loadtest.noop import drain_fairline, drain_plain
from loadtest.plain import PlainCelery
from loadtest.profiling import profile_accept, profile_noop
from loadtest.report import Report, Table
from loadtest.samples import Sample, medians

BAR_CONNECTIONS = 64
ACCEPT_RATIO = 4.0
NOOP_RATIO = 3.0
CORE_PARTS = (
    "generator",
    "api",
    "plain-web",
    "worker",
    "scheduler",
    "postgres",
    "rabbitmq",
)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What may be asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench", description=__doc__
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="turns of each (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of each measurement"
    )
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="no-op jobs for Fairline"
    )
    parser.add_argument(
        "--plain-jobs", type=int, default=6_000, help="no-op tasks for the baseline"
    )
    parser.add_argument(
        "--full", action="store_true", help="also at 16 and 256 connections"
    )
    parser.add_argument(
        "--only", choices=("accept", "noop"), help="one of the two measurements"
    )
    parser.add_argument(
        "--profile", action="store_true", help="a profiled round at the end (py-spy)"
    )
    parser.add_argument(
        "--no-fail", action="store_true", help="exit 0 even if a bar is missed"
    )
    return parser.parse_args(arguments)


def measure(
    asked: argparse.Namespace, console: Console, started: Fleet
) -> list[Sample]:
    """All rounds, one after the other."""
    fairline = Fairline(started, served_pools="medium")
    plain = PlainCelery(started)
    samples: list[Sample] = []

    def note(found: Sequence[Sample]) -> None:
        samples.extend(found)
        for sample in found:
            console.print(f"  {line(sample)}", highlight=False)

    for number in range(1, asked.rounds + 1):
        console.print(f"round {number} of {asked.rounds}", style="bold")
        if asked.only != "noop":
            others = (16, 256) if asked.full and number == asked.rounds else ()
            connections = (BAR_CONNECTIONS, *others)
            note(accept_fairline(fairline, connections, asked.seconds, poll=True))
            note(accept_plain(plain, connections, asked.seconds))
        if asked.only != "accept":
            note([drain_fairline(fairline, asked.jobs)])
            note([drain_plain(plain, asked.plain_jobs)])
    if asked.profile:
        console.print("profiled round", style="bold")
        if asked.only != "noop":
            profile_accept(fairline, console)
        if asked.only != "accept":
            profile_noop(fairline, asked.jobs, console)
    return samples


def line(sample: Sample) -> str:
    """A sample in one line, as it comes in."""
    text = f"{sample.name:<32}{sample.rate:>8,.0f}/s"
    if sample.p50_ms is not None and sample.p99_ms is not None:
        text += f"   p50 {sample.p50_ms:>6.1f} ms   p99 {sample.p99_ms:>6.1f} ms"
    if sample.unexpected:
        text += f"   {sample.unexpected} unexpected answers"
    return text


def compare(samples: Sequence[Sample]) -> Report:
    """Medians, ratios and bars."""
    middle = medians(samples)
    report = Report("bench", "Fairline and a plain Celery application")
    baseline = middle.get(f"accept: baseline @{BAR_CONNECTIONS}")
    ceiling = middle.get(f"empty Flask route @{BAR_CONNECTIONS}")
    fairline = middle.get(f"accept: Fairline @{BAR_CONNECTIONS}")
    if fairline and baseline and ceiling:
        report.tables.append(
            Table(
                "Requests, medians",
                (
                    "",
                    "requests/s",
                    "p50 ms",
                    "p99 ms",
                    "of the baseline",
                    "of the empty route",
                ),
                [
                    (
                        *(
                            s.name,
                            f"{s.rate:,.0f}",
                            f"{s.p50_ms:.1f}",
                            f"{s.p99_ms:.1f}",
                        ),
                        f"{s.rate / baseline.rate:.2f} x",
                        f"{s.rate / ceiling.rate:.2f} x",
                    )
                    for s in middle.values()
                    if s.p50_ms is not None
                ],
            )
        )
        report.bars += [
            Bar(
                f"accept rate at {BAR_CONNECTIONS} connections, of the baseline's",
                *(fairline.rate / baseline.rate, ">=", ACCEPT_RATIO, " x"),
            ),
            Bar(
                "its p99, of the baseline's",
                *((fairline.p99_ms or 0.0) / (baseline.p99_ms or 1.0), "<=", 1.0, " x"),
            ),
        ]
    ours = middle.get("no-op: Fairline, one worker")
    theirs = middle.get("no-op: baseline, one worker")
    if ours and theirs:
        rows = [
            (s.name, f"{s.rate:,.0f}", f"{s.rate / theirs.rate:.2f} x")
            for s in (ours, theirs)
        ]
        report.tables.append(
            Table("Jobs, medians", ("", "jobs/s", "of the baseline"), rows)
        )
        report.bars.append(
            Bar(
                "durable no-op jobs through one worker, of the baseline's",
                *(ours.rate / theirs.rate, ">=", NOOP_RATIO, " x"),
            )
        )
    report.bars.append(
        Bar("unexpected answers", sum(s.unexpected for s in samples), "<=", 0.0)
    )
    report.tables.append(cores_table(middle))
    report.data = {
        "medians": [asdict(sample) for sample in middle.values()],
        "rounds": [asdict(sample) for sample in samples],
    }
    return report


def cores_table(middle: dict[str, Sample]) -> Table:
    """Who used the cores."""
    rows = []
    for sample in middle.values():
        parts = dict.fromkeys(CORE_PARTS, 0.0)
        for name, used in sample.cores.items():
            part = "worker" if "worker" in name else name
            if part in parts:
                parts[part] += used
        machine = sample.cores.get("machine", 0.0)
        strangers = max(0.0, machine - sum(parts.values()))
        rows.append(
            (sample.name, *(f"{v:.2f}" for v in parts.values()), f"{strangers:.2f}")
        )
    return Table("Cores in use", ("", *CORE_PARTS, "others"), rows)


def main() -> int:
    """Measure, print, write."""
    asked = options()
    console = Console()
    console.print("starting a private PostgreSQL and RabbitMQ")
    with fleet("bench") as started:
        samples = measure(asked, console, started)
    report = compare(samples)
    report.show(console)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
