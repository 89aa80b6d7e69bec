"""A schedule of a tenant in several cells is in one of them: it ticks there, and nowhere else."""

from __future__ import annotations

import threading
import time

import pytest
from celery import Celery

from app.config import Settings
from app.scheduler import service
from app.scheduler.maintenance.placement_check import PlacementCheck, TenantCopier
from app.scheduler.service import SchedulerService
from models.cells.away import read_away
from models.cells.copies import install_copy, read_copy
from models.cells.move_steps import MoveRunner
from models.cells.moves import MoveStep
from models.cells.placements import change_placement
from models.cells.promotion import promote
from models.cells.row_mover import RowMover
from models.jobs.ids import new_id
from models.jobs.submission import TenantAway
from models.store.roles import DatabaseRole
from models.store.session import open_engine, transaction
from tests.support.database_fixture import FakePublisher
from tests.support.moving_cells import A, B, C, MovingCells
from tests.support.waiting import wait_for

DUE = """
    INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type, payload,
                           next_at)
    VALUES (%s, %s, 'often', '* * * * *', 'UTC', 'allow', 'one', 'echo', '{}', now())
"""


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


def holders(cells: MovingCells) -> list[str]:
    """The cells that have the schedule."""
    found = "SELECT id FROM schedules WHERE tenant_id = %s"
    return [name for name, cell in cells.cells.items() if cell.query(found, cells.tenant_id)]


def promoted(cells: MovingCells) -> None:
    """A tenant of the second and third cell, of which the third is lost: the first one, which comes
    before the one that has the schedules, takes its place."""
    cells.run(b=1, c=1)
    cells.cells[B].execute(DUE, new_id(), cells.tenant_id)
    database = cells.cells[B]
    TenantCopier(database.engine, database.leader, cells.databases).run_once(0.0)
    # What is lost is not read: its rows do not matter any more.
    assert promote(cells.databases, C, A).tenants == ["acme"]
    assert cells.placement.weights == {A: 1.0, B: 1.0}


def test_schedules_go_to_a_promoted_cell_that_comes_first(cells: MovingCells) -> None:
    promoted(cells)
    assert holders(cells) == [B], "it ticks there until it has gone"
    cells.run_to(None)
    assert holders(cells) == [A]
    assert cells.placement.weights == {A: 1.0, B: 1.0}
    for cell in (A, B):
        assert not isinstance(cells.submit(cell), TenantAway)


def test_a_cell_that_gives_its_schedules_is_closed_meanwhile(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash they may be in both cells."""

    class Dies(Exception):
        pass

    def dies(*_: object) -> int:
        raise Dies

    promoted(cells)
    cells.run_to(MoveStep.OPEN)
    runner: MoveRunner = cells.runner()
    with monkeypatch.context() as patched:
        patched.setattr(RowMover, "move_rows", dies)
        with pytest.raises(Dies):
            runner.run_once()
    assert isinstance(cells.submit(B), TenantAway)
    cells.finish()
    assert holders(cells) == [A]
    assert not isinstance(cells.submit(B), TenantAway)


def test_a_cell_that_was_away_makes_no_tick_before_it_knows_who_lives_there(
    cells: MovingCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.cells[A].execute(DUE, new_id(), cells.tenant_id)
    database = cells.cells[A]
    TenantCopier(database.engine, database.leader, cells.databases).run_once(0.0)
    copy = read_copy(cells.registry, "acme")
    assert copy is not None
    with transaction(cells.databases.engine(B)) as connection:
        install_copy(connection, copy)
    with transaction(cells.registry) as connection:
        assert change_placement(connection, "acme", cells.placement.version, {B: 1.0})
    broker, check = FakePublisher(), PlacementCheck.run_once

    def slowly(self: PlacementCheck, now: float) -> int:
        time.sleep(1.5)
        return check(self, now)

    monkeypatch.setattr(broker, "close", lambda: None, raising=False)
    monkeypatch.setattr(service, "Publisher", lambda *_: broker)
    monkeypatch.setattr(PlacementCheck, "run_once", slowly)
    cells.cells[A].leader.resign()
    url = cells.cells[A].engine.url.render_as_string(hide_password=False)
    settings = Settings(database_url=url, registry_url=cells.registry_url)
    engine = open_engine(settings, role=DatabaseRole.SCHEDULER)
    scheduler, stop = SchedulerService(engine, Celery(), settings), threading.Event()
    thread = threading.Thread(target=scheduler.run, args=(stop,))
    thread.start()
    try:
        wait_for(lambda: bool(read_away(cells.cells[A].engine)), 30.0)
        time.sleep(0.6)
    finally:
        stop.set()
        thread.join()
        engine.dispose()
    assert cells.jobs() == {}
