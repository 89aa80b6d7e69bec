"""``python -m loadtest.cluster_chaos``: minutes of faults in a cluster of three machines."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from app.stack.rabbitmq import find_server
from app.stack.screen import Screen
from loadtest.cluster.requirements import missing, patroni
from loadtest.cluster_chaos.gaps import (
    POSTGRES_BAR,
    RABBITMQ_BAR,
    after_postgres,
    after_rabbitmq,
    table,
)
from loadtest.cluster_chaos.run import ClusterChaosOptions, ClusterRun, run
from loadtest.report import Report, Table, at_most

GAPS = (
    *("fault", "times", "PostgreSQL", "accepting", "RabbitMQ", "jobs ending"),
    *("added by Fairline", "all members back"),
)


class Display:
    """Prints every fault, and a status line in a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self.status = console.status("starting the cluster")

    def update(self, progress: ClusterRun) -> None:
        for fault in progress.faults[self._shown :]:
            at = time.strftime("%H:%M:%S", time.gmtime(fault.at))
            self._shown += 1
            where = fault.where.removeprefix("machine-")
            self._console.print(f"{self._shown:>3} {at}  {fault.planned}, machine {where}")
        answers = progress.log.answers
        self.status.update(
            f"{progress.seconds:.0f} s, {progress.now}: {answers[202]} accepted, {answers[0]}"
            f" unanswered, {answers[503]} refused of {answers.total()} requests"
        )


def summary(progress: ClusterRun) -> Report:
    found, outages = progress.findings, progress.outages
    counts = Counter(fault.planned.kind for fault in progress.faults)
    stopped = sum(outage.stopped for outage in outages)
    figures = {"faults": len(progress.faults), **found.figures}
    return Report(
        *("chaos-cluster", "Promises while a cluster fails"),
        findings=[f"promises {'kept' if found.ok else 'broken'} in {progress.seconds:.0f} s"],
        tables=[
            Table("Gaps in seconds: median, worst", GAPS, table(outages)),
            Table("Faults", ("", "count"), [(kind, str(n)) for kind, n in sorted(counts.items())]),
            Table("Figures", ("", "count"), [(name, str(n)) for name, n in figures.items()]),
        ],
        bars=[
            *(at_most(name, len(faults)) for name, faults in found.faults.items()),
            at_most("service stopped while a machine was lost", stopped),
            at_most(
                "accepting again after PostgreSQL", after_postgres(outages), POSTGRES_BAR, " s"
            ),
            at_most("accepting again after RabbitMQ", after_rabbitmq(outages), RABBITMQ_BAR, " s"),
        ],
        notes=[
            *clock_notes(progress.clock_jump),
            *(f"{name}: {'; '.join(each[:3])}" for name, each in found.faults.items() if each),
            *(f"could not be done: {one}" for one in progress.failed),
        ],
    )


def clock_notes(jump: float) -> list[str]:
    """Patroni does not know its own PostgreSQL any more after such a jump."""
    if abs(jump) < 2:
        return []
    return [f"the clock of this machine was set by {jump:.0f} s: gaps and recoveries are not valid"]


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if every bar was met."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.cluster_chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to go on (5)")
    parser.add_argument("--seed", type=int, help="repeat the faults and the load of a run")
    parser.add_argument("--rate", type=float, default=6.0, help="requests per second (6)")
    parser.add_argument("--each", type=int, default=0, help="each kind so often, in order")
    parser.add_argument("--folder", type=Path, help="where log and report go")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster must not outlive us
    console = Console(highlight=False)
    rabbitmq = find_server()
    if lacking := missing() or (not rabbitmq and "RABBITMQ must name the folder of a RabbitMQ 4"):
        console.print(f"fairline: {lacking}")
        return 1
    assert rabbitmq is not None
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fairline-chaos-cluster-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    options = ClusterChaosOptions(
        *(seed, given.minutes * 60, folder, patroni(Screen()), rabbitmq.parent),
        *(given.rate, given.each),
    )
    what = f"each kind {given.each} times" if given.each else f"{given.minutes:g} min of faults"
    console.print(f"Seed [bold]{seed}[/]: {what}. Log and report: {folder}", soft_wrap=True)
    display = Display(console)
    with display.status:
        progress = run(options, display.update)
    report = summary(progress)
    report.show(console)
    if not report.passed:
        same = f"--seed {seed} --minutes {given.minutes:g} --rate {given.rate:g}"
        console.print(f"Repeat it: make chaos-cluster SEED={seed} MINUTES={given.minutes:g}")
        console.print(f"       or: python -m loadtest.cluster_chaos {same}", soft_wrap=True)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
