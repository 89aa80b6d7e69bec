"""``make bench``: Fairline and a plain Celery application, measured in one run on one machine.

The two take turns on the same PostgreSQL and the same RabbitMQ, several rounds, and medians are
compared, so that whatever else the machine does hits both alike. A round in which strangers took
much of the machine is repeated, a few times at most. Absolute rates differ from machine to
machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from rich.console import Console

from loadtest.accept import (
    FrontDoors,
    drain_fairline,
    drain_plain,
    flow_fairline,
    profile_accept,
    profile_noop,
)
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, fleet
from loadtest.plain import PlainCelery
from loadtest.report import NO_FAIL, Bar, Report, Table, options

BAR_CONNECTIONS = 64
ACCEPT_RATIO = 5.5
#: Where many connections are open, of what an empty route of Flask's answers.
CROWD_CONNECTIONS = 256
CROWD_RATIO = 0.75
#: Of the same, for who asks again about what he knows or what has ended.
POLL_RATIO = 0.8
POLLS = ("poll: Fairline, scored", "poll: Fairline, 304")
NOOP_RATIO = 5.0
CORE_PARTS = ("generator", "api", "plain-web", "worker", "scheduler", "postgres", "rabbitmq")


def compare(samples: Sequence[Sample]) -> Report:
    """What the samples say."""
    middle = medians(samples)
    report = Report("bench", "Fairline and a plain Celery application")
    for connections in (BAR_CONNECTIONS, 16, CROWD_CONNECTIONS):
        compare_requests(report, middle, connections)
    compare_jobs(report, middle)
    report.bars.append(Bar("unexpected answers", sum(s.unexpected for s in samples), "<=", 0.0))
    report.tables.append(cores_table(middle))
    report.data = {
        "medians": [asdict(sample) for sample in middle.values()],
        "rounds": [asdict(sample) for sample in samples],
    }
    return report


def compare_requests(report: Report, middle: dict[str, Sample], connections: int) -> None:
    """Front doors at one number of connections, if they were measured."""
    at = f" @{connections}"
    baseline = middle.get(f"accept: baseline{at}")
    ceiling = middle.get(f"empty Flask route{at}")
    fairline = middle.get(f"accept: Fairline{at}")
    if not (fairline and baseline and ceiling):
        return
    report.tables.append(
        Table(
            f"Requests at {connections} connections, medians",
            ("", "requests/s", "p50 ms", "p99 ms", "x baseline", "x empty", "per core-second"),
            [
                (
                    *(s.name.removesuffix(at), f"{s.rate:,.0f}", f"{s.p50_ms:.1f}"),
                    *(f"{s.p99_ms:.1f}", f"{s.rate / baseline.rate:.2f}"),
                    *(f"{s.rate / ceiling.rate:.2f}", f"{s.per_core_second:,.0f}"),
                )
                for s in middle.values()
                if s.name.endswith(at)
            ],
        )
    )
    claims: list[tuple[str, float, float]] = []
    at_connections = f"at {connections} connections, of"
    if connections == BAR_CONNECTIONS:
        of_theirs = fairline.rate / baseline.rate
        claims.append((f"accept rate {at_connections} the baseline's", of_theirs, ACCEPT_RATIO))
        tails = (fairline.p99_ms or 0.0) / (baseline.p99_ms or 1.0)
        report.bars.append(Bar("its p99, of the baseline's", tails, "<=", 1.0, " x"))
    empty = f"{at_connections} an empty Flask route's"
    if connections == CROWD_CONNECTIONS:
        claims.append((f"accept rate {empty}", fairline.rate / ceiling.rate, CROWD_RATIO))
    claims += [
        (f"rate of {name} {empty}", polled.rate / ceiling.rate, POLL_RATIO)
        for name in POLLS
        if (polled := middle.get(f"{name}{at}"))
    ]
    report.bars += [Bar(claim, value, ">=", least, " x") for claim, value, least in claims]


def compare_jobs(report: Report, middle: dict[str, Sample]) -> None:
    """Durable no-op jobs, if they were measured."""
    ours = middle.get("no-op: Fairline, one worker")
    theirs = middle.get("no-op: baseline, one worker")
    if not (ours and theirs):
        return
    report.tables.append(
        Table(
            "Durable no-op jobs, medians",
            ("", "jobs/s", "x baseline", "per core-second"),
            [
                (
                    *(s.name, f"{s.rate:,.0f}", f"{s.rate / theirs.rate:.2f}"),
                    f"{s.per_core_second:,.0f}",
                )
                for s in (ours, middle.get("end to end: Fairline, HTTP batches"), theirs)
                if s is not None
            ],
        )
    )
    report.bars.append(
        Bar(
            "durable no-op jobs through one worker, of the baseline's",
            *(ours.rate / theirs.rate, ">=", NOOP_RATIO, " x"),
        )
    )


def cores_table(middle: dict[str, Sample]) -> Table:
    """Who used the cores."""
    rows = []
    for sample in middle.values():
        parts = dict.fromkeys(CORE_PARTS, 0.0)
        for name, used in sample.cores.items():
            part = "worker" if "worker" in name else name
            if part in parts:
                parts[part] += used
        figures = (*parts.values(), sample.strangers)
        rows.append((sample.name, *(f"{figure:.2f}" for figure in figures)))
    return Table("Cores in use", ("", *CORE_PARTS, "others"), rows)


#: Cores that strangers may take before a round counts as disturbed.
QUIET_CORES = 0.3


class Rounds:
    """Repeats a round until enough of them were quiet, and keeps the quiet ones if any were."""

    def __init__(self, console: Console, wanted: int) -> None:
        self._console = console
        self._wanted = wanted
        #: Every sample of every round that counts.
        self.samples: list[Sample] = []
        #: What was disturbed.
        self.notes: list[str] = []

    def run(self, title: str, one_round: Callable[[], Sequence[Sample]]) -> None:
        """Run the rounds of one measurement; twice as many as wanted at most."""
        quiet: list[Sequence[Sample]] = []
        disturbed: list[Sequence[Sample]] = []
        while len(quiet) < self._wanted and len(quiet) + len(disturbed) < 2 * self._wanted:
            number = len(quiet) + len(disturbed) + 1
            found = one_round()
            calm = max(sample.strangers for sample in found) <= QUIET_CORES
            (quiet if calm else disturbed).append(found)
            note = "" if calm else "  (disturbed by something else on this machine)"
            self._console.print(f"[bold]{title}, round {number}[/]{note}")
            for sample in found:
                self._console.print(f"  {line(sample)}", highlight=False)
        if disturbed:
            used = "the quiet ones count" if quiet else "none was quiet, so all of them count"
            self.notes.append(
                f"{title}: {len(disturbed)} of {len(quiet) + len(disturbed)} rounds were disturbed "
                f"by something else on this machine; {used}."
            )
        for counted in quiet or disturbed:
            self.samples.extend(counted)


def line(sample: Sample) -> str:
    """A sample in one line, as it comes in."""
    text = f"{sample.name:<32}{sample.rate:>8,.0f}/s"
    if sample.p50_ms is not None and sample.p99_ms is not None:
        text += f"   p50 {sample.p50_ms:>6.1f} ms   p99 {sample.p99_ms:>6.1f} ms"
    if sample.unexpected:
        text += f"   {sample.unexpected} unexpected answers"
    return text


def run(asked: argparse.Namespace, console: Console) -> Rounds:
    """Everything that was asked for, on services of its own."""
    rounds = Rounds(console, asked.rounds)
    console.print("starting a private PostgreSQL and RabbitMQ")
    with fleet("bench") as started:
        fairline = Fairline(started, served_pools="medium")
        plain = PlainCelery(started)
        if asked.only != "noop":
            doors = FrontDoors(fairline, plain, asked.seconds)
            with doors.open():
                doors.take_turns(BAR_CONNECTIONS, poll=False)  # first touches are nobody's figures
                rounds.run("requests", partial(doors.take_turns, BAR_CONNECTIONS, poll=True))
                for connections in (16, 256) if asked.full else ():
                    rounds.run(
                        f"requests at {connections}",
                        partial(doors.take_turns, connections, poll=False),
                    )
                if asked.profile:
                    profile_accept(fairline, console)
        if asked.only != "accept":
            rounds.run(
                "no-op jobs",
                lambda: [
                    drain_fairline(fairline, asked.jobs),
                    flow_fairline(fairline, asked.jobs),
                    drain_plain(plain, asked.plain_jobs),
                ],
            )
            if asked.profile:
                profile_noop(fairline, asked.jobs, console)
    return rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    asked = options(
        *("python -m loadtest.bench", __doc__),
        ("--rounds", 3, "turns of each"),
        ("--seconds", 4.0, "of each slice of requests"),
        ("--jobs", 20_000, "no-op jobs for Fairline"),
        ("--plain-jobs", 6_000, "no-op tasks for the baseline"),
        ("--full", False, "also at 16 and 256 connections"),
        ("--only", ("accept", "noop"), "one of the two measurements"),
        ("--profile", False, "a profiled round at the end (needs py-spy)"),
        NO_FAIL,
        given=arguments,
    )
    console = Console()
    rounds = run(asked, console)
    report = compare(rounds.samples)
    report.notes += rounds.notes
    return report.conclude(console, no_fail=asked.no_fail)


if __name__ == "__main__":
    sys.exit(main())
