"""``python -m loadtest.chaos``: minutes of kills, freezes and restarts, and the verdict."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtest.chaos.judge import Report
from loadtest.chaos.plan import TARGETS, Act
from loadtest.chaos.run import Progress, Wish, run
from loadtest.chaos.striker import Strike


class Display:
    """Shows where the run is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._progress: Progress | None = None
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, progress: Progress) -> None:
        """Something happened."""
        self._progress = progress
        if not self._console.is_terminal:
            for strike in progress.striker.strikes[self._shown :]:
                self._console.print(line(strike, progress.planned))
            if len(progress.striker.strikes) == progress.planned:
                elapsed = time.monotonic() - progress.began
                self._console.print(f"{elapsed:.0f} s, {progress.now}: {counts(progress)}")
        self._shown = len(progress.striker.strikes)

    def _draw(self) -> Group:
        return picture(self._progress) if self._progress else Group()


def picture(progress: Progress) -> Group:
    """The last hits, the bar, the counts, the moment."""
    done = len(progress.striker.strikes)
    bar = Table.grid(padding=(0, 1))
    elapsed = f"{time.monotonic() - progress.began:.0f} s"
    bar.add_row(
        ProgressBar(progress.planned, done, width=40), f"{done}/{progress.planned}", elapsed
    )
    last = progress.striker.strikes[-5:]
    return Group(
        *(Text(line(strike, progress.planned), style="dim") for strike in last),
        bar,
        Text(counts(progress), style="green"),
        Text(progress.now, style="cyan"),
    )


def line(strike: Strike, planned: int) -> str:
    """One hit in words."""
    what = str(strike.hit) if strike.pids else f"{strike.hit}: nobody was there"
    who = f"pid {strike.pids[0]}" if strike.pids else ""
    return f"{strike.hit.number:>3}/{planned} {strike.hit.at_seconds:6.1f} s  {what} {who}"


def counts(progress: Progress) -> str:
    """What the clients have had so far."""
    ledger = progress.ledger
    return (
        f"{ledger.count(202)} accepted, {ledger.count(0)} unanswered, {ledger.count(503)} refused"
        f" of {ledger.total()} requests; {len(progress.listener.heard)} ends heard over"
        f" {progress.listener.connections} connections"
    )


def show_summary(
    console: Console, strikes: Sequence[Strike], report: Report, seconds: float
) -> None:
    """Hits by target, figures, faults, verdict."""
    hits = Table(title="Hits", title_style="bold")
    for column in ("target", *(act.value for act in Act), "missed", "replaced: median, worst s"):
        hits.add_column(column, justify="left" if column == "target" else "right")
    for target in sorted({strike.hit.target for strike in strikes}):
        mine = [strike for strike in strikes if strike.hit.target == target]
        met = [strike for strike in mine if strike.pids]
        hits.add_row(
            target,
            *(str(sum(strike.hit.act is act for strike in met)) for act in Act),
            str(len(mine) - len(met)),
            spread([strike.replaced for strike in mine if strike.replaced is not None]),
        )
    console.print(hits)
    found = Table(title="Promises against tables", title_style="bold")
    found.add_column("finding")
    found.add_column("count", justify="right")
    found.add_column("such as", overflow="fold")
    for name, count in report.figures.items():
        found.add_row(name, str(count))
    found.add_section()
    for name, faults in report.faults.items():
        style = "red" if faults else "green"
        found.add_row(name, str(len(faults)), "\n".join(faults[:3]), style=style)
    console.print(found)
    verdict = "[bold green]every promise kept[/]" if report.ok else "[bold red]promises broken[/]"
    console.print(f"{verdict} in {seconds:.0f} s")


def spread(values: Sequence[float]) -> str:
    """Median and worst."""
    return f"{median(values):.1f}  {max(values):.1f}" if values else ""


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to hit (2)")
    parser.add_argument("--seed", type=int, help="repeat the hits and the load of a run")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--broker", choices=("rabbitmq", "filesystem"), default="rabbitmq")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second (10)")
    parser.add_argument("--folder", type=Path, help="where log and report go")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stack must not outlive us
    targets = tuple(target.strip() for target in given.targets.split(",") if target.strip())
    if given.broker == "filesystem":
        targets = tuple(target for target in targets if target != "rabbitmq")  # no process
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fairline-chaos-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    wish = Wish(seed, given.minutes * 60, folder, targets, given.broker, given.rate)
    hits = wish.hits()
    console = Console(highlight=False)
    console.print(
        f"Seed [bold]{seed}[/]: {len(hits)} hits in {given.minutes:g} min,"
        f" {sum(hit.act is Act.KILL for hit in hits)} of them kills, under {given.rate:g}"
        f" requests a second. Log and report: {folder}"
    )
    began = time.monotonic()
    with Display(console) as display:
        striker, report = run(wish, display.update)
    show_summary(console, striker.strikes, report, time.monotonic() - began)
    if not report.ok:
        same = f"--seed {seed} --minutes {given.minutes:g} --rate {given.rate:g}"
        which = f"--targets {','.join(targets)} --broker {given.broker}"
        console.print(f"Repeat it: python -m loadtest.chaos {same} {which}", soft_wrap=True)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
