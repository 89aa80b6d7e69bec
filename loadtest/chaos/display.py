"""What a chaos run shows: a live table on a terminal, a line for each recovery elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from statistics import median
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtest.chaos.checker import Report
from loadtest.chaos.rounds import Progress, Recovery

REFRESH_SECONDS = 0.5


class Display:
    """Shows the progress of the rounds."""

    def __init__(self, console: Console, strikes: int) -> None:
        self._console = console
        self._strikes = strikes
        self._shown = 0
        self._progress: Progress | None = None
        self._stop = threading.Event()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._thread = threading.Thread(target=self._redraw, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._live:
            self._thread.join()
            self._live.stop()

    def update(self, progress: Progress) -> None:
        """Something happened."""
        self._progress = progress
        if self._live is None:
            for recovery in progress.recoveries[self._shown :]:
                self._console.print(self._line(recovery))
            if len(progress.recoveries) == self._strikes:
                self._console.print(progress.now)
        self._shown = len(progress.recoveries)

    def _line(self, recovery: Recovery) -> str:
        return (
            f"{recovery.strike.number:>3}/{self._strikes} {recovery.strike.target:<10} "
            f"replaced {recovery.replaced:5.1f} s, 202 {recovery.accepted:5.1f} s, "
            f"scored {recovery.scored:5.1f} s"
        )

    def _redraw(self) -> None:
        while not self._stop.wait(REFRESH_SECONDS):
            if self._progress and self._live:
                self._live.update(self._picture(self._progress), refresh=True)

    def _picture(self, progress: Progress) -> Group:
        done = len(progress.recoveries)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(self._strikes, done, width=40), f"{done}/{self._strikes}")
        submitter = progress.submitter
        counts = Text(f"{submitter.accepted} accepted  ", style="green")
        counts.append(f"{submitter.refused} refused or unanswered", style="yellow")
        return Group(
            *(Text(self._line(recovery), style="dim") for recovery in progress.recoveries[-5:]),
            bar,
            counts,
            Text(progress.now, style="cyan"),
        )


def show_summary(
    console: Console, recoveries: Sequence[Recovery], report: Report, seconds: float
) -> None:
    """Recovery times by target, faults, verdict."""
    times = Table(title="Recovery, seconds after the kill (median, worst)", title_style="bold")
    for column in ("killed", "times", "replaced", "next 202", "next scored"):
        times.add_column(column, justify="left" if column == "killed" else "right")
    for target in dict.fromkeys(recovery.strike.target for recovery in recoveries):
        mine = [recovery for recovery in recoveries if recovery.strike.target == target]
        times.add_row(
            target,
            str(len(mine)),
            spread([recovery.replaced for recovery in mine]),
            spread([recovery.accepted for recovery in mine]),
            spread([recovery.scored for recovery in mine]),
        )
    console.print(times)
    faults = Table(title="Promises against tables", title_style="bold")
    faults.add_column("finding")
    faults.add_column("count", justify="right")
    faults.add_column("such as", overflow="fold")
    faults.add_row("promised by a 202", str(report.promised))
    faults.add_row("admitted, answer lost", str(report.unpromised))
    faults.add_row("runs lost with a worker", str(report.crashes))
    for name, found in report.faults.items():
        style = "red" if found else "green"
        faults.add_row(name.replace("_", " "), str(len(found)), "\n".join(found[:3]), style=style)
    console.print(faults)
    verdict = "[bold green]every promise kept[/]" if report.ok else "[bold red]promises broken[/]"
    console.print(f"{verdict} in {seconds:.0f} s")


def spread(values: Sequence[float]) -> str:
    """Median and worst."""
    return f"{median(values):.1f}  {max(values):.1f}"
