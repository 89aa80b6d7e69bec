"""Requests that were taken in for a cell that is away become jobs where their tenant lives."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection

from app.scheduler.maintenance import intake_handover
from app.scheduler.maintenance.tenant_remover import TenantRemover
from models.blobs import open_blobs, payload_key
from models.cells.intake_jobs import cancel_kept, find_kept, keep_group, request_of
from models.cells.placements import place_tenant
from models.encryption.key_ring import PREFIX
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Admitted, SubmissionGroup
from models.store.session import transaction
from tests.support.away_tenants import close_tenant
from tests.support.cell_databases import TestCells
from tests.support.encryption_keys import encrypting, new_key
from tests.support.intake_requests import begin, handover, kept, request, spread, statuses


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def test_requests_become_jobs_of_their_cell_with_their_ids_keys_and_times(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one, batch = request(tenant_id, key="k"), request(tenant_id, jobs=3)
    assert keep_group(cells.host.engine, [one, batch]) == [
        Admitted((one.id,)),
        Admitted(tuple(item.id for item in batch.submissions)),
    ]
    cells.host.run("UPDATE intake_jobs SET created_at = created_at - interval '5 minutes'")
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 2
    ids = {one.id, *(item.id for item in batch.submissions)}
    assert statuses(cells.home) == dict.fromkeys(ids, "queued")
    assert kept(cells) == []
    [[key, first]] = cells.home.rows("SELECT key, job_ids[1]::text FROM idempotency_keys")
    assert (key, first) == ("k", one.id)
    [[oldest]] = cells.home.rows("SELECT max(now() - created_at) FROM jobs")
    assert timedelta(minutes=4) < oldest < timedelta(minutes=6)  # type: ignore[operator]
    assert statuses(cells.host) == {}


def test_nothing_happens_while_the_cell_is_away_and_everything_when_it_is_back(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_handover, "AWAY_SECONDS", 0.0)
    tenant_id, _ = cells.tenant()
    one, role = request(tenant_id), handover(cells, tmp_path)
    keep_group(cells.host.engine, [one])
    cells.home.leave()
    assert role.run_once(time.monotonic()) == 0
    assert kept(cells) == [one.id]
    cells.home.come_back()
    assert role.run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"}


def test_requests_go_to_the_database_that_their_cell_has_by_now(
    cells: TestCells, tmp_path: Path
) -> None:
    """A standby was promoted, and the former primary still takes writes."""
    tenant_id, _ = cells.tenant()
    one, role = request(tenant_id), handover(cells, tmp_path)
    keep_group(cells.host.engine, [one])
    with transaction(cells.registry) as connection:
        readdress(connection, cells.registry_url)
    cells.databases.engine("cell-eu")
    with transaction(cells.registry) as connection:
        readdress(connection, cells.home.row.database_url)
    assert role.run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"}


def readdress(connection: Connection, url: str) -> None:
    connection.exec_driver_sql("UPDATE cells SET database_url = %s WHERE name = 'cell-eu'", (url,))


def test_cancelled_jobs_are_cancelled_in_their_cell_and_later_cancellations_are_refused(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    batch = request(tenant_id, jobs=2)
    stays, goes = (item.id for item in batch.submissions)
    keep_group(cells.host.engine, [batch])
    row = find_kept(cells.host.engine, [goes])[goes]
    assert cancel_kept(cells.host.engine, row, goes)
    assert cancel_kept(cells.host.engine, row, goes)
    begin(cells, batch)
    assert not cancel_kept(cells.host.engine, row, stays)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {stays: "queued", goes: "cancelled"}


def test_requests_follow_a_tenant_that_was_moved_meanwhile(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id, key="k")
    keep_group(cells.host.engine, [one])
    close_tenant(cells.home.engine, tenant_id, 2)
    role = handover(cells, tmp_path)
    assert role.run_once(time.monotonic()) == 0
    assert statuses(cells.home) == {} and kept(cells) == [one.id]
    spread(cells, tenant_id, {"cell-us": 1.0})
    assert role.run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {}
    assert statuses(cells.host) == {one.id: "queued"}
    assert kept(cells) == []


def test_jobs_of_a_suspended_tenant_wait_in_its_cell(cells: TestCells, tmp_path: Path) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    cells.home.run("UPDATE tenants SET suspended_at = now()")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {one.id: "queued"}


def test_the_depth_of_the_queue_does_not_count_again(cells: TestCells, tmp_path: Path) -> None:
    tenant_id, _ = cells.tenant()
    cells.home.run(
        "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (%s, 'short', 1)", tenant_id
    )
    requests = [request(tenant_id) for _ in range(3)]
    keep_group(cells.host.engine, requests)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert len(statuses(cells.home)) == 3


@pytest.mark.parametrize("gone", [False, True])
def test_requests_of_a_deleted_tenant_are_deleted(
    cells: TestCells, tmp_path: Path, gone: bool
) -> None:
    tenant_id, _ = cells.tenant()
    keep_group(cells.host.engine, [request(tenant_id)])
    cells.home.run("UPDATE tenants SET deleted_at = now()")
    if gone:
        forget_placements(cells)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert kept(cells) == [] and statuses(cells.home) == {}


def forget_placements(cells: TestCells) -> None:
    with cells.registry.connect() as connection:
        connection.exec_driver_sql("DELETE FROM placements")


@pytest.mark.parametrize("placed", [False, True])
def test_requests_of_a_tenant_that_was_removed_are_deleted(
    cells: TestCells, tmp_path: Path, placed: bool
) -> None:
    """Also if its placement is left, as the registry was away when it was removed."""
    gone, stays = cells.tenant()[0], cells.tenant("zeta")[0]
    keep_group(cells.host.engine, [request(gone), request(stays)._replace(tenant="zeta")])
    cells.home.run("UPDATE tenants SET deleted_at = '2020-01-01' WHERE name = 'acme'")
    remover = TenantRemover(cells.home.engine, cells.home.leader, open_blobs(str(tmp_path)))
    remover.run_once(0.0)
    assert cells.home.rows("SELECT name FROM tenants") == [("zeta",)]
    if not placed:
        forget_placements(cells)
    handover(cells, tmp_path).run_once(time.monotonic())
    left = [] if placed else [("zeta",)]  # that of zeta is handed over
    assert cells.host.rows("SELECT tenant FROM intake_jobs") == left
    assert len(statuses(cells.home)) == placed


def test_requests_of_a_tenant_that_the_registry_forgot_are_kept(
    cells: TestCells, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was restored to before the tenant was created."""
    tenant_id, _ = cells.tenant()
    requests = [request(tenant_id) for _ in range(3)]
    keep_group(cells.host.engine, requests)
    forget_placements(cells)
    role = handover(cells, tmp_path)
    for _ in range(3):
        assert role.run_once(time.monotonic()) == 0
    assert len(kept(cells)) == 3
    [line] = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "acme" in line and "3 requests" in line
    with transaction(cells.registry) as connection:
        place_tenant(connection, "acme", {"cell-eu": 1.0})
    assert role.run_once(time.monotonic()) == 3
    assert statuses(cells.home).keys() == {one.id for one in requests}


