"""Reports: tables in the terminal, and the same as markdown and JSON in ``loadtest/results/``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from loadtest.bars import Bar

RESULTS = Path(__file__).parent / "results"
BAR_HEADINGS = ("bar", "measured", "required", "")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; the first column is text, the others are figures."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file beside the report."""

    file: str
    caption: str


@dataclass(slots=True)
class Report:
    """What one run found."""

    #: Also the folder's name.
    name: str
    title: str
    #: What it says, in sentences with figures, the most important first.
    findings: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    #: What a reader must know to weigh the figures.
    notes: list[str] = field(default_factory=list)
    #: Everything measured, for machines.
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every bar was reached."""
        return all(bar.passed for bar in self.bars)

    def show(self, console: Console) -> None:
        """Print it."""
        for finding in self.findings:
            console.print(f"[bold]{finding}[/]", highlight=False)
        for table in self._all_tables():
            drawn = RichTable(title=table.title, title_justify="left", title_style="bold")
            for number, heading in enumerate(table.headings):
                drawn.add_column(heading, justify="right" if number else "left")
            for row in table.rows:
                drawn.add_row(*(coloured(cell) for cell in row))
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
        if not self.bars:
            return self.tables
        return [
            *self.tables,
            Table("Bars", BAR_HEADINGS, [bar.cells() for bar in self.bars]),
        ]


def coloured(cell: str) -> str:
    """Pass and fail stand out."""
    return {"pass": "[green]pass[/]", "FAIL": "[bold red]FAIL[/]"}.get(cell, cell)


def markdown(table: Table) -> list[str]:
    """A table in markdown."""
    rule = ["---", *("---:" for _ in table.headings[1:])]
    return [f"| {' | '.join(row)} |" for row in (table.headings, rule, *table.rows)]


def machine() -> Mapping[str, Any]:
    """What it ran on."""
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def describe(facts: Mapping[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{facts['cores']} cores, {facts['architecture']}, Python {facts['python']}, "
        f"load {facts['load_average'][0]}; generator, services and servers on the same cores"
    )
