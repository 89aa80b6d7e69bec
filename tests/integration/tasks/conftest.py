"""What the tests of a worker's parts have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@pytest.fixture
def fixture(database: DatabaseFixture) -> Iterator[OneWorker]:
    """A worker inside the test's own process, on the database of the test's module."""
    with one_worker(database) as made:
        yield made
