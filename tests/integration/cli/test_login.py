"""The login of the processes, as ``flask migrate`` makes it on a server that asks for passwords."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import ProgrammingError

from app.cli.login import is_refused, keep_login
from loadtest.fleet import until
from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole
from models.store.session import fetch, open_engine
from tests.support.database_fixture import DatabaseFixture

LOGIN = "login_of_this_test"
READ_LOGIN = f"""
    SELECT rolcanlogin, rolinherit, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls
    FROM pg_roles WHERE rolname = '{LOGIN}'
"""


@pytest.fixture
def database(database_url: str) -> Iterator[DatabaseFixture]:
    """On a server that asks for this login's password, which is there with the password ``old``."""
    database = DatabaseFixture(open_engine(DatabaseSettings(database_url=database_url)))
    rules = Path(database.query("SHOW hba_file")[0].hba_file)
    before = rules.read_text()
    database.execute(f"CREATE ROLE {LOGIN} LOGIN PASSWORD 'old'")
    rules.write_text(f"local all {LOGIN} scram-sha-256\n{before}")
    try:
        database.execute("SELECT pg_reload_conf()")
        wrong = with_password(database_url, "new")
        until(lambda: is_refused(wrong), 10.0, "the server to ask for passwords")
        yield database
    finally:
        rules.write_text(before)
        database.execute("SELECT pg_reload_conf()")
        database.execute(f"DROP ROLE {LOGIN}")
        database.engine.dispose()


def with_password(database_url: str, password: str) -> DatabaseSettings:
    url = database_url.replace("postgres@", f"{LOGIN}:{password}@")
    return DatabaseSettings(database_url=url)


def test_a_login_is_made_that_owns_nothing_and_gets_a_password_that_was_changed(
    database: DatabaseFixture, database_url: str
) -> None:
    database.execute(f"DROP ROLE {LOGIN}")
    for password in ("first", "second"):
        settings = with_password(database_url, password)
        assert is_refused(settings)
        keep_login(database.engine, settings)
        assert not is_refused(settings)
        assert tuple(database.query(READ_LOGIN)[0]) == (True, *[False] * 5)
        with pytest.raises(ProgrammingError, match="permission denied"):
            fetch(open_engine(settings), "SELECT FROM jobs")
        for role in DatabaseRole:
            assert not fetch(open_engine(settings, role=role), "SELECT FROM jobs")
    assert is_refused(with_password(database_url, "first"))


def test_the_password_of_a_login_that_somebody_else_made_stays(
    database: DatabaseFixture, database_url: str
) -> None:
    for _ in range(2):
        keep_login(database.engine, with_password(database_url, "new"))
        assert is_refused(with_password(database_url, "new"))
    settings = with_password(database_url, "old")
    assert not fetch(open_engine(settings, role=DatabaseRole.WORKER), "SELECT FROM jobs")


def test_without_another_login_nothing_is_made(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.login.transaction", None)
    keep_login(engine, DatabaseSettings(database_url=database_url))
