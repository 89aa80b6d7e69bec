"""A runner died between two commits: jobs are in both cells until the next one goes on."""

from __future__ import annotations

import pytest

from app.scheduler.maintenance.eraser import Eraser
from models.blobs import open_blobs
from models.cells.moves import MoveStep
from models.jobs.cancel import cancel
from models.jobs.claim import JobRef
from models.jobs.discard import discard_dead
from models.jobs.erase import request_erasure
from models.jobs.replay import replay_dead
from tests.support.database_fixture import DatabaseFixture
from tests.support.moved_tenant import LATER
from tests.support.moving_cells import DEAD, A, B, MovingCells


@pytest.fixture
def cells(counted_cells: MovingCells) -> MovingCells:
    return counted_cells


def in_both(cells: MovingCells, monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs are in both cells."""
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.crash_between_commits(monkeypatch)
    assert {tuple(sorted(cell for cell, _ in where)) for where in cells.jobs().values()} == {(A, B)}


def test_a_job_in_both_cells_is_dispatched_in_one(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = cells.admitted(A)
    in_both(cells, monkeypatch)
    assert cells.cells[A].dispatch() == []
    [dispatch] = cells.cells[B].dispatch()
    [claim] = cells.cells[B].claim(JobRef(dispatch.id, dispatch.lease))
    cells.finish()
    assert cells.cell_of(job_id) == B
    assert cells.cells[B].job(job_id).status == "running"
    assert cells.cells[B].settle(claim.ref, DEAD)


def test_what_is_changed_in_the_cell_that_is_left_is_not_forgotten(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed, discarded = cells.ended(A, DEAD), cells.ended(A, DEAD)
    cancelled = cells.admitted(A, execute_at=LATER)
    in_both(cells, monkeypatch)
    source = cells.cells[A].engine
    assert cancel(source, cells.tenant_id, cancelled) is not None
    assert replay_dead(source, cells.tenant_id, [replayed]) == [replayed]
    assert discard_dead(source, cells.tenant_id, [discarded]) == [discarded]
    cells.finish()
    states = {job_id: status for job_id, [(_, status)] in cells.jobs().items()}
    assert states == {cancelled: "cancelled", replayed: "queued", discarded: "cancelled"}


def test_what_was_erased_does_not_come_back(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    kept = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    in_both(cells, monkeypatch)
    state = request_erasure(cells.cells[B].engine, cells.tenant_id, erased)
    assert state is not None
    cells.finish()
    assert set(cells.jobs()) == {kept}
    assert [row.id for row in cells.cells[B].query("SELECT id::text FROM applications")] == [kept]


def test_an_erasure_finds_what_had_left(cells: MovingCells) -> None:
    """Requested in the cell that the job has left: the other one carries it out."""
    job_id = cells.cells[A].submit_application(tenant_id=cells.tenant_id)
    copy_id = cells.cells[A].submit_application(tenant_id=cells.tenant_id, resubmitted_from=job_id)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.cells[A].execute(
        "INSERT INTO erasures (id, tenant_id, erased_at, due_at) VALUES (%s, %s, now(), NULL)",
        job_id,
        cells.tenant_id,
    )
    cells.finish()
    target: DatabaseFixture = cells.cells[B]
    eraser = Eraser(target.engine, target.leader, open_blobs("/nonexistent"))
    for now in range(3):
        eraser.run_once(float(now))
    assert job_id not in cells.jobs()
    assert copy_id not in cells.jobs(), "what was made of it is left"
