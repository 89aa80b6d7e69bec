"""A read that fails at the standby after the standby was measured is repeated on the primary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from app.reads.standby import StandbyReads
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened

CONFLICT = "DO $$ BEGIN RAISE 'conflict with recovery' USING ERRCODE = '40001'; END $$"
DEATH = "SELECT pg_terminate_backend(pg_backend_pid())"
SLOW = "SELECT pg_sleep(10)"


class Standby(StandbyReads):
    """The primary stands for it; its measuring thread is not started, so what is noted stays."""

    fault = ""
    lists = 0

    def _start(self) -> None:
        pass

    def break_list(self, _c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> Any:
        if "FROM applications" not in statement:
            return statement, values
        self.lists += 1
        return (self.fault, ()) if self.fault else (statement, values)


@pytest.fixture
def standby(database: DatabaseFixture) -> Iterator[Standby]:
    url = database.engine.url.render_as_string(hide_password=False)
    engine = open_engine(DatabaseSettings(database_url=url, db_statement_seconds=1.0))
    found = Standby(engine, database.engine, 10.0)
    event.listen(engine, "before_cursor_execute", found.break_list, retval=True)
    yield found
    engine.dispose()


@pytest.fixture
def client(database: DatabaseFixture, standby: Standby, tmp_path: Path) -> Iterator[HttpClient]:
    with opened(database, tmp_path, anonymous="demo") as app:
        services = app.extensions["fairline"]
        app.extensions["fairline"] = replace(services, standby=standby)
        yield HttpClient(app)


def lag(client: HttpClient, status: int = 200) -> str | None:
    answer = client.call(None, "GET", "/leaderboard")
    assert answer.status_code == status, answer.text
    return answer.headers.get("Fairline-Lag")


@pytest.mark.parametrize("fault", [CONFLICT, DEATH])
def test_a_read_that_failed_is_answered_by_the_primary(
    client: HttpClient, standby: Standby, fault: str
) -> None:
    standby.measure()
    assert lag(client)
    assert standby.lists == 1
    standby.fault = fault
    assert lag(client) == "0.0"
    assert standby.lists == 2
    assert lag(client) == "0.0"
    assert standby.lists == 2, "the next one is not tried there"


def test_a_slow_read_does_not_burden_the_primary_too(client: HttpClient, standby: Standby) -> None:
    standby.measure()
    standby.fault = SLOW
    lag(client, 503)
    assert lag(client) == "0.0", "the next one does"
