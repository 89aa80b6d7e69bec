"""Requests that take long: one of a tenant at a time in each process, all others wait."""

from __future__ import annotations

from collections.abc import Iterator
from threading import BoundedSemaphore
from typing import Any

import pytest

from app.api.http import turns
from app.api.http.state import time_left
from models.jobs.ids import new_id
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened

ID = new_id()
LONG: dict[str, Any] = {
    "GET /jobs": None,
    "GET /leaderboard": None,
    "GET /dead-letters": None,
    f"GET /jobs/{ID}/wait": None,
    f"GET /applications/{ID}/export": None,
    f"POST /applications/{ID}/erase": None,
    "POST /dead-letters/replay": {"ids": [ID]},
    "POST /dead-letters/discard": {"ids": [ID]},
}


@pytest.fixture(scope="module")
def client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        yield HttpClient(app)


def turn_of(tenant: str, client: HttpClient) -> BoundedSemaphore:
    caller = client.services.tenants.directory.keyless(tenant)
    assert caller is not None and caller.tenant is not None
    return turns._reading.setdefault((id(client.services), caller.tenant.id), BoundedSemaphore())


@pytest.mark.parametrize("route", LONG, ids=lambda route: str(route).replace(ID, "id"))
def test_long_requests_of_a_tenant_wait_for_their_turn(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setattr(turns, "time_left", lambda: min(0.05, time_left()))
    method, path = route.split()
    turn = turn_of("demo", client)
    with turn:
        answer = client.call(None, method, path, LONG[route])
        assert answer.get_json()["code"] == "STATE_STORE_UNAVAILABLE"
    answer = client.call(None, method, path, LONG[route])
    assert answer.status_code in (200, 404), answer.text


def test_a_body_that_is_refused_needs_no_turn(client: HttpClient) -> None:
    turn = turn_of("demo", client)
    with turn:  # nor does one that is still on its way keep others from theirs
        for path in ("/dead-letters/replay", "/dead-letters/discard"):
            assert client.call(None, "POST", path, {"ids": 7}).status_code == 422
