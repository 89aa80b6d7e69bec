"""``make retention`` in miniature: both layouts are filled, measured and retired, and none loses.

A few thousand rows on a busy machine say nothing about speed, so of all bars only those are held
that allow nothing at all: jobs that are left although they were due, and jobs lost that were not.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.report import Screen
from loadtest.retention.__main__ import Size, layouts, measure
from loadtest.retention.layout import DAYS, DAYS_AHEAD, spans
from loadtest.retention.rows import check_space

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]

MINI = Size(jobs=6_000, tenants=20, seconds=1.5, per_second=100.0, calls=2)
#: Of a day: of a hundred jobs two are dead.
A_DAY = MINI.jobs // DAYS
DEAD = A_DAY // 50


def test_both_layouts_are_measured_and_retire_the_jobs_that_are_due(tmp_path: Path) -> None:
    with Screen(Console()) as screen:
        report = measure(tmp_path, layouts("both", 1), MINI, False, screen)

    none_allowed = [bar for bar in report.bars if bar.required == 0]
    assert len(none_allowed) == 6
    assert [bar for bar in none_allowed if not bar.passed] == []

    deleted, dropped, replaced = report.data["retired"]
    # The moment up to which jobs are due goes on while batches are deleted.
    assert A_DAY <= deleted["jobs"] <= A_DAY + 5
    assert (dropped["jobs"], replaced["jobs"]) == (A_DAY, A_DAY - DEAD)

    flows = report.data["flows"]
    assert [flow["name"] for flow in flows] == [
        "one table, empty",
        "a partition per 7 days, empty",
        "a partition per 3 days, empty",
        "a partition per day, empty",
        "one table, full",
        "in turn: one table, empty",
        "one table, after retiring",
        "a partition per day, full",
        "in turn: one table, empty",
        "in turn: a partition per day, empty",
        "a partition per day, after retiring",
    ]
    assert all(flow["jobs"] > 0 < flow["dispatch"] for flow in flows)
    for each in report.data["retired"]:
        assert each["during"]["jobs"] > 0 < each["during"]["wal_bytes"]
    for reads in report.data["reads"].values():
        assert len(reads) == 10 and all(read["cpu_milliseconds"] > 0 for read in reads)
    full = report.data["tables"]["one table, full"]
    sizes = {table["name"]: table["heap"] + table["indexes"] for table in full}
    assert sizes["jobs"] > MINI.jobs * 900 > sizes["applications"] > 0 < sizes["run_logs"]

    page = report.write(tmp_path).read_text()
    assert all(finding in page for finding in report.findings)
    assert all(f"## {table.title}" in page for table in report.tables)
    assert len(report.tables) == 5


def test_partitions_follow_each_other_and_reach_into_the_future() -> None:
    until = datetime(2026, 1, 31, tzinfo=UTC)
    for days in (1, 7, 15):
        made = spans(until, days)
        assert made[0].since == until - timedelta(DAYS)
        assert made[-1].until >= until + timedelta(DAYS_AHEAD)
        assert all(one.until == next_one.since for one, next_one in pairwise(made))


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"need \d+ GB"):
        check_space(tmp_path, 10**12)
