"""Cells share a blob store: none deletes what another one may need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from app.config import Settings
from app.scheduler.cell_roles import CellRoles
from app.scheduler.maintenance import collector as collecting
from app.scheduler.maintenance.collector import PASS_SECONDS, Collector
from models.blobs import BlobStore, cell_key, open_blobs, payload_key
from models.blobs.directory import DirectoryBlobs
from models.cells.registry import read_identity
from models.jobs.ids import new_id
from models.store.errors import BlobError, StateStoreUnavailable
from tests.support.moving_cells import A, B, C, MovingCells, open_as_owner

MARKS = {cell_key(number) for number in (1, 2, 3)}


@pytest.fixture
def cells(moved_cells: MovingCells) -> MovingCells:
    return moved_cells


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    store = open_blobs(str(tmp_path))
    assert isinstance(store, DirectoryBlobs)
    return store


def stored(blobs: BlobStore) -> set[str]:
    return {entry.key for entry in blobs.entries()}


def collector_of(cells: MovingCells, cell: str, blobs: BlobStore) -> Collector:
    """That of a cell, without a registry."""
    of = cells.cells[cell]
    return Collector(of.engine, of.leader, blobs, old_seconds=0.0)


def with_registry(cells: MovingCells, cell: str, blobs: BlobStore) -> Collector:
    """That of a cell, as it asks the registry."""

    def databases() -> Mapping[int, Engine]:
        known = cells.databases.cells()
        return {row.number: cells.databases.engine(name) for name, row in known.items()}

    collector = collector_of(cells, cell, blobs)
    collector.databases = databases
    return collector


def put_payload(cells: MovingCells, cell: str, blobs: BlobStore) -> str:
    """A job with a large payload; its key."""
    key = payload_key(job_id := cells.admitted(cell))
    blobs.put(key, b"{}")
    statement = "UPDATE jobs SET payload_blob = %s WHERE id = %s"
    cells.cells[cell].execute(statement, key, job_id)
    return key


def put_orphan(blobs: BlobStore) -> str:
    """What no cell references; its key."""
    key = payload_key(new_id())
    blobs.put(key, b"{}")
    return key


@contextmanager
def unknown_to_registry(cells: MovingCells, number: int) -> Iterator[None]:
    """A cell is not in the registry."""
    with open_as_owner(cells.settings) as owner, owner.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE kept AS SELECT * FROM cells WHERE number = {number}"
        )
        connection.exec_driver_sql(f"DELETE FROM cells WHERE number = {number}")
        try:
            yield
        finally:
            connection.exec_driver_sql("INSERT INTO cells SELECT * FROM kept; DROP TABLE kept")


def test_blobs_that_another_cell_references_are_kept(
    cells: MovingCells, blobs: DirectoryBlobs
) -> None:
    key, _ = put_payload(cells, A, blobs), put_orphan(blobs)
    with_registry(cells, B, blobs).run_once(0.0)
    assert stored(blobs) == {key} | MARKS


def test_a_scheduler_without_the_registry_of_its_cell_deletes_nothing(
    cells: MovingCells, blobs: DirectoryBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    """It was started before there were others, or its configuration was not changed."""
    keys = {put_payload(cells, A, blobs), put_orphan(blobs)}
    collector = collector_of(cells, B, blobs)
    for turn in range(3):
        collector.run_once(turn * PASS_SECONDS)
    assert stored(blobs) == keys
    assert [record.message for record in caplog.records] == [
        "blobs that no row references are kept for now: no registry names the cell 2"
        " (docs/cells.md#blobs)"
    ]


def test_blobs_of_a_cell_that_a_new_registry_does_not_have_are_kept(
    cells: MovingCells, blobs: DirectoryBlobs
) -> None:
    """It was rebuilt while the cell was away, which can be added when it is back."""
    key = put_payload(cells, A, blobs)
    with_registry(cells, B, blobs).run_once(0.0)
    assert stored(blobs) == {key} | MARKS, "also of a cell that has looked at no blob itself"
    orphan = put_orphan(blobs)
    collector = with_registry(cells, B, blobs)
    with unknown_to_registry(cells, 1):
        collector.run_once(0.0)
        assert stored(blobs) == {key, orphan} | MARKS
        blobs.delete(cell_key(1))
        collector.run_once(PASS_SECONDS)
        assert stored(blobs) == MARKS - {cell_key(1)}, "an operator says that it will not be back"


def test_a_cell_that_is_removed_during_a_pass_keeps_nothing_from_being_deleted(
    cells: MovingCells, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "BATCH", 1)
    for _ in range(2):
        put_orphan(blobs)
    collector = with_registry(cells, B, blobs)
    assert collector.run_once(0.0) == 1
    assert len(stored(blobs) - MARKS) == 1
    with unknown_to_registry(cells, 1):
        blobs.delete(cell_key(1))
        while collector.run_once(1.0):
            pass
    assert stored(blobs) == MARKS - {cell_key(1)}


def test_without_cells_orphans_go_unless_the_store_is_that_of_cells(
    cells: MovingCells, blobs: DirectoryBlobs
) -> None:
    cells.cells[C].execute("DELETE FROM cell_identity")
    try:
        put_orphan(blobs)
        collector_of(cells, C, blobs).run_once(0.0)
        assert stored(blobs) == set()
        blobs.put(cell_key(1), b"")
        orphan = put_orphan(blobs)
        collector_of(cells, C, blobs).run_once(0.0)
        assert stored(blobs) == {cell_key(1), orphan}
    finally:
        cells.cells[C].execute("INSERT INTO cell_identity (number, name) VALUES (3, 'cell-c')")


def test_a_store_that_takes_no_marks_is_counted_and_not_emptied(
    cells: MovingCells, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say."""
    key, orphan = put_payload(cells, A, blobs), put_orphan(blobs)

    def full(key: str, data: bytes) -> None:
        raise BlobError("no space left")

    monkeypatch.setattr(blobs, "put", full)
    cells.cells[A].execute("DELETE FROM blob_counts")
    with_registry(cells, A, blobs).run_once(0.0)
    assert stored(blobs) == {key, orphan}
    assert counts(cells) == {0: 2, cells.tenant_id: 2}


