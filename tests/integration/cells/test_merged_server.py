"""Merged answers as the product serves them: gunicorn with green workers, three databases."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.cells.placements import place_tenant
from models.cells.registry import CellRow, add_cell, identify
from models.cells.tenant_rows import read_own_rows, write_own_rows
from models.jobs.ids import new_id
from models.store.session import transaction
from tests.integration.cells.test_merged_lists import PUT
from tests.integration.conftest import fresh_database
from tests.support.api_server import ApiServer, serving
from tests.support.cell_databases import NO_BROKER
from tests.support.database_fixture import DatabaseFixture
from tests.support.event_reader import EventReader
from tests.support.event_rows import bring, locked_out
from tests.support.several_cells import NAMES, engine_of
from tests.support.waiting import wait_for

Databases = dict[str, DatabaseFixture]
#: A cell is waited for for two seconds; a busy machine may take longer to say so.
BUSY_SECONDS = 4.0


@pytest.fixture(scope="module")
def databases(postgres: Running[EmbeddedPostgres]) -> Iterator[Databases]:
    """Three cells; the anonymous tenant lives in all of them."""
    with ExitStack() as stack:
        found: Databases = {}
        for number, name in enumerate(NAMES, 1):
            url = stack.enter_context(fresh_database(postgres))
            found[name] = DatabaseFixture(stack.enter_context(engine_of(url)))
            row = CellRow(name, number, "", url, NO_BROKER, "", "open")
            added = add_cell(found["cell-1"].engine, row, number=number)
            identify(found[name].engine, added, first=number == 1)
        first = found["cell-1"].engine
        found["cell-1"].execute("INSERT INTO tenants (name) VALUES ('demo')")
        for name in NAMES[1:]:
            with transaction(found[name].engine) as connection:
                write_own_rows(connection, read_own_rows(first, 1), share=1 / 3)
        with transaction(first) as connection:
            place_tenant(connection, "demo", dict.fromkeys(NAMES, 1.0))
        yield found


@pytest.fixture(scope="module")
def api(databases: Databases, services_home: Path) -> Iterator[ApiServer]:
    url = databases["cell-1"].engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", registry_url=url) as server:
        wait_for(lambda: server.get("/jobs").status == 200)
        yield server


@contextmanager
def following(api: ApiServer) -> Iterator[EventReader]:
    """A stream that is open. One may end at once: a cell did not respond, on a busy machine."""
    until = time.monotonic() + 30
    while True:
        with EventReader(api.port, "/events") as client:
            try:
                client.wait_for_place()
            except AssertionError:
                assert time.monotonic() < until, "every stream ended"
                continue
            yield client
            return


def end_in(databases: Databases, cell: str) -> str:
    job_id = databases[cell].submit(id=new_id(cell=NAMES.index(cell) + 1))
    bring(databases[cell], job_id, "cancelled")
    return job_id


def test_one_leaderboard_while_one_cell_is_away_and_back(
    api: ApiServer, databases: Databases, postgres: Running[EmbeddedPostgres]
) -> None:
    for number, score in enumerate((90, 80, 80, 70, 60, 60)):
        databases[NAMES[number % 3]].execute(PUT, new_id(), f"c{number}", score)
    answer = api.get("/leaderboard")
    assert [entry["rank"] for entry in answer.json()["entries"]] == [1, 2, 2, 4, 5, 5]
    before = answer.json()

    with locked_out(databases["cell-3"], postgres):
        for _ in range(3):
            answer = api.get("/leaderboard")
            assert answer.status == 503, answer
            assert "cell-3" in answer.json()["detail"]
            assert answer.seconds < BUSY_SECONDS
        wait_for(lambda: api.get("/leaderboard").seconds < 0.3)  # it is known to be away
        part = api.get("/leaderboard?partial=true")
        assert part.headers["fairline-missing-cells"] == "cell-3"
        assert len(part.json()["entries"]) == 4
    wait_for(lambda: api.get("/leaderboard").json() == before, 30)


def test_events_are_followed_over_connections(api: ApiServer, databases: Databases) -> None:
    with following(api) as client:
        ended = []
        for cell in ("cell-3", "cell-1", "cell-2"):
            ended.append(end_in(databases, cell))
            time.sleep(0.02)
        assert [event.data["id"] for event in client.take(3)] == ended
        position = client.last_event_id
    missed = [end_in(databases, cell) for cell in NAMES]
    with EventReader(api.port, "/events", position) as client:
        assert sorted(event.data["id"] for event in client.take(3)) == sorted(missed)


def test_many_lists_at_once_are_all_answered(api: ApiServer, databases: Databases) -> None:
    def answered() -> bool:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: api.get("/jobs?limit=5"), range(100)))
        return {answer.status for answer in answers} == {200} and (
            len({answer.body for answer in answers}) == 1
        )

    # Not always at once: 2 s are little for twenty lists of three cells on a busy machine.
    wait_for(answered, 30)


def test_a_submitted_job_is_waited_for_in_its_cell(api: ApiServer, databases: Databases) -> None:
    job_id = api.submit_job()
    began = time.monotonic()
    answer = api.get(f"/jobs/{job_id}", {"Prefer": "wait=3"})
    assert answer.status == 200
    assert answer.headers["preference-applied"] == "wait"
    assert time.monotonic() - began > 2.5, "longer than lists may take"
    assert job_id in [job["id"] for job in api.get("/jobs?limit=1").json()["jobs"]]
