"""A process that does not know the placement yet says that the tenant was moved, not that its key
is wrong, and finds its new jobs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.cells import registry_cache
from app.server.cells import build_router
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells.moved_rows import remove_last_rows
from models.cells.placements import PlacementRow, read_named_placements, read_placements
from models.jobs.ids import new_id
from models.settings import DatabaseSettings
from models.store.session import open_engine, transaction
from tests.integration.conftest import fresh_database
from tests.support.away_tenants import close_tenant, open_tenant
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


# Jobs.


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The tenants whose placements were read from the registry, read by read."""
    made: list[set[str]] = []

    def counting(registry: Engine, tenants: Collection[str]) -> list[PlacementRow]:
        made.append(set(tenants))
        return read_named_placements(registry, tenants)

    monkeypatch.setattr(registry_cache, "read_named_placements", counting)
    return made


def admitted_elsewhere(cells: Installation, key: str) -> str:
    """A job of the tenant's new cell, which another process knew before this one."""
    cells.copy("acme", "cell-2", "cell-3")
    version = cells.place("acme", cell_2=0.0, cell_3=1.0)
    tenant_id = cells.tenant_id("acme", "cell-2")
    close_tenant(cells.databases["cell-2"].engine, tenant_id, version)
    open_tenant(cells.databases["cell-3"].engine, tenant_id, version)
    other = build_router(cells.settings)
    other.cache.refresh()
    try:
        answer = replace(cells, router=other).submit(key)
        assert answer.status_code == 202, answer.text
    finally:
        other.end_serving()
    return str(answer.get_json()["id"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/jobs/{}", 200),
        ("HEAD", "/jobs/{}", 200),
        ("GET", "/jobs/{}/runs", 200),
        ("DELETE", "/jobs/{}", 200),
    ],
)
def test_a_job_that_another_process_admitted_in_the_new_cell_is_found(
    cells: Installation, key: str, method: str, path: str, status: int
) -> None:
    job_id = admitted_elsewhere(cells, key)
    answer = cells.call(key, method, path.format(job_id))
    assert answer.status_code == status, answer.text


def test_what_was_sent_with_a_body_can_be_sent_again(cells: Installation, key: str) -> None:
    job_id = admitted_elsewhere(cells, key)
    path = f"/applications/{job_id}/erase"
    moved = cells.call(key, "POST", path, {})
    assert (moved.status_code, moved.get_json()["code"]) == (503, "TENANT_MOVED")
    assert cells.call(key, "POST", path, {}).status_code == 404, "it is no application"


def test_many_requests_for_jobs_of_other_cells_are_few_reads_of_the_registry(
    cells: Installation, key: str, reads: list[set[str]]
) -> None:
    began = time.monotonic()
    for _ in range(30):
        assert cells.call(key, "GET", f"/jobs/{new_id(cell=3)}").status_code == 404
    assert 1 <= len(reads) <= 2 + (time.monotonic() - began)
    reads.clear()
    for number in (2, 9):
        assert cells.call(key, "GET", f"/jobs/{new_id(cell=number)}").status_code == 404
    assert not reads, "of its own cell, and of none"


def test_a_job_of_another_cell_is_unknown_while_the_registry_is_away(
    cells: Installation, key: str, no_registry: Engine
) -> None:
    job_id = new_id(cell=3)
    assert cells.call(key, "GET", f"/jobs/{job_id}").status_code == 404
    began = time.monotonic()
    assert cells.call(key, "GET", f"/jobs/{job_id}").status_code == 404
    assert time.monotonic() - began < 0.5, "nobody waits for the registry again"


def test_a_sweep_does_not_undo_what_was_read_meanwhile(
    cells: Installation, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cells.router.cache
    cells.tenant("gone", "cell-1")
    cells.refresh()

    def overtaken(registry: Engine, since: datetime | None = None) -> list[PlacementRow]:
        rows = read_placements(registry, since)
        cells.place("acme", cell_2=0.0, cell_3=1.0)
        cells.tenant("fresh", "cell-1")
        for tenant in ("acme", "fresh"):
            cache.look_again(tenant, 5.0)
        return rows

    cells.registry_execute("DELETE FROM placements WHERE tenant = 'gone'")
    monkeypatch.setattr(registry_cache, "read_placements", overtaken)
    cache._sweep_at = 0.0
    cells.refresh()
    acme = cache.placement_of("acme")
    assert acme is not None and acme.leaving == ("cell-2",)
    assert cache.placement_of("fresh") is not None
    assert cache.placement_of("gone") is None
