"""Three cells with a database each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from tests.integration.conftest import fresh_database
from tests.support.moving_cells import MovingCells, moving_cells
from tests.support.several_cells import NAMES, SeveralCells, several_cells


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
