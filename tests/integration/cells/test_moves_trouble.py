"""A move while something else goes wrong or changes: failovers, open transactions, operators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.scheduler.maintenance.eraser import Eraser
from app.scheduler.maintenance.mover import Mover
from app.scheduler.maintenance.placement_check import PlacementCheck
from models.blobs import open_blobs
from models.cells import move_steps, row_mover
from models.cells.away import StillAdmitting, set_away
from models.cells.moves import Move, MoveStep, request_move, take_move
from models.cells.placements import read_placement
from models.cells.tenant_rows import read_idempotency_keys
from models.jobs.erase import request_erasure
from models.jobs.submission import TenantAway
from models.jobs.transfer import take_jobs
from models.store.errors import StateStoreUnavailable
from tests.support.moving_cells import DONE, A, B, C, MovingCells
from tests.support.waiting import wait_for

#: As an operator does whose API process knows the earlier placement.
CHANGE = "UPDATE tenants SET weight = 7, changed_at = {} WHERE name = 'acme'"
#: What a failover of the cell can bring back.
KEEP = """
    CREATE TABLE old_tenants AS SELECT * FROM tenants;
    CREATE TABLE old_usage AS SELECT * FROM usage
"""
BRING_BACK = """
    INSERT INTO tenants OVERRIDING SYSTEM VALUE SELECT * FROM old_tenants;
    INSERT INTO usage SELECT * FROM old_usage;
    DROP TABLE old_tenants, old_usage
"""


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


@pytest.fixture
def open_transaction(cells: MovingCells) -> Iterator[None]:
    """Somebody has a transaction open in the cell that is left."""
    with cells.cells[A].engine.connect() as connection:
        held = connection.execution_options(isolation_level="READ COMMITTED")
        with held.begin():
            held.exec_driver_sql("SELECT 1")
            yield


def test_a_move_goes_to_the_database_that_its_cell_has_by_now(cells: MovingCells) -> None:
    """A standby was promoted, and the former primary still takes writes."""
    job_id = cells.admitted(A)
    cells.request(b=1)
    with cells.knowing_former(B, C) as databases:
        mover = Mover(databases, "mover", known_seconds=0.0)

        def ended() -> bool:
            mover.run_once(time.monotonic())
            return cells.move is None

        wait_for(ended, 30)
    assert cells.cell_of(job_id) == B
    assert cells.left_in(C) == cells.left_in(A) == {}


def weight(cells: MovingCells, cell: str) -> float:
    [row] = cells.cells[cell].query("SELECT weight FROM tenants WHERE name = 'acme'")
    return float(row.weight)


def test_a_cell_that_forgot_that_the_tenant_is_away_is_told_again(cells: MovingCells) -> None:
    cells.start(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    cells.cells[A].execute("DELETE FROM away_tenants")
    assert not cells.turn()
    assert isinstance(cells.submit(A), TenantAway)
    assert cells.cells[A].dispatch() == []


@pytest.mark.parametrize("step", [MoveStep.TRANSFER, MoveStep.REMOVE])
def test_terms_that_are_changed_where_the_tenant_was_are_kept(
    cells: MovingCells, step: MoveStep
) -> None:
    cells.request(b=1)
    cells.run_to(step)
    cells.cells[A].execute(CHANGE.format("clock_timestamp()"))
    cells.finish()
    assert weight(cells, B) == 7


def test_terms_that_were_changed_before_the_other_cell_was_opened_are_kept(
    cells: MovingCells,
) -> None:
    """The move itself has changed the tenant's row there later."""
    cells.request(b=1)
    cells.run_to(MoveStep.OPEN)
    cells.cells[A].execute(CHANGE.format("changed_at + interval '1 microsecond'"))
    cells.finish()
    assert weight(cells, B) == 7


def test_terms_that_were_changed_where_the_tenant_is_are_kept(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.REMOVE)
    cells.cells[B].execute(CHANGE.format("clock_timestamp()"))
    cells.finish()
    assert weight(cells, B) == 7


