"""What must hold for every 202: its job is in one cell, and ended there once.

Wherever it was taken in, moved to or handed over. A request that its cell had admitted before it
was taken in elsewhere has two ids: the later one is kept as an alias of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.cells.installation import Cell
from loadtest.chaos.witness import read_lines
from loadtest.fleet import rows, until

#: For everything to end after the last fault.
SETTLE_SECONDS = 180.0
UNFINISHED = """
    SELECT count(*) FROM jobs WHERE status IN ('scheduled', 'queued', 'dispatched', 'running')
"""
KEPT = "SELECT count(*) FROM intake_jobs WHERE alias_of IS NULL"
READ_JOBS = """
    SELECT id::text AS id, status::text AS status, error_class, error_message FROM jobs
    WHERE id = ANY (CAST(:ids AS uuid[]))
"""
READ_TAGGED = """
    SELECT id::text AS id FROM jobs WHERE payload->>'tag' LIKE :prefix
"""
READ_ALIASES = """
    SELECT alias.id::text AS id, alias.first::text AS first
    FROM intake_jobs, unnest(job_ids, alias_of) AS alias (id, first) WHERE alias_of IS NOT NULL
"""


def settle(cells: Iterable[Cell], seconds: float = SETTLE_SECONDS) -> bool:
    """Wait until nothing waits or runs in any cell, nor is kept for another one."""

    def settled() -> bool:
        return not any(
            rows(cell.engine, UNFINISHED)[0][0] or rows(cell.engine, KEPT)[0][0] for cell in cells
        )

    return until(settled, seconds, pause=0.5)


def judge(
    cells: Sequence[Cell], accepted: Mapping[str, str], witness: Path, *, prefix: str = "cells-"
) -> dict[str, list[str]]:
    """Faults by name. ``accepted``: ids by the key of their submission, which is their tag."""
    aliases = aliases_in(cells)
    ids = sorted({aliases.get(one, one) for one in accepted.values()})
    found: dict[str, list[Any]] = {}
    extra: set[str] = set()
    for cell in cells:
        for row in rows(cell.engine, READ_JOBS, ids=ids):
            found.setdefault(row.id, []).append(row)
        extra |= {row.id for row in rows(cell.engine, READ_TAGGED, prefix=f"{prefix}%")}
    starts = Counter(line.job for line in read_lines(witness) if line.what == "start")
    return {
        "lost": [one for one in ids if one not in found],
        "in two cells": [one for one in ids if len(found.get(one, ())) > 1],
        "admitted twice": sorted(extra - set(ids)),
        "not succeeded": [
            f"{row.id} {row.status} {row.error_class}: {row.error_message}"
            for each in found.values()
            for row in each
            if row.status != "succeeded"
        ],
        "run twice": [one for one in ids if starts[one] > 1],
    }


def aliases_in(cells: Sequence[Cell]) -> dict[str, str]:
    """The first id of each request that was taken in once more, by its later one."""
    return {row.id: row.first for cell in cells for row in rows(cell.engine, READ_ALIASES)}
