"""``python -m loadtest.chaos``: minutes of kills, freezes and other faults, and what they broke."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from loadtest.chaos.judge import Findings
from loadtest.chaos.plan import TARGETS, Act
from loadtest.chaos.run import ChaosOptions, Progress, impossible, run
from loadtest.chaos.striker import Strike
from loadtest.report import Bar, Report, Table

#: Variables that choose the broker of the stack; see `app.stack`.
CHOOSE = ("QUEUE_TYPE", "RABBITMQ")
OF_RABBITMQ = ("rabbitmq", "slow-rabbitmq", "memory-alarm", "purged-queues", "deleted-queues")


class Display:
    """Prints every hit, and a status line in a terminal."""

    def __init__(self, console: Console, planned: int) -> None:
        self._console = console
        self._planned = planned
        self._shown = 0
        self.status = console.status("warming up")

    def update(self, progress: Progress) -> None:
        strikes = progress.striker.strikes
        for strike in strikes[self._shown :]:
            hit = strike.hit
            found = f"pid {strike.pids[0]}" if strike.pids else "no such process"
            self._console.print(
                f"{hit.number:>3}/{self._planned} {hit.at_seconds:6.1f} s  {hit} {found}"
            )
        self._shown = len(strikes)
        text = f"{time.monotonic() - progress.began:.0f} s, {progress.now}: {counts(progress)}"
        self.status.update(text)
        if self._shown == self._planned and not self._console.is_terminal:
            self._console.print(text)


def counts(progress: Progress) -> str:
    answers, listener = progress.log.answers, progress.listener
    return (
        f"{answers[202]} accepted, {answers[0]} unanswered, {answers[503]} refused of"
        f" {answers.total()} requests; {len(listener.ends)} end events received over"
        f" {listener.connections} connections"
    )


def summary(strikes: Sequence[Strike], found: Findings, seconds: float) -> Report:
    hits = []
    for target in sorted({strike.hit.target for strike in strikes}):
        mine = [strike for strike in strikes if strike.hit.target == target]
        acts = Counter(strike.hit.act for strike in mine if strike.pids)
        took = [strike.replaced for strike in mine if strike.replaced is not None]
        spread = f"{median(took):.1f}  {max(took):.1f}" if took else ""
        missed = str(len(mine) - acts.total())
        hits.append((target, *(str(acts[act]) for act in Act), missed, spread))
    headings = ("target", *Act, "missed", "replaced: median, worst s")
    figures = [(name, str(count)) for name, count in found.figures.items()]
    return Report(
        *("chaos", "Promises under chaos"),
        findings=[f"promises {'kept' if found.ok else 'broken'} in {seconds:.0f} s"],
        tables=[Table("Hits", headings, hits), Table("Figures", ("", "count"), figures)],
        bars=[Bar(name, len(faults), "<=", 0) for name, faults in found.faults.items()],
        notes=[f"{name}: {'; '.join(each[:3])}" for name, each in found.faults.items() if each],
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to hit (2)")
    parser.add_argument("--seed", type=int, help="repeat the hits and the load of a run")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--broker", choices=("rabbitmq", "filesystem"), default="rabbitmq")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (10)")
    parser.add_argument("--folder", type=Path, help="where log and report go")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stack must not outlive us
    targets = tuple(target.strip() for target in given.targets.split(",") if target.strip())
    left_out = impossible()
    if given.broker == "filesystem":
        left_out |= dict.fromkeys(OF_RABBITMQ, "there is no RabbitMQ")
    targets = tuple(target for target in targets if target not in left_out)
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fairline-chaos-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    options = ChaosOptions(seed, given.minutes * 60, folder, targets, given.broker, given.rate)
    hits = options.hits()
    console = Console(highlight=False)
    console.print(
        f"Seed [bold]{seed}[/]: {len(hits)} hits in {given.minutes:g} min,"
        f" {sum(hit.act is Act.KILL for hit in hits)} of them kills, under {given.rate:g}"
        f" requests per second. Log and report: {folder}"
    )
    chosen = " ".join(f"{name}={os.environ[name]}" for name in CHOOSE if os.environ.get(name))
    if chosen:
        console.print(f"Broker: {chosen}", soft_wrap=True)
    for name, reason in left_out.items():
        console.print(f"Left out: {name}, as {reason}.")
    began = time.monotonic()
    display = Display(console, len(hits))
    with display.status:
        striker, report = run(options, display.update)
    summary(striker.strikes, report, time.monotonic() - began).show(console)
    if not report.ok:
        same = f"--seed {seed} --minutes {given.minutes:g} --rate {given.rate:g}"
        which = f"--targets {','.join(targets)} --broker {given.broker}"
        console.print(
            f"Repeat it: {chosen} python -m loadtest.chaos {same} {which}", soft_wrap=True
        )
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