def test_what_a_failover_brings_back_is_not_counted_again(cells: MovingCells) -> None:
    cells.ended(A)
    used = cells.usage()
    cells.cells[A].execute(KEEP)
    cells.run(b=1)
    cells.cells[A].execute(BRING_BACK)
    cells.cells[B].execute(CHANGE.format("clock_timestamp()"))
    source = cells.cells[A]
    PlacementCheck(cells.databases.engine(A), source.leader, cells.databases).run_once(0.0)
    assert cells.move is not None
    cells.finish()
    assert cells.left_in(A) == {}
    assert cells.usage() == used
    assert weight(cells, B) == 7, "terms are those of the cell that the tenant lives in"


@pytest.mark.usefixtures("open_transaction")
def test_a_cell_with_an_open_transaction_is_not_closed(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_steps, "OPEN_SECONDS", 0.2)
    cells.request(b=1)
    with pytest.raises(StillAdmitting):
        cells.turn()
    assert not isinstance(cells.submit(A, "key"), TenantAway)


@pytest.mark.usefixtures("open_transaction")
def test_a_cell_that_cannot_be_closed_is_opened_again(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_steps, "WAIT_SECONDS", 0.2)
    cells.request(b=1)
    cells.execute("UPDATE moves SET step = 'close'")
    assert cells.turn()
    assert cells.step is MoveStep.PREPARE
    assert not isinstance(cells.submit(A, "key"), TenantAway)


