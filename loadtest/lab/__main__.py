"""``python -m loadtest.lab [--quick] [NAME …]``: run experiments and report on them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from loadtest.fleet import fleet
from loadtest.lab.experiment import NAMES, RunContext, Size, experiment, write_csv
from loadtest.report import RESULTS, Bar, Report, bar_table, describe, markdown

#: The progress bar waits here for an experiment that takes longer than announced.
ALMOST = 0.99
#: Columns of a terminal that is a file: a table is as wide as it needs to be.
WIDE = 160
#: Exit status of a program that Ctrl-C ended.
INTERRUPTED = 130


class RunProgress(Progress):
    """A bar by the clock, the step, and this second's figures; without a terminal, one line per
    step."""

    def __init__(self, console: Console, title: str, seconds: float) -> None:
        # Before the base class, which renders once.
        self._seconds = max(1.0, seconds)
        self._began = time.monotonic()
        self._figures = ""
        columns = (BarColumn(24), TaskProgressColumn(), TimeElapsedColumn())
        step = TextColumn("{task.fields[step]}")
        terminal = console.is_terminal
        super().__init__(*columns, step, console=console, transient=True, disable=not terminal)
        self._task = self.add_task(title, total=self._seconds, step="")
        about = f"about {self._seconds / 60:.1f} min"
        console.print(f"[bold]{title}[/], {about}", highlight=False)

    def step(self, name: str) -> None:
        self._figures = ""
        self.update(self._task, step=name)
        if not self.console.is_terminal:
            elapsed = time.monotonic() - self._began
            self.console.print(f"  {elapsed:>5.0f} s  {name}", highlight=False)

    def figures(self, text: str) -> None:
        self._figures = text

    def get_renderables(self) -> Iterable[RenderableType]:
        """Called by rich for every refresh."""
        elapsed = time.monotonic() - self._began
        for task in self.task_ids:
            self.update(task, completed=min(elapsed, ALMOST * self._seconds))
        yield self.make_tasks_table(self.tasks)
        yield Text(f"  {self._figures}", style="dim", no_wrap=True, overflow="ellipsis")


def write_summary(results: Path) -> Path:
    """One page from the reports of all experiments that were run."""
    files = {name: results / name / "report.json" for name in NAMES}
    lines = ["# The load lab", ""]
    for name, file in files.items():
        if file.exists():
            lines += section(name, json.loads(file.read_text()))
    if not any(file.exists() for file in files.values()):
        lines += ["Nothing has been run yet: `make lab`, or `QUICK=1 make lab`.", ""]
    summary = results / "report.md"
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text("\n".join(lines))
    return summary


def section(name: str, document: Mapping[str, Any]) -> list[str]:
    """One experiment: its question, its findings, its first picture."""
    fields = ("claim", "measured", "relation", "required", "unit")
    bars = [Bar(*(bar[field] for field in fields)) for bar in document["bars"]]
    reached = sum(bar.passed for bar in bars)
    size = "" if document.get("size") == "full" else f", {document.get('size')} run"
    pictures = document.get("pictures", ())[:1]
    return [
        f"## [{document['title']}]({name}/report.md)",
        "",
        document["question"],
        "",
        f"**{reached} of {len(bars)} bars reached**{size}. {document['measured_at']}, "
        f"{describe(document['machine'])}.",
        "",
        *(f"{sentence}\n" for sentence in document.get("findings", ())),
        *(f"![{each['caption']}]({name}/{each['file']})\n" for each in pictures),
        *markdown(bar_table(bars)),
        "",
    ]


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    known = ", ".join(NAMES)
    parser = argparse.ArgumentParser(prog="python -m loadtest.lab", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"{known}; all of them unless named")
    add("--quick", action="store_true", help="all in a quarter of an hour, with wider margins")
    add("--minutes", type=float, metavar="N", help="how long the soak lasts instead of 30 minutes")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    add("--list", action="store_true", help="list the experiments and how long each takes")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {known}")
    if given.minutes is not None and not (given.names == ["soak"] and given.minutes > 0):
        parser.error("--minutes N, above 0, is for soak alone")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    size = Size.QUICK if given.quick else Size.FULL
    names = given.names or NAMES
    if given.list:
        for name in names:
            chosen = experiment(name)
            line = f"{name:<9}{chosen.seconds(size) / 60:>5.1f} min  {chosen.QUESTION}"
            console.print(line, highlight=False, soft_wrap=True)
        return 0
    try:
        reports = [run(name, size, console, given.minutes) for name in names]
    except KeyboardInterrupt:
        console.print("Stopped. All processes it started have ended; no report was written.")
        return INTERRUPTED
    console.print(f"all experiments that were run, on one page: {write_summary(RESULTS)}")
    return 0 if given.no_fail or all(report.passed for report in reports) else 1


def run(name: str, size: Size, console: Console, minutes: float | None = None) -> Report:
    """One experiment with its own PostgreSQL and RabbitMQ, shown while it runs."""
    chosen, folder = experiment(name), RESULTS / name
    began = time.monotonic()
    lasts = minutes * 60 if minutes else chosen.seconds(size)
    with RunProgress(console, chosen.TITLE, lasts) as progress:
        progress.step("starting a private PostgreSQL and RabbitMQ")
        with fleet(f"lab-{name}") as started:
            context = RunContext(started, folder, size, minutes, progress.step, progress.figures)
            report: Report = chosen.run(context)
    report.data["question"] = chosen.QUESTION
    report.data["size"] = size.value
    report.data["took_seconds"] = round(time.monotonic() - began)
    if size is not Size.FULL:
        report.notes.append("A quick run: shorter steps, wider margins than a full one.")
    write_csv(folder / "seconds.csv", context.seconds)
    report.show(console)
    console.print(f"written to {report.write(folder)}\n")
    return report


if __name__ == "__main__":
    sys.exit(main())