def test_a_scheduler_knows_the_databases_of_all_cells_of_its_registry(cells: MovingCells) -> None:
    of = cells.cells[B]
    url = of.engine.url.render_as_string(hide_password=False)
    settings = Settings(database_url=url, registry_url=cells.registry_url)
    roles = CellRoles(of.engine, of.leader, settings, "scheduler", open_blobs("/nowhere"), 1.0)
    try:
        found = roles.databases()
        assert {number: read_identity(engine)[0] for number, engine in found.items()} == {
            1: 1,
            2: 2,
            3: 3,
        }
        assert found[2] is of.engine
        assert list(roles.others()) == [found[1], found[3]]
    finally:
        roles.close()


def counts(cells: MovingCells) -> dict[int, int]:
    """What the first cell says that tenants have."""
    rows = cells.cells[A].query("SELECT tenant_id, bytes FROM blob_counts")
    return {row.tenant_id: row.bytes for row in rows}


@pytest.mark.parametrize(
    "error", [StateStoreUnavailable("away"), ProgrammingError("SELECT", {}, Exception("no table"))]
)
def test_while_a_cell_is_away_blobs_are_kept_and_counted(
    cells: MovingCells, blobs: DirectoryBlobs, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    kept, orphan = put_payload(cells, A, blobs), put_orphan(blobs)
    collector = with_registry(cells, A, blobs)
    databases = collector.databases

    def away() -> Mapping[int, Engine]:
        raise error

    collector.databases = away
    for now in (0.0, PASS_SECONDS):
        cells.cells[A].execute("DELETE FROM blob_counts")
        collector.run_once(now)
        assert counts(cells) == {0: 2, cells.tenant_id: 2}
    assert stored(blobs) == {kept, orphan}
    assert len(caplog.records) == 1, "said once"
    collector.databases = databases
    collector.run_once(2 * PASS_SECONDS)
    assert stored(blobs) == {kept} | MARKS


def test_a_cell_that_is_away_is_asked_for_blobs_once_per_minute(
    cells: MovingCells, blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time may take as long as a statement may, and other roles wait for it."""
    monkeypatch.setattr(collecting, "BATCH", 1)
    asked = []
    for _ in range(4):
        put_orphan(blobs)

    def away() -> Mapping[int, Engine]:
        asked.append(now)
        raise StateStoreUnavailable

    collector = collector_of(cells, A, blobs)
    collector.databases = away
    for now in (0.0, 1.0, 59.0, 60.0):
        assert collector.run_once(now) == 1
    assert asked == [0.0, 60.0]
