"""Real PostgreSQL and real RabbitMQ: one private server a run, a fresh database a test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2.extensions
import pytest
from sqlalchemy import Engine

from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from app.stack.services import Running, running
from models.jobs.ids import new_id
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests import ROOT
from tests.support.api_server import ApiServer, serving
from tests.support.browsing import Browser, console_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.http_client import HttpClient, opened
from tests.support.statement_roles import run_in_roles


@pytest.fixture(autouse=True)
def _same_patience() -> Iterator[None]:
    """How long psycopg2 waits is the whole process's: an engine with short limits leaves them to
    every test after it."""
    before = psycopg2.extensions.get_wait_callback()
    yield
    psycopg2.extensions.set_wait_callback(before)


@pytest.fixture(scope="session")
def services_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairline-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres(services_home: Path) -> Iterator[Running[EmbeddedPostgres]]:
    server = EmbeddedPostgres(services_home)
    with running(server, services_home / "logs") as started:
        server.create_database("template_fairline")
        subprocess.run(
            [sys.executable, "-m", "alembic", "upgrade", "head"],
            cwd=ROOT,
            env={**os.environ, "FAIRLINE_DATABASE_URL": server.url("template_fairline")},
            check=True,
            capture_output=True,
        )
        yield started


@pytest.fixture(scope="session")
def rabbitmq(services_home: Path) -> Iterator[Running[EmbeddedRabbitMQ]]:
    if find_server() is None:
        if os.environ.get("CI"):
            pytest.fail("rabbitmq-server is not installed")
        pytest.skip("rabbitmq-server is not installed")
    with running(EmbeddedRabbitMQ(services_home), services_home / "logs") as started:
        yield started


@contextmanager
def fresh_database(postgres: Running[EmbeddedPostgres]) -> Iterator[str]:
    name = f"test_{new_id().replace('-', '')}"
    postgres.service.create_database(name, template="template_fairline")
    yield postgres.service.url(name)
    postgres.service.drop_database(name)


@pytest.fixture
def database_url(postgres: Running[EmbeddedPostgres]) -> Iterator[str]:
    """A migrated database of the test's own, with the tenant ``demo`` as number 1."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    opened = open_engine(DatabaseSettings(database_url=database_url, db_pool_size=5))
    run_in_roles(opened)
    with opened.connect() as connection:
        connection.exec_driver_sql("INSERT INTO tenants (name) VALUES ('demo')")
    yield opened
    opened.dispose()


@pytest.fixture(scope="module")
def api_database(postgres: Running[EmbeddedPostgres]) -> Iterator[DatabaseFixture]:
    """The database behind ``api``."""
    with fresh_database(postgres) as url:
        opened = open_engine(DatabaseSettings(database_url=url, db_pool_size=5))
        run_in_roles(opened)
        with opened.connect() as connection:
            connection.exec_driver_sql("INSERT INTO tenants (name) VALUES ('demo'), ('other')")
        yield DatabaseFixture(opened)
        opened.dispose()


@pytest.fixture(scope="module")
def api(api_database: DatabaseFixture, services_home: Path) -> Iterator[ApiServer]:
    """The front door as the product runs it, shared by the tests of a module."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", body_seconds=1.5) as server:
        yield server


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    """The shared database with nothing in it but tenants."""
    return emptied(api_database)


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    """The API in the test's own process, where a key is required."""
    with opened(api_database, tmp_path_factory.mktemp("blobs")) as app:
        yield HttpClient(app)


@pytest.fixture(scope="module")
def console(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """Somebody who sits at the machine, where the console is open."""
    with console_of(api_database, tmp_path_factory.mktemp("blobs"), needs_key=False) as browser:
        yield browser


@pytest.fixture(scope="module")
def operator(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """Somebody who has signed in with an operator's key, without which nobody is let in."""
    with console_of(api_database, tmp_path_factory.mktemp("blobs"), needs_key=True) as browser:
        yield browser
