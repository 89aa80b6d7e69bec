"""What a chaos run shows: a bar and a live line on a terminal, a line for each hit elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtest.chaos.plan import Act
from loadtest.chaos.report import Report
from loadtest.chaos.run import Progress
from loadtest.chaos.striker import Strike

REFRESH_SECONDS = 0.5


class Display:
    """Shows where the run is."""

    def __init__(self, console: Console) -> None:
        self._console = console
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
            for strike in progress.striker.strikes[self._shown :]:
                self._console.print(line(strike, progress.planned))
            if len(progress.striker.strikes) == progress.planned:
                elapsed = time.monotonic() - progress.began
                self._console.print(f"{elapsed:.0f} s, {progress.now}: {counts(progress)}")
        self._shown = len(progress.striker.strikes)

    def _redraw(self) -> None:
        while not self._stop.wait(REFRESH_SECONDS):
            if self._progress and self._live:
                self._live.update(picture(self._progress), refresh=True)


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
