"""Sizes measured every few seconds: memory of processes, tables, blobs and dead rows."""

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
from loadtest.lab.submissions import Point

MEGABYTE = 1e6

TABLES = """
    SELECT relname, pg_total_relation_size(relid), n_dead_tup FROM pg_stat_user_tables
    WHERE relname <> 'alembic_version' ORDER BY relname
"""


@dataclass(slots=True)
class Scales:
    """Measures sizes in the sampler's thread, every few seconds."""

    engine: Engine
    pids: Mapping[str, Sequence[int]]
    blobs: Path
    every_seconds: float
    #: When, and megabytes by the columns of ``weights.csv``.
    measured: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    due: float = 0.0

    def beside(self, gauges: Gauges) -> Gauges:
        """The same gauges; reading them also measures sizes when that is due."""

        def read() -> Mapping[str, float]:
            if time.monotonic() >= self.due:
                self.due = time.monotonic() + self.every_seconds - 0.5
                self.measured.append((time.time(), self.weigh()))
            return gauges()

        return read

    def weigh(self) -> dict[str, float]:
        """One measurement of everything. A table counts with its indexes and TOAST."""
        tables = rows(self.engine, TABLES)
        return {
            **{
                f"memory_{name}_mb": round(tree_memory(pids) / MEGABYTE, 2)
                for name, pids in self.pids.items()
            },
            **{f"table_{name}_mb": round(size / MEGABYTE, 3) for name, size, _ in tables},
            "blobs_mb": round(folder_bytes(self.blobs) / MEGABYTE, 2),
            "dead_rows": sum(dead for *_, dead in tables),
        }

    def since(self, begin: float) -> list[dict[str, float]]:
        """Rows by the seconds since a moment."""
        return [{"second": round(at - begin, 1), **sizes} for at, sizes in self.measured]


def curve(rows: Sequence[Mapping[str, float]], column: str) -> list[Point]:
    """A column by the second."""
    return [(row["second"], row[column]) for row in rows]


def curves(rows: Sequence[Mapping[str, float]], prefix: str) -> dict[str, list[Point]]:
    """The columns that begin like this and end in ``_mb``, by what is in between."""
    columns = [name for name in (rows[0] if rows else ()) if name.startswith(prefix)]
    return {name.removeprefix(prefix).removesuffix("_mb"): curve(rows, name) for name in columns}


def tree_memory(pids: Sequence[int]) -> int:
    """Bytes in memory of these processes and all that they started: `together`."""
    members = []
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            members.append(memory(process))
    return together(members)


def memory(process: psutil.Process) -> tuple[int, int]:
    """The resident size of a process, and the part of it that it does not share."""
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        resident = process.memory_info().rss
        return resident, resident
    return full.rss, full.uss


def together(members: Sequence[tuple[int, int]]) -> int:
    """The resident size of several processes, given that of each and its unshared part.

    What they share counts once, as the one that shares most has it: PostgreSQL's processes all
    show the same buffers, and a plain sum would show each new connection as a leak. Proportional
    sizes would do that too, but they move when another program loads the same libraries.
    """
    shared = max((resident - own for resident, own in members), default=0)
    return sum(own for _, own in members) + shared


def folder_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile, by retention
            total += file.stat().st_size if file.is_file() else 0
    return total
