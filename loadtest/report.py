"""Reports: bars and tables in the terminal, as markdown and as JSON in ``loadtest/results/``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True)
class Bar:
    """A measured value and the bound that it has to keep."""

    claim: str
    measured: float
    relation: Literal[">=", "<="]
    required: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        if self.relation == ">=":
            return self.measured >= self.required
        return self.measured <= self.required

    def cells(self) -> tuple[str, str, str, str]:
        return (
            self.claim,
            f"{self.measured:.2f}{self.unit}",
            f"{self.relation} {self.required:.2f}{self.unit}",
            "pass" if self.passed else "FAIL",
        )


def at_least(claim: str, measured: float, required: float, unit: str = "") -> Bar:
    return Bar(claim, measured, ">=", required, unit)


def at_most(claim: str, measured: float, required: float = 0, unit: str = "") -> Bar:
    return Bar(claim, measured, "<=", required, unit)


RESULTS = Path(__file__).parent / "results"
#: Cells that stand out in a terminal.
COLOURED = {"pass": "[green]pass[/]", "FAIL": "[bold red]FAIL[/]"}


def fault_bars(faults: Mapping[str, Sequence[str]]) -> list[Bar]:
    """There is none of any kind of fault."""
    return [at_most(name, len(found)) for name, found in faults.items()]


def fault_notes(faults: Mapping[str, Sequence[str]]) -> list[str]:
    """The first faults of each kind."""
    return [f"{name}: {'; '.join(found[:3])}" for name, found in faults.items() if found]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the first column is text, the others are figures."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(title: str, columns: Mapping[str, str | Callable[[Any], str]], items: Any) -> Table:
    """A row for each item; a column is a format such as ``{.rate:,.0f}``, or a function."""
    cells = [each.format if isinstance(each, str) else each for each in columns.values()]
    return Table(title, tuple(columns), [tuple(cell(item) for cell in cells) for item in items])


def bar_table(bars: Sequence[Bar]) -> Table:
    return Table("Bars", ("bar", "measured", "required", ""), [bar.cells() for bar in bars])


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file beside the report."""

    file: str
    caption: str


@dataclass(slots=True)
class Report:
    #: Also the folder's name.
    name: str
    title: str
    #: The results in sentences with figures, the most important first.
    findings: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    #: What a reader must know to interpret the figures.
    notes: list[str] = field(default_factory=list)
    #: Everything measured, for machines.
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(bar.passed for bar in self.bars)

    def show(self, console: Console) -> None:
        for finding in self.findings:
            console.print(f"[bold]{finding}[/]", highlight=False)
        for table in self._all_tables():
            drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
            for number, heading in enumerate(table.headings):
                drawn.add_column(heading, justify="right" if number else "left")
            for row in table.rows:
                drawn.add_row(*(COLOURED.get(cell, cell) for cell in row))
            console.print(drawn)
        for note in self.notes:
            console.print(note, style="yellow", highlight=False)

    def write(self, folder: Path | None = None) -> Path:
        """Write it; the markdown file."""
        folder = folder or RESULTS / self.name
        folder.mkdir(parents=True, exist_ok=True)
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        document = {
            "title": self.title,
            "measured_at": measured_at,
            "machine": machine(),
            "findings": self.findings,
            "pictures": [asdict(picture) for picture in self.pictures],
            "notes": self.notes,
            "bars": [{**asdict(bar), "passed": bar.passed} for bar in self.bars],
            **self.data,
        }
        (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")
        lines = [f"# {self.title}", "", f"{measured_at}, {describe(machine())}", ""]
        for sentence in (*self.findings, *self.notes):
            lines += [sentence, ""]
        for picture in self.pictures:
            lines += [f"![{picture.caption}]({picture.file})", ""]
        for table in self._all_tables():
            lines += [f"## {table.title}", "", *markdown(table), ""]
        file = folder / "report.md"
        file.write_text("\n".join(lines))
        return file

    def _all_tables(self) -> list[Table]:
        return [*self.tables, bar_table(self.bars)] if self.bars else self.tables


def options(program: str, about: str | None, *flags: tuple[str, Any, str]) -> argparse.Namespace:
    """The parsed command line; a flag is its name, its default (or choices) and its help.

    One without dashes is an argument; the first of its choices is the default.
    """
    parser = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in flags:
        if default is False:
            parser.add_argument(name, action="store_true", help=meaning)
        elif not name.startswith("-"):
            more = {"nargs": "?", "choices": default, "default": default[0]}
            parser.add_argument(name, **more, help=meaning)
        elif isinstance(default, tuple):
            parser.add_argument(name, choices=default, help=meaning)
        else:
            more = {"type": type(default), "default": default}
            shown = default if isinstance(default, str) else f"{default:g}"
            parser.add_argument(name, **more, help=f"{meaning} ({shown})")
    return parser.parse_args()


def command(
    program: str,
    about: str | None,
    measure: Callable[[argparse.Namespace, Console], Report],
    *flags: tuple[str, Any, str],
) -> int:
    """Measure as the flags say, print and write the report; the exit status."""
    no_fail = ("--no-fail", False, "exit 0 even if a bar is missed")
    asked = options(program, about, *flags, no_fail)
    console = Console()
    report = measure(asked, console)
    report.show(console)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


class Screen:
    """A progress bar for each task; a line of text where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description:36}"), BarColumn(30), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def task(self, name: str, total: float) -> Callable[[float], None]:
        """Start a progress bar; call the result with how much is done."""
        if not self._console.is_terminal:
            self._console.print(f"{name} …", highlight=False)
        task = self._bars.add_task(name, total=total)
        return lambda done: self._bars.update(task, completed=done)

    def steps(self, name: str, count: int) -> Iterator[int]:
        """Numbers from 0, with a bar that moves along."""
        advance = self.task(name, count)
        for number in range(count):
            yield number
            advance(number + 1)

    def wait(self, name: str, seconds: float) -> None:
        advance, began = self.task(name, seconds), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            advance(passed)
            time.sleep(min(0.25, seconds - passed))
        advance(seconds)


def markdown(table: Table) -> list[str]:
    rule = ["---", *("---:" for _ in table.headings[1:])]
    return [f"| {' | '.join(row)} |" for row in (table.headings, rule, *table.rows)]


def machine() -> Mapping[str, Any]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def describe(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['cores']} cores, {facts['architecture']}, Python {facts['python']}, "
        f"load {facts['load_average'][0]}; generator, services and servers on the same cores"
    )