@pytest.mark.usefixtures("open_transaction")
def test_a_cell_that_was_not_opened_again_is_opened_by_the_next_runner(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the transaction stays open."""
    monkeypatch.setattr(move_steps, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(move_steps, "OPEN_SECONDS", 0.2)
    cells.request(b=1)
    cells.execute("UPDATE moves SET step = 'close'")

    def dying(*args: Any, away: bool) -> bool:
        if not away:
            raise StateStoreUnavailable("away")
        return set_away(*args, away=away)

    with monkeypatch.context() as patch:
        patch.setattr(move_steps, "set_away", dying)
        with pytest.raises(StateStoreUnavailable):
            cells.turn()
    assert cells.step is MoveStep.PREPARE
    assert isinstance(cells.submit(A, "key"), TenantAway)
    assert cells.turn()
    assert not isinstance(cells.submit(A, "key"), TenantAway)
    with pytest.raises(StillAdmitting):
        cells.turn()
    assert cells.step is MoveStep.PREPARE


def test_only_what_came_since_the_last_copy_is_copied_while_the_tenant_is_refused(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long ago the move began."""
    first = cells.admitted(A, "first")
    cells.request(b=1)
    cells.execute("UPDATE moves SET started_at = now() - interval '1 day'")
    copied: list[str | None] = []

    def noting(engine: Any, tenant_id: int, after: str, since: str | None = None) -> Any:
        copied.append(since)
        return read_idempotency_keys(engine, tenant_id, after, since)

    monkeypatch.setattr(row_mover, "read_idempotency_keys", noting)
    mover = Mover(cells.databases, "mover", known_seconds=0.0)
    deadline = time.monotonic() + 30
    while cells.move is not None:
        assert time.monotonic() < deadline
        mover.run_once(time.monotonic())
    assert cells.admitted(B, "first") == first
    since = [datetime.fromisoformat(each) for each in copied if each is not None]
    assert since
    assert min(since) > datetime.now(UTC) - timedelta(minutes=5)


def test_a_turn_that_takes_long_leaves_no_tenant_refused(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.request(b=1)
    cells.run_to(MoveStep.CLOSE)
    cells.execute("UPDATE moves SET lease_expires_at = to_timestamp(0)")
    monkeypatch.setattr("app.scheduler.maintenance.mover.TURN_SECONDS", 0.05)
    mover = Mover(cells.databases, "mover", known_seconds=0.0)
    make_step = mover._make_step

    def slowly(move: Move) -> bool:
        time.sleep(0.06)
        return make_step(move)

    monkeypatch.setattr(mover, "_make_step", slowly)
    deadline = time.monotonic() + 30
    while cells.step is MoveStep.CLOSE:
        assert time.monotonic() < deadline
        mover.run_once(time.monotonic())
    assert cells.step is MoveStep.TRANSFER


@pytest.mark.parametrize("step", ["keys", "undo"])
def test_refused_tenants_come_first_unless_their_last_try_failed(
    cells: MovingCells, step: str
) -> None:
    cells.place("second")
    cells.request(b=1)
    request_move(cells.registry, "second", {B: 1.0})
    cells.execute(
        "UPDATE moves SET step = %(step)s, lease_expires_at = now() WHERE tenant = 'second'",
        step=step,
    )
    first = take_move(cells.registry, "one")
    assert first is not None and first.tenant == "second"
    cells.execute("UPDATE moves SET lease_expires_at = now(), error = 'x' WHERE runner = 'one'")
    first = take_move(cells.registry, "two")
    assert first is not None and first.tenant == "acme"


def test_jobs_stay_until_everybody_looks_in_the_other_cell_too(cells: MovingCells) -> None:
    job_id = cells.admitted(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    assert not cells.runner(known_seconds=600.0).run_once()
    assert cells.cell_of(job_id) == A
    cells.finish()
    assert cells.cell_of(job_id) == B


def test_a_job_that_ends_behind_those_that_have_left_follows(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = cells.ended(A)
    running = cells.start(A)
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    behind: list[Any] = []

    def noting(*args: Any) -> Any:
        behind.append(args[-1])
        return take_jobs(*args)

    monkeypatch.setattr(row_mover, "take_jobs", noting)
    runner = cells.runner()
    assert not runner.run_once()
    assert cells.cell_of(ended) == B
    assert ended in behind, "jobs that have left are walked over again"
    assert cells.cells[A].settle(running, DONE)
    while not runner.run_once():
        pass
    assert cells.cell_of(running.id) == B


def test_the_digest_of_what_is_erased_goes_with_it(cells: MovingCells) -> None:
    """Its key was copied before."""
    job_id = cells.admitted(A, "key")
    cells.cells[A].execute(
        """INSERT INTO applications (id, tenant_id, candidate, role)
           VALUES (%s, %s, 'Ada', 'general')""",
        job_id,
        cells.tenant_id,
    )
    cells.request(b=1)
    cells.run_to(MoveStep.TRANSFER)
    assert request_erasure(cells.cells[A].engine, cells.tenant_id, job_id) is not None
    cells.finish()
    [key] = cells.cells[B].query("SELECT digest FROM idempotency_keys")
    assert bytes(key.digest) == b""


def test_the_digest_of_what_is_erased_goes_in_all_cells_of_a_tenant(cells: MovingCells) -> None:
    job_id = cells.admitted(A, "key")
    cells.cells[A].execute(
        """INSERT INTO applications (id, tenant_id, candidate, role)
           VALUES (%s, %s, 'Ada', 'general')""",
        job_id,
        cells.tenant_id,
    )
    cells.run(a=1, b=1)
    assert request_erasure(cells.cells[A].engine, cells.tenant_id, job_id) is not None
    cells.cells[A].execute("UPDATE erasures SET due_at = now()")
    eraser = Eraser(cells.cells[A].engine, cells.cells[A].leader, open_blobs("/nonexistent"))
    eraser.others = lambda: [cells.databases.engine(B)]
    eraser.run_once(0.0)
    [key] = cells.cells[B].query("SELECT digest FROM idempotency_keys")
    assert bytes(key.digest) == b""


def test_a_move_of_a_tenant_that_is_gone_ends(cells: MovingCells) -> None:
    cells.request(b=1)
    cells.cells[A].execute("DELETE FROM api_keys; DELETE FROM tenants WHERE name = 'acme'")
    assert not cells.turn()
    assert read_placement(cells.registry, "acme") is not None, "it may be about to be created"
    cells.execute("UPDATE placements SET changed_at = changed_at - interval '1 hour'")
    assert not cells.turn()
    assert cells.turn()
    assert cells.move is None
    assert read_placement(cells.registry, "acme") is None
