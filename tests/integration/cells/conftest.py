"""Cells with a database each: three of one region, one in each of two, or added by commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import app.config
from app.cli import cells_remove
from app.config import Settings
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.integration.conftest import fresh_database
from tests.support.cell_databases import TestCells, two_cells
from tests.support.database_fixture import DatabaseFixture
from tests.support.moving_cells import MovingCells, moving_cells
from tests.support.region_front import RegionFront, routing
from tests.support.several_cells import NAMES, SeveralCells, several_cells
from tests.support.typed_commands import Type, run


@pytest.fixture(scope="module")
def served_cells(
    postgres: Running[EmbeddedPostgres], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SeveralCells]:
    """Shared by the tests of a module."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in (*NAMES, "one")]
        blobs = tmp_path_factory.mktemp("blobs")
        yield stack.enter_context(several_cells(urls, blobs))


@pytest.fixture
def cells(served_cells: SeveralCells) -> SeveralCells:
    """Cells with nothing in them but the tenant ``demo``."""
    served_cells.forget()
    return served_cells


@pytest.fixture(scope="module")
def movable(postgres: Running[EmbeddedPostgres]) -> Iterator[MovingCells]:
    """Shared by the tests of a module."""
    with moving_cells(postgres) as made:
        yield made


@pytest.fixture
def moved_cells(movable: MovingCells) -> MovingCells:
    """Cells with nothing in them but the tenant ``acme``, in the first one."""
    movable.forget()
    return movable


@pytest.fixture
def counted_cells(moved_cells: MovingCells) -> Iterator[MovingCells]:
    """The same; all live jobs are counted right when the test has ended."""
    yield moved_cells
    assert not moved_cells.miscounted()


@pytest.fixture(scope="module")
def regions(postgres: Running[EmbeddedPostgres]) -> Iterator[TestCells]:
    """Shared by the tests of a module."""
    with two_cells(postgres) as made:
        yield made


@pytest.fixture
def region_cells(regions: TestCells) -> TestCells:
    """Two cells and a registry with nothing in them."""
    return regions.empty()


@pytest.fixture
def front(region_cells: TestCells, tmp_path: Path) -> Iterator[RegionFront]:
    """A process that knows the tenant: it has called before."""
    _, key = region_cells.tenant()
    with routing(region_cells, tmp_path) as router:
        known = RegionFront(region_cells, router, key)
        assert known.call("GET", "/jobs").status_code == 200
        yield known


@pytest.fixture
def urls(postgres: Running[EmbeddedPostgres]) -> Iterator[list[str]]:
    """Three migrated databases that are no cells yet."""
    with ExitStack() as stack:
        yield [stack.enter_context(fresh_database(postgres)) for _ in range(3)]


@pytest.fixture
def databases(urls: list[str]) -> Iterator[list[DatabaseFixture]]:
    opened = [open_engine(DatabaseSettings(database_url=url)) for url in urls]
    yield [DatabaseFixture(engine) for engine in opened]
    for engine in opened:
        engine.dispose()


@pytest.fixture
def type_line(urls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Type:
    """Runs a command; the registry is the first database."""
    own = Settings(database_url=urls[0], registry_url=urls[0], blob_url=str(tmp_path))
    monkeypatch.setattr(app.config, "settings", lambda: own)
    monkeypatch.setattr(cells_remove, "NOTICED_SECONDS", 0.0)
    return run
