"""Handing over: what one tenant or cell waits for keeps no other, and no request is there twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.policy.placement import Placement
from app.scheduler.maintenance import intake_handover
from models.cells import intake_jobs
from models.cells.intake_jobs import cancel_kept, find_kept, keep_group, next_waiting
from models.jobs.hand_over import IntakeRequest, hand_over
from models.jobs.ids import BELOW_ALL
from tests.support.cell_databases import TestCells
from tests.support.encryption_keys import encrypting, new_key
from tests.support.intake_requests import begin, handover, kept, request, spread, statuses

BOTH = {"cell-eu": 1.0, "cell-us": 1.0}


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def request_for(cell: str, tenant_id: int, *, keyed: bool = False) -> IntakeRequest:
    """A request that goes to this cell, if its tenant lives in both."""
    for number in range(1_000):
        one = request(tenant_id, key=f"k{number}" if keyed else None)
        token = one.id if one.key is None else one.key.text
        if Placement(2, BOTH).choose(token.encode()) == cell:
            return one
    raise AssertionError("no request is for it")


@pytest.mark.parametrize("keyed", [False, True])
def test_a_request_whose_answer_was_lost_is_not_handed_to_the_next_cell_too(
    cells: TestCells, tmp_path: Path, keyed: bool
) -> None:
    tenant_id, _ = cells.tenant()
    one = request_for("cell-us", tenant_id, keyed=keyed)
    keep_group(cells.host.engine, [one])
    begin(cells, one)
    hand_over(cells.home.engine, cells.host.name, [one])  # and the answer was lost
    spread(cells, tenant_id, BOTH)
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"}
    assert statuses(cells.host) == {} and kept(cells) == []


def test_a_request_stays_with_the_cell_that_it_was_begun_with(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request_for("cell-us", tenant_id)
    keep_group(cells.host.engine, [one])
    begin(cells, one)  # whoever did that may still insert it there
    spread(cells, tenant_id, BOTH)
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"} and statuses(cells.host) == {}


def test_a_leaving_cell_that_may_have_it_is_waited_for(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_handover, "AWAY_SECONDS", 0.0)
    tenant_id, _ = cells.tenant()
    one, other = request(tenant_id), request(tenant_id)
    keep_group(cells.host.engine, [one, other])
    for begun in (one, other):
        begin(cells, begun)
    hand_over(cells.home.engine, cells.host.name, [one])
    spread(cells, tenant_id, {"cell-eu": 0.0, "cell-us": 1.0})
    cells.home.leave()
    role = handover(cells, tmp_path)
    assert role.run_once(time.monotonic()) == 0
    assert statuses(cells.host) == {}
    cells.home.come_back()
    assert role.run_once(time.monotonic()) == 2
    assert statuses(cells.home) == {one.id: "queued"}
    assert statuses(cells.host) == {other.id: "queued"}


def test_a_lost_cell_that_is_none_of_the_tenants_is_not_waited_for(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    begin(cells, one)
    spread(cells, tenant_id, {"cell-us": 1.0})
    cells.home.leave()
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.host) == {one.id: "queued"}


def test_requests_behind_those_of_a_cell_that_is_away_are_handed_over(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        intake_jobs, "NEXT", intake_jobs.NEXT.replace(f"LIMIT {intake_jobs.MOST_JOBS}", "LIMIT 2")
    )
    tenant_id, _ = cells.tenant()
    waiting = [request_for("cell-eu", tenant_id) for _ in range(3)]
    last = request_for("cell-us", tenant_id)
    spread(cells, tenant_id, BOTH)
    keep_group(cells.host.engine, [*waiting, last])
    cells.home.leave()
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.host) == {last.id: "queued"}
    row = find_kept(cells.host.engine, [waiting[0].id])[waiting[0].id]
    assert cancel_kept(cells.host.engine, row, row.id), "its cell was never reached"


def test_a_turn_that_had_no_time_goes_on_where_it_ended(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_handover, "TURN_SECONDS", 0.0)
    role = handover(cells, tmp_path)
    names = [("acme", cells.tenant("acme")[0]), ("zeta", cells.tenant("zeta")[0])]
    requests = [request(tenant_id)._replace(tenant=name) for name, tenant_id in names]
    keep_group(cells.host.engine, requests)
    cells.host.run("UPDATE intake_jobs SET body = 'no JSON' WHERE tenant = 'acme'")
    assert [role.run_once(time.monotonic()) for _ in range(2)] == [0, 1]
    assert statuses(cells.home) == {requests[1].id: "queued"}


def test_what_goes_wrong_with_one_tenant_keeps_no_other(cells: TestCells, tmp_path: Path) -> None:
    bad_id, good_id = cells.tenant("acme")[0], cells.tenant("zeta")[0]
    good = request(good_id)._replace(tenant="zeta")
    keep_group(cells.host.engine, [request(bad_id), good])
    cells.host.run("UPDATE intake_jobs SET body = 'no JSON' WHERE tenant = 'acme'")
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {good.id: "queued"}


def test_a_batch_is_bounded_in_bytes_but_for_its_first_request(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    large = intake_jobs.MOST_BYTES + 1
    requests = [request(tenant_id) for _ in range(4)]
    keep_group(cells.host.engine, requests)
    ids = [one.id for one in requests]
    cells.host.run(
        "UPDATE intake_jobs SET body = repeat('x', %s) WHERE id = ANY (%s::uuid[])",
        large,
        [ids[0], ids[3]],
    )
    pages, after = [], BELOW_ALL
    while rows := next_waiting(cells.host.engine, "acme", after):
        pages.append([row.id for row in rows])
        after = rows[-1].id
    assert pages == [[ids[0]], ids[1:3], [ids[3]]]


def test_encrypted_requests_of_a_deleted_tenant_are_deleted(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    with encrypting(new_key("k1")):
        keep_group(cells.host.engine, [request(tenant_id)])
        cells.home.run("DELETE FROM api_keys")
        cells.home.run("DELETE FROM tenants")
        cells.home.run("INSERT INTO tenants (name) VALUES ('acme')")
        cells.home.run("INSERT INTO transfer_marks (mark) VALUES (%s)", f"deleted/{tenant_id}")
        handover(cells, tmp_path).run_once(time.monotonic())
    assert kept(cells) == [] and statuses(cells.home) == {}
