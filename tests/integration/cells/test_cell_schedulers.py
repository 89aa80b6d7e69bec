"""Schedulers with a registry move tenants: what one begins, another one ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery

from app.config import Settings
from app.scheduler import service
from app.scheduler.service import SchedulerService, open_cell_roles
from models.blobs import open_blobs
from models.cells.copies import read_copy
from models.store.roles import DatabaseRole
from models.store.session import open_engine
from tests.support.database_fixture import FakePublisher
from tests.support.moving_cells import A, B, MovingCells
from tests.support.waiting import wait_for


@pytest.fixture
def cells(moved_cells: MovingCells, monkeypatch: pytest.MonkeyPatch) -> MovingCells:
    broker = FakePublisher()
    monkeypatch.setattr(broker, "close", lambda: None, raising=False)
    monkeypatch.setattr(service, "Publisher", lambda *_: broker)
    for cell in moved_cells.cells.values():
        cell.leader.resign()
    return moved_cells


@contextmanager
def scheduler_of(cells: MovingCells, cell: str) -> Iterator[None]:
    """The scheduler of a cell, as it is started."""
    url = cells.cells[cell].engine.url.render_as_string(hide_password=False)
    settings = Settings(database_url=url, registry_url=cells.registry_url)
    engine = open_engine(settings, role=DatabaseRole.SCHEDULER)
    scheduler, stop = SchedulerService(engine, Celery(), settings), threading.Event()
    thread = threading.Thread(target=scheduler.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        engine.dispose()


def test_a_scheduler_moves_a_tenant(cells: MovingCells) -> None:
    jobs = {cells.admitted(A, f"key {number}") for number in range(5)}
    with scheduler_of(cells, B):
        cells.request(b=1)
        wait_for(lambda: cells.move is None, 30)
    assert {job_id: cell for job_id, [(cell, _)] in cells.jobs().items()} == dict.fromkeys(jobs, B)
    assert cells.left_in(A) == {}


def test_a_scheduler_keeps_a_copy_of_its_tenants(cells: MovingCells) -> None:
    with scheduler_of(cells, A):
        wait_for(lambda: read_copy(cells.registry, "acme") is not None, 30)
    copy = read_copy(cells.registry, "acme")
    assert copy is not None
    assert (copy.cell, copy.rows["tenants"][0]["name"]) == (A, "acme")
    assert len(copy.rows["api_keys"]) == 1


def test_a_scheduler_without_a_registry_knows_nothing_of_cells(cells: MovingCells) -> None:
    database = cells.cells[A]
    settings = Settings(database_url=str(database.engine.url))
    blobs = open_blobs("/nonexistent")
    assert open_cell_roles(database.engine, database.leader, settings, "scheduler", blobs) is None
