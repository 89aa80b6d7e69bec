"""A process that does not know the placement says that the tenant was moved, not that its key is
wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells.moved_rows import remove_last_rows
from models.settings import DatabaseSettings
from models.store.session import open_engine, transaction
from tests.integration.conftest import fresh_database
from tests.support.installation import Installation, installed


@pytest.fixture
def cells(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Installation]:
    """Three cells."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(3)]
        yield stack.enter_context(installed(urls, tmp_path))


def leave(cells: Installation) -> None:
    """The tenant is gone from its cell, and the process has noticed that."""
    engine = cells.databases["cell-2"].engine
    with transaction(engine) as connection:
        assert remove_last_rows(connection, cells.tenant_id("acme", "cell-2"))
    app = cells.router.app_of("cell-2")
    assert app is not None
    app.extensions["fairline"].tenants.directory._callers.clear()


@pytest.fixture
def key(cells: Installation) -> str:
    """Of a tenant that the process knows."""
    made = cells.tenant("acme", "cell-2")
    cells.refresh()
    assert cells.call(made, "GET", "/jobs").status_code == 200
    return made


@pytest.fixture
def no_registry(
    cells: Installation, postgres: Running[EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """A registry that does not answer."""
    url = postgres.service.url("gone")
    engine = open_engine(DatabaseSettings(database_url=url, db_connect_seconds=0.5))
    monkeypatch.setattr(cells.router.cache, "registry", engine)
    yield engine
    engine.dispose()


def test_the_key_of_a_moved_tenant_is_not_refused_while_the_registry_is_away(
    cells: Installation, key: str, no_registry: Engine
) -> None:
    cells.copy("acme", "cell-2", "cell-3")
    cells.place("acme", cell_3=1.0)
    leave(cells)
    for answer in (cells.call(key, "GET", "/jobs"), cells.submit(key)):
        assert answer.status_code == 503, answer.text
        assert answer.get_json()["code"] == "TENANT_MOVED"
        assert answer.headers["Retry-After"]
    assert cells.call(key[:-1] + "!", "GET", "/jobs").status_code == 401


def test_who_is_told_so_is_served_by_the_new_cell_the_next_time(
    cells: Installation, key: str
) -> None:
    cells.copy("acme", "cell-2", "cell-3")
    cells.place("acme", cell_3=1.0)
    leave(cells)
    assert cells.submit(key).get_json()["code"] == "TENANT_MOVED"
    assert cells.submit(key).status_code == 202
    assert cells.call(key, "GET", "/jobs").status_code == 200
    assert len(cells.jobs_in("cell-3")) == 1


def test_the_key_of_a_deleted_tenant_is_refused(cells: Installation, key: str) -> None:
    leave(cells)
    for answer in (cells.call(key, "GET", "/jobs"), cells.submit(key)):
        assert answer.status_code == 401, answer.text
