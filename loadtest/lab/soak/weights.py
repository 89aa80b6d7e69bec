"""What is weighed every few seconds: processes, tables, blobs and dead rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlalchemy import Engine

from loadtest.figures import family
from loadtest.fleet import rows
from loadtest.lab.experiment import Gauges
from loadtest.lab.soak.verdict import Point

EVERY_SECONDS = 5.0
MEGABYTE = 1e6

TABLES = """
    SELECT relname, pg_total_relation_size(relid), n_dead_tup FROM pg_stat_user_tables
    WHERE relname <> 'alembic_version'
"""


@dataclass(frozen=True, slots=True)
class Weighing:
    """One look; sizes in megabytes."""

    at: float
    #: Memory by part of the system.
    memory: Mapping[str, float]
    #: With indexes and what was moved out of line, by table.
    tables: Mapping[str, float]
    blobs: float
    #: Rows that were deleted or replaced and not yet vacuumed away, of all tables.
    dead_rows: int

    def flat(self, begin: float) -> dict[str, float]:
        """As a row of a file."""
        return {
            "second": round(self.at - begin, 1),
            **{f"memory_{name}_mb": round(value, 2) for name, value in self.memory.items()},
            **{f"table_{name}_mb": round(value, 3) for name, value in sorted(self.tables.items())},
            "blobs_mb": round(self.blobs, 2),
            "dead_rows": self.dead_rows,
        }


@dataclass(slots=True)
class Scales:
    """Weighs beside a second-by-second look, every few seconds."""

    engine: Engine
    pids: Mapping[str, Sequence[int]]
    blobs: Path
    every_seconds: float = EVERY_SECONDS
    weighings: list[Weighing] = field(default_factory=list)
    due: float = 0.0

    def beside(self, gauges: Gauges) -> Gauges:
        """The same gauges; whoever reads them also weighs, when it is time."""

        def read() -> Mapping[str, float]:
            if time.monotonic() >= self.due:
                self.due = time.monotonic() + self.every_seconds - 0.5
                self.weigh()
            return gauges()

        return read

    def weigh(self) -> None:
        """One look at everything."""
        tables = rows(self.engine, TABLES)
        self.weighings.append(
            Weighing(
                time.time(),
                {name: tree_memory(pids) / MEGABYTE for name, pids in self.pids.items()},
                {name: size / MEGABYTE for name, size, _ in tables},
                folder_bytes(self.blobs) / MEGABYTE,
                sum(dead for *_, dead in tables),
            )
        )


def tree_memory(pids: Sequence[int]) -> int:
    """Bytes in memory of these processes and all that they started: `together`."""
    members = []
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            members.append(memory(process))
    return together(members)


def memory(process: psutil.Process) -> tuple[int, int]:
    """What is in memory of a process, and how much of it nobody else shares."""
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        resident = process.memory_info().rss
        return resident, resident
    return full.rss, full.uss


def together(members: Sequence[tuple[int, int]]) -> int:
    """The resident size of several processes, given that of each and the part that is its own.

    What they share counts once, as the one that shares most has it: PostgreSQL's processes all
    show the same buffers, and a plain sum would show each new connection as a leak. Proportional
    sizes would do that too, but they move when a stranger loads the same libraries.
    """
    shared = max((resident - own for resident, own in members), default=0)
    return sum(own for _, own in members) + shared


def folder_bytes(folder: Path) -> int:
    """The files below it."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile, which is what is looked at
            total += file.stat().st_size if file.is_file() else 0
    return total


def curve(weighings: Sequence[Weighing], begin: float, read: str, name: str = "") -> list[Point]:
    """One of the values over time: ``memory`` or ``tables`` by name, ``blobs``, ``dead_rows``."""
    values = [(each.at - begin, getattr(each, read)) for each in weighings]
    return [(at, float(value[name] if name else value)) for at, value in values]
