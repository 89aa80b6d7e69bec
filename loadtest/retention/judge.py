"""The report: full tables beside empty ones, and the ways to retire jobs beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from loadtest.report import Bar, Report, Table, at_most, table
from loadtest.retention.flow import Flow
from loadtest.retention.layout import Layout
from loadtest.retention.reads import ReadCost
from loadtest.retention.retire import Retired
from loadtest.retention.tables import TableFigures
from loadtest.snapshot import PARTS

#: What a job may cost on full tables, to what it costs on empty ones.
MOST_RATIO = 1.3
GIGABYTE = 1e9
#: Further columns of the table of flows.
OF_FLOWS = {
    "turn p50, ms": "turn_p50_ms",
    "turn p99, ms": "turn_p99_ms",
    "WAL, bytes": "wal_bytes",
    "whole pages in it": "wal_pages",
}


@dataclass(frozen=True, slots=True)
class Empty:
    """A layout without ended jobs."""

    layout: Layout
    flow: Flow
    reads: Sequence[ReadCost]
    tables: Sequence[TableFigures]
    #: That the measurement left.
    jobs: int

    @property
    def name(self) -> str:
        return f"{self.layout.name}, empty"


@dataclass(frozen=True, slots=True)
class Full:
    """A layout with all of them."""

    layout: Layout
    flow: Flow
    reads: Sequence[ReadCost]
    tables: Sequence[TableFigures]
    retired: Sequence[Retired]
    #: The load after that.
    after: Flow
    #: Loads that took turns with that on the full tables: on the same, and on one table, empty.
    beside: Mapping[Layout, Flow]
    #: How long it took to make the rows.
    fill_seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.layout.name}, full"


class NamedFlow(NamedTuple):
    """A line of the table of flows."""

    name: str
    flow: Flow


Measured = Empty | Full


def judge(empty: Sequence[Empty], full: Sequence[Full], jobs: int) -> Report:
    scenes: list[Measured] = [*empty, *full]
    retired = [each for one in full for each in one.retired]
    flows = [
        *(NamedFlow(each.name, each.flow) for each in empty),
        *(line for each in full for line in lines_of(each)),
    ]
    return Report(
        "retention",
        f"{jobs:,} finished jobs on disk",
        findings=[*map(grown, full), *map(sentence, retired)],
        tables=[
            flow_table(flows),
            read_table(scenes),
            retired_table(retired),
            latency_table(retired),
            size_table(full, jobs),
        ],
        bars=[*ratios(full), *exact(retired)],
        notes=notes(empty, full, jobs),
        data={
            "jobs": jobs,
            "flows": [{"name": each.name, **each.flow.figures()} for each in flows],
            "reads": {each.name: [asdict(read) for read in each.reads] for each in scenes},
            "retired": [each.figures() for each in retired],
            "tables": {each.name: [asdict(one) for one in each.tables] for each in scenes},
        },
    )


def lines_of(each: Full) -> list[NamedFlow]:
    """Full tables, empty ones in turn with them, and full ones after retiring."""
    beside = [
        NamedFlow(f"in turn: {layout.name}, empty", flow) for layout, flow in each.beside.items()
    ]
    after = NamedFlow(f"{each.layout.name}, after retiring", each.after)
    return [NamedFlow(each.name, each.flow), *beside, after]


def grown(each: Full) -> str:
    others = ", ".join(
        f"{flow.per_job:.0f} on empty ones ({layout.name})" for layout, flow in each.beside.items()
    )
    return (
        f"{each.layout.name}: a job costs PostgreSQL {each.flow.per_job:.0f} µs on full tables,"
        f" {others}, and {each.after.per_job:.0f} after retiring."
    )


def sentence(each: Retired) -> str:
    return (
        f"{each.way}: {each.jobs:,} jobs in {each.seconds:.1f} s, {each.cpu:.0f} µs and"
        f" {each.wal:,.0f} bytes of WAL per job; the longest turn of the load took"
        f" {max(each.during.turns):.0f} ms meanwhile and {max(each.before.turns):.0f} before."
    )


def ratios(full: Sequence[Full]) -> list[Bar]:
    """Of the product's own layout."""
    return [
        at_most(f"a job on full tables, {part}, to empty", of / max(to, 0.1), MOST_RATIO, " x")
        for each in full
        if not each.layout.days
        for one, other in [(each.beside[each.layout], each.flow)]
        for part, of, to in (
            ("all parts", other.per_job, one.per_job),
            ("admit", other.cost["admit"], one.cost["admit"]),
            ("dispatch", other.cost["dispatch"], one.cost["dispatch"]),
        )
    ]


