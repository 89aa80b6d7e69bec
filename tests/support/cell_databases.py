"""Two cells and a registry for tests: three migrated databases of one server.

A cell is taken away as a whole: nobody can connect, and whoever is connected is thrown out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg2
from sqlalchemy import Engine

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.cells.databases import CellDatabases
from models.cells.placements import place_tenant
from models.cells.registry import CellRow, add_cell, identify
from models.jobs.ids import new_id
from models.leadership import Leader
from models.settings import DatabaseSettings
from models.store.session import open_engine, transaction
from tests.support.database_fixture import PatientLeader
from tests.support.emptied import TRUNCATE

#: What was recorded by ``record_inserts`` of a test goes too.
FORGET = """
    DROP TRIGGER IF EXISTS noted ON jobs;
    DROP FUNCTION IF EXISTS note();
    DROP TABLE IF EXISTS seen;
    DELETE FROM api_keys;
    DELETE FROM tenants;
    DELETE FROM placements;
    DELETE FROM moves;
    DELETE FROM tenant_copies;
    UPDATE cells SET state = 'open'
"""
#: Nothing listens there, which must not matter to anybody.
NO_BROKER = "amqp://guest:guest@127.0.0.1:1//"


@dataclass(frozen=True, slots=True)
class TestCell:
    """A cell: its database, and a leader of its own."""

    __test__ = False

    server: EmbeddedPostgres
    row: CellRow
    engine: Engine
    leader: Leader

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def database(self) -> str:
        return str(self.engine.url.database)

    def leave(self) -> None:
        """Answer nobody."""
        with admin(self.server) as cursor:
            cursor.execute(f'ALTER DATABASE "{self.database}" ALLOW_CONNECTIONS false')
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (self.database,),
            )

    def come_back(self) -> None:
        with admin(self.server) as cursor:
            cursor.execute(f'ALTER DATABASE "{self.database}" ALLOW_CONNECTIONS true')
        self.engine.dispose()

    def empty(self) -> None:
        """Begin anew, with a leader in place."""
        self.come_back()
        empty(self.engine)
        self.leader.run_once(0.0)

    def rows(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """What a statement of the test returns."""
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement, values)]

    def run(self, statement: str, *values: object) -> None:
        with self.engine.connect() as connection:
            connection.exec_driver_sql(statement, values)


@dataclass(frozen=True, slots=True)
class TestCells:
    """A home in one region, a host in another, and the registry."""

    __test__ = False

    registry: Engine
    registry_url: str
    home: TestCell
    host: TestCell
    databases: CellDatabases

    def empty(self) -> TestCells:
        """The same cells with nothing in them; both are there."""
        empty(self.registry)
        self.home.empty()
        self.host.empty()
        self.databases.close()
        return self

    def tenant(self, name: str = "acme", cell: TestCell | None = None) -> tuple[int, str]:
        """A new tenant of the home cell, without limits; its id and a key."""
        where = cell or self.home
        profile = create_tenant(where.engine, name, Change({"tier_limits": False}))
        key = issue_key(where.engine, name)
        with transaction(self.registry) as connection:
            place_tenant(connection, name, {where.name: 1.0})
        return profile.id, key.key


def empty(engine: Engine) -> None:
    """Nothing is left in a database but cells."""
    with engine.connect() as connection:
        connection.exec_driver_sql(TRUNCATE)
        connection.exec_driver_sql(FORGET)


@contextmanager
def admin(server: EmbeddedPostgres) -> Iterator[psycopg2.extensions.cursor]:
    with server._admin() as cursor:
        yield cursor


@contextmanager
def two_cells(postgres: Running[EmbeddedPostgres]) -> Iterator[TestCells]:
    """Fresh databases of a registry and two cells."""
    server = postgres.service
    with ExitStack() as stack:
        urls = {}
        for name in ("registry", "cell-eu", "cell-us"):
            database = f"test_{new_id().replace('-', '')}"
            server.create_database(database, template="template_fairline")
            stack.callback(server.drop_database, database)
            urls[name] = server.url(database)
        settings = DatabaseSettings(database_url=urls["registry"], db_pool_size=4)
        registry = open_engine(settings)
        stack.callback(registry.dispose)
        cells = []
        for number, region in enumerate(("eu", "us"), 1):
            name = f"cell-{region}"
            engine = open_engine(settings.model_copy(update={"database_url": urls[name]}))
            stack.callback(engine.dispose)
            row = CellRow(name, number, region, urls[name], NO_BROKER, "", "open")
            identify(engine, add_cell(registry, row, number=number), first=False)
            leader = PatientLeader(engine, f"leader of {name}")
            leader.run_once(0.0)
            cells.append(TestCell(server, row, engine, leader))
        databases = CellDatabases(registry, settings)
        stack.callback(databases.close)
        home, host = cells
        yield TestCells(registry, urls["registry"], home, host, databases)
