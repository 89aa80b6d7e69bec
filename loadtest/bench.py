"""``make bench``: Fairline and a plain Celery application, measured in one run on one machine.

The two take turns on the same PostgreSQL and RabbitMQ for several rounds, and medians are compared.
A round in which other processes used much of the machine is repeated, a few times at most. Absolute
rates differ from machine to machine; the ratios are what counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console

from loadtest.accept import Servers, drain_fairline, drain_plain, profile_accept, profile_noop
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, fleet
from loadtest.plain import PlainCelery
from loadtest.report import Bar, Report, Table, command, table

BAR_CONNECTIONS = 64
ACCEPT_RATIO = 5.5
#: With many connections, of the rate of an empty Flask route.
CROWD_CONNECTIONS = 256
CROWD_RATIO = 0.75
#: The same, for polls of applications that are scored or have not changed.
POLL_RATIO = 0.8
POLLS = ("poll: Fairline, scored", "poll: Fairline, 304")
NOOP_RATIO = 5.0
CORE_PARTS = ("generator", "api", "plain-web", "worker", "scheduler", "postgres", "rabbitmq")


def compare(samples: Sequence[Sample]) -> Report:
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
    """The servers at one number of connections, if they were measured."""
    at = f" @{connections}"
    baseline = middle.get(f"accept: baseline{at}")
    ceiling = middle.get(f"empty Flask route{at}")
    fairline = middle.get(f"accept: Fairline{at}")
    if not (fairline and baseline and ceiling):
        return
    columns: dict[str, Any] = {
        "": lambda sample: sample.name.removesuffix(at),
        "requests/s": "{.rate:,.0f}",
        "p50 ms": "{.p50_ms:.1f}",
        "p99 ms": "{.p99_ms:.1f}",
        "x baseline": lambda sample: f"{sample.rate / baseline.rate:.2f}",
        "x empty": lambda sample: f"{sample.rate / ceiling.rate:.2f}",
        "per core-second": "{.per_core_second:,.0f}",
    }
    measured = [sample for sample in middle.values() if sample.name.endswith(at)]
    title = f"Requests at {connections} connections, medians"
    report.tables.append(table(title, columns, measured))
    where = f"at {connections} connections, of"
    if connections == BAR_CONNECTIONS:
        tails = (fairline.p99_ms or 0.0) / (baseline.p99_ms or 1.0)
        report.bars += [
            ratio(f"accept rate {where} the baseline's", fairline, baseline, ACCEPT_RATIO),
            Bar("its p99, of the baseline's", tails, "<=", 1.0, " x"),
        ]
    empty = f"{where} an empty Flask route's"
    if connections == CROWD_CONNECTIONS:
        report.bars.append(ratio(f"accept rate {empty}", fairline, ceiling, CROWD_RATIO))
    for name in POLLS:
        if polled := middle.get(f"{name}{at}"):
            report.bars.append(ratio(f"rate of {name} {empty}", polled, ceiling, POLL_RATIO))


def ratio(claim: str, one: Sample, other: Sample, least: float) -> Bar:
    """One rate must be so many times the other."""
    return Bar(claim, one.rate / other.rate, ">=", least, " x")


def compare_jobs(report: Report, middle: dict[str, Sample]) -> None:
    """Durable no-op jobs, if they were measured."""
    ours = middle.get("no-op: Fairline, one worker")
    theirs = middle.get("no-op: baseline, one worker")
    if not (ours and theirs):
        return
    columns: dict[str, Any] = {
        "": "{.name}",
        "jobs/s": "{.rate:,.0f}",
        "x baseline": lambda sample: f"{sample.rate / theirs.rate:.2f}",
        "per core-second": "{.per_core_second:,.0f}",
    }
    measured = (ours, middle.get("end to end: Fairline, HTTP batches"), theirs)
    report.tables.append(table("Durable no-op jobs, medians", columns, filter(None, measured)))
    claim = "durable no-op jobs through one worker, of the baseline's"
    report.bars.append(ratio(claim, ours, theirs, NOOP_RATIO))


def cores_table(middle: dict[str, Sample]) -> Table:
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


#: Cores that other processes may use before a round counts as disturbed.
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
            found = one_round()
            calm = max(sample.strangers for sample in found) <= QUIET_CORES
            (quiet if calm else disturbed).append(found)
            note = "" if calm else "  (disturbed by other processes)"
            number = len(quiet) + len(disturbed)
            self._console.print(f"[bold]{title}, round {number}[/]{note}")
            for sample in found:
                self._console.print(f"  {line(sample)}", highlight=False)
        if disturbed:
            used = "the quiet ones count" if quiet else "none was quiet, so all of them count"
            self.notes.append(
                f"{title}: {len(disturbed)} of {len(quiet) + len(disturbed)} rounds were disturbed "
                f"by other processes; {used}."
            )
        for counted in quiet or disturbed:
            self.samples.extend(counted)


def line(sample: Sample) -> str:
    text = f"{sample.name:<32}{sample.rate:>8,.0f}/s"
    if sample.p50_ms is not None and sample.p99_ms is not None:
        text += f"   p50 {sample.p50_ms:>6.1f} ms   p99 {sample.p99_ms:>6.1f} ms"
    if sample.unexpected:
        text += f"   {sample.unexpected} unexpected answers"
    return text


def run(asked: argparse.Namespace, console: Console) -> Report:
    rounds = Rounds(console, asked.rounds)
    console.print("starting a private PostgreSQL and RabbitMQ")
    with fleet("bench") as started:
        fairline = Fairline(started, served_pools="medium")
        plain = PlainCelery(started)
        if asked.only != "noop":
            servers = Servers(fairline, plain, asked.seconds)
            with servers.open():
                servers.take_turns(BAR_CONNECTIONS, poll=False)  # the first requests do not count
                rounds.run("requests", partial(servers.take_turns, BAR_CONNECTIONS, poll=True))
                for number in (16, CROWD_CONNECTIONS) if asked.full else ():
                    one_round = partial(servers.take_turns, number, poll=False)
                    rounds.run(f"requests at {number}", one_round)
                if asked.profile:
                    profile_accept(fairline, console)
        if asked.only != "accept":
            rounds.run(
                "no-op jobs",
                lambda: [
                    drain_fairline(fairline, asked.jobs),
                    drain_fairline(fairline, asked.jobs, over_http=True),
                    drain_plain(plain, asked.plain_jobs),
                ],
            )
            if asked.profile:
                profile_noop(fairline, asked.jobs, console)
    report = compare(rounds.samples)
    report.notes += rounds.notes
    return report


FLAGS = (
    ("--rounds", 3, "turns of each"),
    ("--seconds", 4.0, "of each measurement of requests"),
    ("--jobs", 20_000, "no-op jobs for Fairline"),
    ("--plain-jobs", 6_000, "no-op tasks for the baseline"),
    ("--full", False, "also at 16 and 256 connections"),
    ("--only", ("accept", "noop"), "one of the two measurements"),
    ("--profile", False, "a profiled round at the end (needs py-spy)"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.bench", __doc__, run, *FLAGS))