def exact(retired: Sequence[Retired]) -> list[Bar]:
    return [
        *(at_most(f"{each.way}: jobs that were due and are left", each.left) for each in retired),
        *(at_most(f"{each.way}: jobs lost that were not due", each.lost) for each in retired),
    ]


def flow_table(flows: Sequence[NamedFlow]) -> Table:
    columns: dict[str, str | Callable[[Any], str]] = {"tables": "{.name}"}
    columns |= {part: partial(cost, part) for part in PARTS}
    columns["of each job"] = "{.flow.per_job:.0f}"
    for heading, name in OF_FLOWS.items():
        columns[heading] = partial(figure, name)
    return table("CPU time of PostgreSQL per job, in µs", columns, flows)


def cost(part: str, one: NamedFlow) -> str:
    return f"{one.flow.cost[part]:.0f}"


def figure(name: str, one: NamedFlow) -> str:
    return f"{one.flow.figures()[name]:,.1f}"


def read_table(scenes: Sequence[Measured]) -> Table:
    rows = [
        (
            read.name,
            *(
                f"{each.reads[place].milliseconds:.1f} / {each.reads[place].cpu_milliseconds:.1f}"
                for each in scenes
            ),
        )
        for place, read in enumerate(scenes[0].reads)
    ]
    title = "Reads, in ms: by the clock / CPU time of PostgreSQL"
    return Table(title, ("read", *(each.name for each in scenes)), rows)


def retired_table(retired: Sequence[Retired]) -> Table:
    columns: dict[str, str | Callable[[Any], str]] = {
        "way": "{.way}",
        "jobs": "{.jobs:,}",
        "seconds": "{.seconds:.1f}",
        "jobs per second": lambda one: f"{one.jobs / max(one.seconds, 0.001):,.0f}",
        "without pauses": lambda one: f"{one.jobs / max(one.busy_seconds, 0.001):,.0f}",
        "CPU per job, µs": "{.cpu:.0f}",
        "WAL per job, bytes": "{.wal:,.0f}",
        "dead rows left": "{.dead:,}",
        "autovacuums": "{.vacuums}",
        "their seconds": "{.vacuum_seconds:.1f}",
        "vacuum afterwards, s": "{.last_vacuum_seconds:.1f}",
        "freed on disk, GB": lambda one: f"{(one.bytes_before - one.bytes_after) / GIGABYTE:.2f}",
    }
    return table("Retiring the oldest jobs under load", columns, retired)


def latency_table(retired: Sequence[Retired]) -> Table:
    rows = []
    for each in retired:
        for name, flow in (("before", each.before), ("meanwhile", each.during)):
            found = flow.figures()
            names = [
                f"{part}_{share}_ms"
                for part in ("turn", "dispatch")
                for share in ("p50", "p99", "max")
            ]
            figures = [f"{found[one]:.1f}" for one in names]
            rows.append((f"{each.way}: {name}", f"{found['per_second']:.0f}", *figures))
    headings = ("load", "jobs per second", "turn p50", "p99", "max", "dispatch p50", "p99", "max")
    return Table("The load meanwhile, in ms", headings, rows)


def size_table(full: Sequence[Full], jobs: int) -> Table:
    columns: dict[str, str | Callable[[Any], str]] = {
        "table": lambda row: f"{row[0].layout.name}: {row[1].name}",
        "rows, GB": lambda row: f"{row[1].heap / GIGABYTE:.2f}",
        "indexes, GB": lambda row: f"{row[1].indexes / GIGABYTE:.2f}",
        "bytes per job": lambda row: f"{row[1].size / jobs:,.0f}",
    }
    return table("On disk", columns, [(each, one) for each in full for one in each.tables])


def notes(empty: Sequence[Empty], full: Sequence[Full], jobs: int) -> list[str]:
    """How far generated rows are like those that jobs leave behind."""
    found = [
        "A turn is a group of ten jobs from its admission to its end. CPU times are those of the"
        " sessions that the part uses; of retiring, of the whole server beyond the usual cost of"
        " the load. Dead rows are also those of the load. Rows are inserted as ended: no update"
        " has made their tables larger.",
        "Filled in "
        + ", ".join(f"{each.fill_seconds / 60:.1f} min ({each.layout.name})" for each in full)
        + ".",
    ]
    for one, other in [(one, other) for one in empty for other in full]:
        left, made = (indexes_of_jobs(each.tables) for each in (one, other))
        # Of partitions without a row the indexes take room, too.
        if one.layout == other.layout and not one.layout.days:
            found.append(
                f"Indexes of jobs take {made / jobs:.0f} bytes per generated job, and"
                f" {left / max(1, one.jobs):.0f} per job that was run."
            )
    return found


def indexes_of_jobs(tables: Sequence[TableFigures]) -> int:
    return next(each.indexes for each in tables if each.name == "jobs")
