"""What a cell takes in for others is bounded in bytes, and whoever submits is still a tenant."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cells import intake_services
from app.cells.copied_callers import READ_KEYS, CopiedCallers
from models.cells.copies import copy_tenants
from models.store.errors import StateStoreError
from tests.support.cell_databases import TestCells
from tests.support.region_front import JOB, RegionFront, suspended

#: Not compressible: what counts is what is on the disk.
LARGE = {**JOB, "payload": {"text": os.urandom(200_000).hex()}}


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def copy(cells: TestCells) -> None:
    """As the scheduler of the cell does every few seconds."""
    ids = [int(str(row[0])) for row in cells.home.rows("SELECT id FROM tenants")]
    copy_tenants(cells.registry, "cell-eu", cells.home.engine, ids)


def bounded(front: RegionFront, size: int) -> None:
    front.cells.home.run("UPDATE tenants SET blob_bytes = %s, changed_at = now()", size)
    front.refresh()
    copy(front.cells)
    front.lose_home()


@pytest.mark.parametrize("batch", [False, True])
def test_bytes_that_wait_are_bounded_by_the_tenants_terms(front: RegionFront, batch: bool) -> None:
    bounded(front, 1_000_000)
    path, body = ("/jobs/batch", {"jobs": [LARGE]}) if batch else ("/jobs", LARGE)
    answers = [front.call("POST", path, body) for _ in range(4)]
    assert [answer.status_code for answer in answers[:2]] == [202, 202]
    assert answers[3].status_code == 429, answers[3].text
    assert answers[3].get_json()["code"] == "TENANT_BLOB_BYTES_EXCEEDED"
    [[kept]] = front.cells.host.rows("SELECT sum(octet_length(body)) FROM intake_jobs")
    assert int(str(kept)) < 1_700_000


def test_small_payloads_count_too(front: RegionFront) -> None:
    bounded(front, 5_000)
    small = {**JOB, "payload": {"text": "x" * 2_000}}
    statuses = [front.call("POST", "/jobs", small).status_code for _ in range(5)]
    assert statuses[:2] == [202, 202] and statuses[-1] == 429


def test_all_tenants_together_are_bounded(
    front: RegionFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_services, "MOST_KEPT_BYTES", 1_000_000)
    bounded(front, 10**9)
    answers = [front.call("POST", "/jobs", LARGE) for _ in range(4)]
    assert answers[0].status_code == 202
    assert answers[3].status_code == 503, answers[3].text
    assert "no room" in answers[3].get_json()["detail"]


def revoked(cells: TestCells) -> None:
    cells.home.run("UPDATE api_keys SET revoked_at = now()")


@pytest.mark.parametrize(("change", "status"), [(suspended, 403), (revoked, 401)])
def test_what_the_copy_says_counts_where_the_cell_is_away_from_here_alone(
    front: RegionFront, change: Callable[[TestCells], None], status: int
) -> None:
    assert front.call("GET", "/jobs").status_code == 200  # this process knows the key
    change(front.cells)
    copy(front.cells)
    front.lose_home()
    assert front.call("POST", "/jobs", JOB).status_code == status


def test_what_is_known_counts_while_the_registry_is_away_too(
    front: RegionFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> object:
        raise StateStoreError

    front.lose_home()
    monkeypatch.setattr(CopiedCallers, "_read", away)
    assert front.call("POST", "/jobs", JOB).status_code == 202


def test_a_key_is_found_among_the_copies_by_an_index(cells: TestCells, tmp_path: Path) -> None:
    cells.tenant()
    copy(cells)
    with cells.registry.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        rows = connection.exec_driver_sql(f"EXPLAIN {READ_KEYS}", {"ids": ["a", "b"]})
        plan = "\n".join(str(row[0]) for row in rows)
        connection.exec_driver_sql("RESET enable_seqscan")
    assert "tenant_copies_keys" in plan
