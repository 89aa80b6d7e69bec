"""Moves that are taken back, wait or are refused, and tenants that change while they move."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.mover import Mover
from app.scheduler.maintenance.tenant_remover import TenantRemover
from app.tenants.suspension import delete_tenant, suspend_tenant
from models.blobs import open_blobs
from models.cells.away import SET_AWAY
from models.cells.databases import UnknownCell
from models.cells.moves import MoveRefused, MoveStep, cancel_move, read_move, request_move
from models.cells.tenant_rows import CannotMove
from models.jobs.submission import TenantAway
from models.store.errors import StateStoreUnavailable
from tests.support.moving_cells import A, B, C, MovingCells


@pytest.fixture
def cells(counted_cells: MovingCells) -> MovingCells:
    return counted_cells


def test_a_move_is_taken_back(cells: MovingCells) -> None:
    job_id = cells.admitted(A, "kept")
    cells.request(b=1)
    cells.run_to(MoveStep.FLIP)
    assert isinstance(cells.submit(A), TenantAway)
    cancel_move(cells.registry, "acme")
    cells.finish()
    assert cells.placement.weights == {A: 1.0}
    assert cells.admitted(A, "kept") == job_id
    assert [one.id for one in cells.cells[A].dispatch()] == [job_id]
    assert cells.left_in(B) == {}
    with pytest.raises(MoveRefused, match="not being moved"):
        cancel_move(cells.registry, "acme")


def test_a_move_is_taken_back_when_the_other_cell_is_away(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant is not refused any longer, although nobody can tidy up there."""
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    engine = cells.databases.engine

    def away(cell: str) -> Engine:
        if cell == B:
            raise StateStoreUnavailable("away")
        return engine(cell)

    mover = Mover(cells.databases, "mover")
    with monkeypatch.context() as patch:
        patch.setattr(cells.databases, "engine", away)
        cells.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")
        mover.run_once(time.monotonic())
        assert (cells.step, cells.error) == (MoveStep.KEYS, "away")
        cells.execute("UPDATE moves SET changed_at = now() - interval '1 minute'")
        for later in (10, 20):
            mover.run_once(time.monotonic() + later)
        assert cells.step is MoveStep.UNDO
        assert not isinstance(cells.submit(A, "again"), TenantAway)
    cells.finish()
    assert cells.left_in(B) == {}


def test_a_move_is_not_taken_back_once_new_jobs_go_there(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.OPEN)
    with pytest.raises(MoveRefused, match="already"):
        cancel_move(cells.registry, "acme")
    cells.finish()


def test_a_suspended_tenant_moves_and_stays_suspended(cells: MovingCells) -> None:
    cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    suspend_tenant(cells.cells[A].engine, "acme")
    cells.finish()
    [row] = cells.cells[B].query("SELECT suspended_at FROM tenants WHERE name = 'acme'")
    assert row.suspended_at is not None


def test_what_an_operator_changes_while_the_placement_changes_is_kept(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.OPEN)
    cells.cells[A].execute(
        "UPDATE tenants SET weight = 7, changed_at = clock_timestamp() WHERE name = 'acme'"
    )
    cells.finish()
    assert cells.cells[B].query("SELECT weight FROM tenants WHERE name = 'acme'")[0].weight == 7


def test_a_tenant_that_is_deleted_before_the_flip_is_not_moved(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.KEYS)
    delete_tenant(cells.cells[A].engine, "acme")
    cells.finish()
    assert cells.placement.weights == {A: 1.0}
    assert cells.left_in(B) == {}


def test_a_tenant_that_is_deleted_after_the_flip_is_removed_everywhere(cells: MovingCells) -> None:
    for _ in range(3):
        cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.admitted(B)
    delete_tenant(cells.cells[A].engine, "acme")
    assert not cells.turn()
    removers = [
        TenantRemover(cell.engine, cell.leader, open_blobs("/nonexistent"))
        for cell in cells.cells.values()
    ]
    for cell in cells.cells.values():
        cell.execute("UPDATE tenants SET deleted_at = deleted_at - interval '1 hour'")
    for now in range(6):
        for remover in removers:
            remover.run_once(float(now))
    cells.finish()
    assert cells.jobs() == {}
    assert not [cell for cell in cells.cells if cells.left_in(cell)]
    assert not cells.cells[A].query("SELECT FROM tenants WHERE name = 'acme'")


def test_a_move_to_a_cell_that_was_removed_is_taken_back(cells: MovingCells) -> None:
    """Just before the move was requested, and after it was seen that there is such a cell."""
    cells.request(b=1)
    cells.execute("UPDATE moves SET wanted = %(to)s::jsonb", to='{"cell-a": 0, "cell-z": 1}')
    with pytest.raises(UnknownCell):
        cells.turn()
    cancel_move(cells.registry, "acme")
    cells.finish()
    assert not isinstance(cells.submit(A), TenantAway)
    cells.run(b=1)
    assert cells.placement.weights == {B: 1.0}


def test_a_move_waits_for_cells_of_the_same_schema(cells: MovingCells) -> None:
    cells.cells[B].execute("UPDATE alembic_version SET version_num = '0000'")
    cells.request(b=1)
    try:
        with pytest.raises(CannotMove, match="migrate all cells"):
            cells.turn()
    finally:
        cells.cells[B].execute(
            "UPDATE alembic_version SET version_num = %s",
            cells.cells[A].query("SELECT version_num FROM alembic_version")[0].version_num,
        )
    assert cells.left_in(B) == {}


def test_a_cell_with_a_later_placement_is_not_closed(cells: MovingCells) -> None:
    cells.cells[A].query(
        SET_AWAY.replace("%(tenant_id)s", str(cells.tenant_id))
        .replace("%(away)s", "false")
        .replace("%(version)s", str(cells.placement.version + 1000))
    )
    cells.request(b=1)
    with pytest.raises(CannotMove, match="later placement"):
        cells.turn()
    assert cells.step is MoveStep.PREPARE


def test_what_cannot_be_moved_is_refused(cells: MovingCells) -> None:
    registry = cells.registry
    with pytest.raises(MoveRefused, match="no tenant 'nobody'"):
        request_move(registry, "nobody", {B: 1.0})
    with pytest.raises(MoveRefused, match="no cell 'cell-z'"):
        request_move(registry, "acme", {"cell-z": 1.0})
    with pytest.raises(MoveRefused, match="there already"):
        request_move(registry, "acme", {A: 1.0})
    cells.request(b=1)
    with pytest.raises(MoveRefused, match="is being moved"):
        request_move(registry, "acme", {C: 1.0})
    cells.finish()
    assert read_move(registry, "acme") is None
