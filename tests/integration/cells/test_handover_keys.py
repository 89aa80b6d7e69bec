"""Idempotency keys of requests that were taken in for a cell that is away."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from models.cells.intake_jobs import find_kept, keep_group, waiting_tenants
from models.jobs.admit import admit_group
from models.jobs.hand_over import hand_over
from models.jobs.submission import Admitted, KeyReused, SubmissionGroup
from tests.support.cell_databases import TestCells
from tests.support.intake_requests import OTHER_DIGEST, handover, kept, request, statuses


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def test_a_key_of_before_the_outage_with_the_same_request_is_an_alias(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, jobs=2, key="k"), request(tenant_id, jobs=2, key="k")
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [again])
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home).keys() == {item.id for item in first.submissions}
    for mine, other in zip(again.submissions, first.submissions, strict=True):
        row = find_kept(cells.host.engine, [mine.id])[mine.id]
        assert row.alias(mine.id) == other.id
        assert row.body == ""
    assert waiting_tenants(cells.host.engine) == []
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 0


def test_an_alias_is_found_again_by_who_finds_the_request_handed_over(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, key="k"), request(tenant_id, key="k")
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [again])
    hand_over(cells.home.engine, cells.host.name, [again])  # and died
    handover(cells, tmp_path).run_once(time.monotonic())
    assert find_kept(cells.host.engine, [again.id])[again.id].alias(again.id) == first.id


def test_a_key_of_before_the_outage_with_another_request_ends_the_job_with_a_clear_error(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first = request(tenant_id, key="k", digest=OTHER_DIGEST)
    work = json.dumps({"candidate": "Ada", "role": "general", "payload": {}})
    other = request(
        tenant_id,
        key="k",
        type="score_application",
        pool="medium",
        payload=work,
        candidate="Ada",
        role="general",
    )
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [other])
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {first.id: "queued", other.id: "dead"}
    [row] = cells.home.rows(
        "SELECT error_class, error_message, finished_at IS NOT NULL, ended_xid IS NOT NULL"
        " FROM jobs WHERE id = %s::uuid",
        other.id,
    )
    assert row[0] == "PERMANENT" and "Idempotency-Key" in str(row[1]) and row[2] and row[3]
    assert cells.home.rows("SELECT id::text FROM applications") == [(other.id,)]
    counted = "SELECT sum(dead)::int, sum(queued)::int FROM job_counts WHERE tenant_id = %s"
    assert cells.home.rows(counted, tenant_id) == [(1, 1)]
    assert kept(cells) == []


def test_a_key_is_used_once_in_the_intake(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, key="k"), request(tenant_id, key="k")
    other = request(tenant_id, key="k", digest=OTHER_DIGEST)
    [admitted] = keep_group(cells.host.engine, [first])
    assert admitted == Admitted((first.id,))
    repeated, reused = keep_group(cells.host.engine, [again, other])
    assert isinstance(repeated, Admitted) and repeated.repeated and repeated.ids == (first.id,)
    assert reused == KeyReused()
    assert keep_group(cells.host.engine, [first]) == [Admitted((first.id,))]  # a lost answer
    assert kept(cells) == [first.id]


def test_a_key_is_not_that_of_an_earlier_tenant_of_the_same_name(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    first, second = request(tenant_id, key="k"), request(tenant_id + 1, key="k")
    assert first.tenant == second.tenant
    keep_group(cells.host.engine, [first])
    assert keep_group(cells.host.engine, [second]) == [Admitted((second.id,))]
