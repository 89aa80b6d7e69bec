"""``python -m loadtest.lab [--quick] [NAME …]``: run experiments and report on them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from loadtest.fleet import fleet
from loadtest.lab.experiment import NAMES, Desk, Experiment, Size, experiment, write_csv
from loadtest.report import BAR_HEADINGS, RESULTS, Bar, Report, Table, describe, markdown

#: The bar waits here for an experiment that takes longer than it said.
ALMOST = 0.99


class LiveLine:
    """A bar by the clock; without a terminal, a line for each step."""

    def __init__(self, console: Console, title: str, seconds: float) -> None:
        self._console = console
        self._title = title
        self._seconds = max(1.0, seconds)
        self._began = time.monotonic()
        self._figures = ""
        step = TextColumn("{task.fields[step]}")
        columns = (BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn(), step)
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task(title, total=self._seconds, step="")
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        about = f"about {self._seconds / 60:.1f} min"
        self._console.print(f"[bold]{self._title}[/], {about}", highlight=False)
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def step(self, name: str) -> None:
        """A new step begins."""
        self._figures = ""
        self._progress.update(self._task, step=name)
        if not self._console.is_terminal:
            self._console.print(f"  {self._elapsed():>5.0f} s  {name}", highlight=False)

    def figures(self, text: str) -> None:
        """The figures of this second."""
        self._figures = text

    def _draw(self) -> RenderableType:
        done = min(self._elapsed(), ALMOST * self._seconds)
        self._progress.update(self._task, completed=done)
        below = Text(f"  {self._figures}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self._progress, below)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


def write_summary(results: Path) -> Path:
    """Read what each experiment left behind and put it on one page."""
    lines = ["# The load lab", ""]
    found = 0
    for name in NAMES:
        file = results / name / "report.json"
        if not file.exists():
            continue
        found += 1
        lines += section(name, json.loads(file.read_text()))
    if not found:
        lines += ["Nothing has been run yet: `make lab`, or `QUICK=1 make lab`.", ""]
    summary = results / "report.md"
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text("\n".join(lines))
    return summary


def section(name: str, document: Mapping[str, Any]) -> list[str]:
    """One experiment: what it asked, what it found, its picture."""
    bars = [
        Bar(bar["claim"], bar["measured"], bar["relation"], bar["required"], bar["unit"])
        for bar in document["bars"]
    ]
    reached = sum(bar.passed for bar in bars)
    size = "" if document.get("size") == "full" else f", {document.get('size')} run"
    return [
        f"## [{document['title']}]({name}/report.md)",
        "",
        document["question"],
        "",
        f"**{reached} of {len(bars)} bars reached**{size}. {document['measured_at']}, "
        f"{describe(document['machine'])}.",
        "",
        *(f"{sentence}\n" for sentence in document.get("findings", ())),
        *(
            f"![{each['caption']}]({name}/{each['file']})\n"
            for each in document.get("pictures", ())[:1]
        ),
        *markdown(Table("Bars", BAR_HEADINGS, [bar.cells() for bar in bars])),
        "",
    ]


#: Columns of a table that nobody looks at in a terminal.
WIDE = 160
#: As a shell says that Ctrl-C ended a program.
INTERRUPTED = 130


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What may be asked for."""
    known = ", ".join(NAMES)
    parser = argparse.ArgumentParser(prog="python -m loadtest.lab", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"{known}; all of them unless named")
    add("--quick", action="store_true", help="all in ten minutes, with wider margins")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    add("--list", action="store_true", help="say what there is and how long it takes")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {known}")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, one after the other."""
    asked = options(arguments)
    # In a file a table is as wide as it needs to be.
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    size = Size.QUICK if asked.quick else Size.FULL
    chosen = [experiment(name) for name in asked.names or NAMES]
    if asked.list:
        for each in chosen:
            minutes = each.seconds(size) / 60
            console.print(
                f"{each.name:<9}{minutes:>5.1f} min  {each.question}",
                highlight=False,
                soft_wrap=True,
            )
        return 0
    try:
        reports = [run(each, size, console) for each in chosen]
    except KeyboardInterrupt:
        console.print("Stopped. Everything that it started has ended; no report was written.")
        return INTERRUPTED
    console.print(f"every experiment that was run, on one page: {write_summary(RESULTS)}")
    return 0 if asked.no_fail or all(report.passed for report in reports) else 1


def run(chosen: Experiment, size: Size, console: Console) -> Report:
    """One experiment on services of its own, shown while it runs."""
    folder = RESULTS / chosen.name
    began = time.monotonic()
    with LiveLine(console, chosen.title, chosen.seconds(size)) as line:
        line.step("starting a private PostgreSQL and RabbitMQ")
        with fleet(f"lab-{chosen.name}") as started:
            desk = Desk(started, folder, size, on_step=line.step, on_figures=line.figures)
            report = chosen.run(desk)
    report.data["question"] = chosen.question
    report.data["size"] = size.value
    report.data["took_seconds"] = round(time.monotonic() - began)
    if size is not Size.FULL:
        report.notes.append("A quick run: shorter steps, wider margins than a full one.")
    write_csv(folder / "seconds.csv", desk.seconds)
    report.show(console)
    console.print(f"written to {report.write(folder)}\n")
    return report


if __name__ == "__main__":
    sys.exit(main())
