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
from functools import partial

from rich.console import Console

from loadtest.accept import FrontDoors
from loadtest.batches import flow_fairline
from loadtest.comparison import BAR_CONNECTIONS, compare
from loadtest.fairline import Fairline
from loadtest.fleet import fleet
from loadtest.noop import drain_fairline, drain_plain
from loadtest.plain import PlainCelery
from loadtest.profiling import profile_accept, profile_noop
from loadtest.samples import Sample

#: Cores that strangers may take before a round counts as disturbed.
QUIET_CORES = 0.3


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What may be asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="turns of each (3)")
    add("--seconds", type=float, default=4.0, help="of each slice of requests (4)")
    add("--jobs", type=int, default=20_000, help="no-op jobs for Fairline (20000)")
    add("--plain-jobs", type=int, default=6_000, help="no-op tasks for the baseline (6000)")
    add("--full", action="store_true", help="also at 16 and 256 connections")
    add("--only", choices=("accept", "noop"), help="one of the two measurements")
    add("--profile", action="store_true", help="a profiled round at the end (needs py-spy)")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    return parser.parse_args(arguments)


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
    asked = options(arguments)
    console = Console()
    rounds = run(asked, console)
    report = compare(rounds.samples)
    report.notes += rounds.notes
    report.show(console)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