@pytest.mark.parametrize("begun", [False, True])
def test_old_marks_go_although_requests_are_kept_that_nobody_began_to_hand_over(
    cells: TestCells, tmp_path: Path, begun: bool
) -> None:
    tenant_id, _ = cells.tenant()
    mark = f"intake:{cells.host.name}:{new_id()}"
    cells.home.run("INSERT INTO transfer_marks (mark, at) VALUES (%s, '2020-01-01')", mark)
    keep_group(cells.host.engine, [request(tenant_id)])
    if begun:
        cells.host.run("UPDATE intake_jobs SET handed_over_at = now()")
    forget_placements(cells)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert len(kept(cells)) == 1
    assert bool(cells.home.rows("SELECT mark FROM transfer_marks")) == begun


def test_requests_are_kept_while_a_cell_that_may_have_removed_the_tenant_is_away(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_handover, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(intake_handover, "LOOK_SECONDS", 0.0)
    tenant_id, _ = cells.tenant()
    keep_group(cells.host.engine, [request(tenant_id)])
    cells.home.run("UPDATE tenants SET deleted_at = now()")
    forget_placements(cells)
    cells.home.leave()
    role = handover(cells, tmp_path)
    role.run_once(time.monotonic())
    assert len(kept(cells)) == 1
    cells.home.come_back()
    role.run_once(time.monotonic())
    assert kept(cells) == []


def test_requests_of_a_tenant_are_not_those_of_a_later_one_with_its_name(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    keep_group(cells.host.engine, [request(tenant_id)])
    cells.home.run("DELETE FROM api_keys")
    cells.home.run("DELETE FROM tenants")
    cells.home.run("INSERT INTO tenants (name) VALUES ('acme')")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert len(kept(cells)) == 1 and statuses(cells.home) == {}, "who knows what became of it"
    cells.home.run("INSERT INTO transfer_marks (mark) VALUES (%s)", f"deleted/{tenant_id}")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert kept(cells) == [] and statuses(cells.home) == {}


def test_large_payloads_wait_in_their_row_and_are_in_the_store_before_their_job_is(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id, payload="null")
    [item] = one.submissions
    placed = item._replace(payload_blob=payload_key(item.id))
    keep_group(
        cells.host.engine, [one._replace(submissions=(placed,), blobs={item.id: b"large" * 9})]
    )
    handover(cells, tmp_path).run_once(time.monotonic())
    assert open_blobs(str(tmp_path)).get(payload_key(item.id)) == b"large" * 9
    assert cells.home.rows("SELECT payload_blob FROM jobs") == [(payload_key(item.id),)]


def test_what_is_kept_is_encrypted_and_becomes_a_readable_job(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    with encrypting(new_key("k1")):
        one = request(tenant_id, key="k", payload='{"secret": "s3cr3t"}')
        keep_group(cells.host.engine, [one])
        [[body]] = cells.host.rows("SELECT body FROM intake_jobs")
        assert str(body).startswith(PREFIX)
        row = find_kept(cells.host.engine, [one.id])[one.id]
        found = request_of(row, tenant_id)
        assert found is not None and found.submissions == one.submissions
        repeated = keep_group(cells.host.engine, [request(tenant_id, key="k")])[0]
        assert isinstance(repeated, Admitted) and repeated.ids == (one.id,)
        assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
        # Its digest is the one that the cell itself would have stored.
        again = request(tenant_id, key="k")
        [outcome] = admit_group(
            cells.home.engine, [SubmissionGroup(again.submissions, again.key)], False
        )
        assert isinstance(outcome, Admitted) and outcome.ids == (one.id,)


def test_one_request_that_cannot_be_inserted_does_not_keep_the_others(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    bad = request(tenant_id, priority=1_000_000)  # no column takes it
    good = [request(tenant_id) for _ in range(3)]
    keep_group(cells.host.engine, [bad, *good])
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {one.id: "queued" for one in good}
    assert kept(cells) == [bad.id]
