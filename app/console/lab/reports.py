"""The load lab's reports as files: ``<results>/<name>/report.json``, pictures, tables, CSV.

Anybody may have changed the files, so everything is validated and bounded, and nothing outside of
the folder is ever opened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

#: Most folders, and largest report.
MOST_REPORTS = 100
MOST_BYTES = 4 * 1_048_576
#: Rows shown of a table.
MOST_ROWS = 200
MOST_COLUMNS = 50
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.(png|svg|csv|md|json)")
#: Content types.
KINDS = {
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".csv": "text/csv; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".json": "application/json",
}
PICTURES = (".png", ".svg")


class Bar(BaseModel):
    """A figure that the experiment must reach."""

    claim: str
    measured: float
    relation: Literal[">=", "<="]
    required: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        """By the figures, not by what the file says about itself."""
        at_least = self.relation == ">="
        return self.measured >= self.required if at_least else self.measured <= self.required


class Picture(BaseModel):
    """An image beside the report."""

    file: str = Field(pattern=rf"^{FILE.pattern}$")
    caption: str = ""


class Machine(BaseModel):
    """Where it ran."""

    cores: int | None = None
    architecture: str = ""
    python: str = ""


def in_utc(moment: datetime) -> datetime:
    """A time that pages can show."""
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None


class LabReport(BaseModel):
    """``report.json``, as far as the page shows it."""

    measured_at: Annotated[datetime, AfterValidator(in_utc)]
    title: str = ""
    question: str = ""
    size: str = ""
    took_seconds: float | None = None
    machine: Machine = Machine()
    findings: list[str] = []
    notes: list[str] = []
    pictures: list[Picture] = []
    bars: list[Bar] = []


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of ``report.md``."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: Rows that are left out.
    more: int = 0


class Experiment:
    """The folder of an experiment that has left a report, readable or not."""

    def __init__(self, results: Path, name: str) -> None:
        self._results = results
        self.name = name
        #: None if it cannot be read, and why not.
        self.document: LabReport | None = None
        self.trouble = ""
        try:
            path = results / name / "report.json"
            if self.find(path.name) is None:
                raise ValueError("there is no report.json")
            facts = path.stat()
            self.document = parsed_report(path, facts.st_mtime_ns, facts.st_size)
        except ValueError as error:
            self.trouble = str(error)
        except OSError as error:
            self.trouble = error.strerror or "it cannot be opened"

    @property
    def title(self) -> str:
        given = self.document.title if self.document else ""
        return given or self.name.replace("-", " ").capitalize()

    @property
    def measured_at(self) -> datetime:
        """When it was measured; what cannot be read comes last."""
        return self.document.measured_at if self.document else datetime.min.replace(tzinfo=UTC)

    @property
    def missed(self) -> int:
        """Targets that were not met."""
        return sum(not bar.reached for bar in self.document.bars) if self.document else 0

    def find(self, file: str) -> Path | None:
        """A file, if it is one that may be shown; no link leads elsewhere."""
        return find_file(self._results, self.name, file)

    def files(self, *suffixes: str) -> list[tuple[str, int]]:
        """Files by kind, with their sizes."""
        try:
            return [
                (path.name, path.stat().st_size)
                for suffix in suffixes
                for path in sorted((self._results / self.name).iterdir())
                if path.suffix == suffix and self.find(path.name)
            ]
        except OSError:
            return []

    def pictures(self) -> list[tuple[str, str]]:
        """Files and captions: those that the report names, or all that there are."""
        if self.document and self.document.pictures:
            named = [(one.file, one.caption) for one in self.document.pictures]
            return [picture for picture in named if self.find(picture[0])]
        return [(file, "") for file, _ in self.files(*PICTURES)]

    def tables(self) -> list[ReportTable]:
        """The tables of ``report.md`` except for the targets; none if it cannot be read."""
        path = self.find("report.md")
        try:
            with path.open("rb") if path else BytesIO() as file:
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            return []
        return [table for table in parse_tables(text) if table.title != "Bars"]


def find_experiments(results: Path) -> list[Experiment]:
    """Experiments that have left a report, readable or not."""
    try:
        folders = sorted(path.name for path in results.iterdir())
    except OSError:
        return []
    found = [name for name in folders if find_file(results, name, "report.json")]
    return [Experiment(results, name) for name in found[:MOST_REPORTS]]


def find_file(results: Path, name: str, file: str) -> Path | None:
    """A file of an experiment, if it is one that may be shown; no link leads elsewhere."""
    if NAME.fullmatch(name) is None or FILE.fullmatch(file) is None:
        return None
    path = results / name / file
    try:
        ours = path.is_file() and path.resolve() == results.resolve() / name / file
    except OSError:
        return None
    return path if ours else None


@lru_cache(maxsize=MOST_REPORTS)
def parsed_report(path: Path, modified: int, size: int) -> LabReport:
    """Cached until the file changes: a live page reads it every few seconds."""
    if size > MOST_BYTES:
        raise ValueError(f"report.json has more than {MOST_BYTES:,} bytes")
    try:
        return LabReport.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place + ': ' if place else ''}{first['msg']}") from None


def parse_tables(text: str) -> list[ReportTable]:
    """Tables as the lab writes them: a heading, then lines that begin with a bar."""
    tables: list[ReportTable] = []
    title, lines = "", list[list[str]]()
    for line in [*text.splitlines(), "## "]:
        if line.startswith("|"):
            cells = line.strip().strip("|").split("|", MOST_COLUMNS)[:MOST_COLUMNS]
            lines.append([cell.strip() for cell in cells])
        elif line.startswith("## "):
            if len(lines) > 2:
                headings, _, *rows = lines
                shown = [fitted(row, len(headings)) for row in rows[:MOST_ROWS]]
                tables.append(ReportTable(title, headings, shown, max(0, len(rows) - MOST_ROWS)))
            title, lines = line[3:].strip(), []
    return tables


def fitted(row: Sequence[str], width: int) -> list[str]:
    """A row with as many cells as there are headings."""
    return [*row, *[""] * width][:width]
