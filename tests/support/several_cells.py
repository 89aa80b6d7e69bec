"""A tenant's cells in the test's own process, and beside them one database with all of their rows.

What is merged must be what the one database answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine
from werkzeug.test import Client, TestResponse

from app.cells import merged_routes
from app.policy.placement import Placement
from app.server.wsgi import FairlineApp
from app.stack.postgres import EmbeddedPostgres
from app.tenants.changes import issue_key
from models.cells.tenant_rows import read_own_rows, write_own_rows
from models.jobs.ids import new_id
from models.schema import Base
from models.settings import DatabaseSettings
from models.store.row_copies import CopiedTable
from models.store.session import open_engine, transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import KEPT, emptied
from tests.support.http_client import opened

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

NAMES = ("cell-1", "cell-2", "cell-3")
#: Tables whose rows the one database has of all cells.
TABLES = ("jobs", "attempts", "applications", "usage", "refusals", "schedules")


class SeveralCells:
    """The cells of one tenant, and the code that merges their answers in front of them."""

    def __init__(
        self,
        databases: dict[str, DatabaseFixture],
        apps: Mapping[str, FairlineApp],
        one: DatabaseFixture,
        one_app: FairlineApp,
        key: str,
    ) -> None:
        self.databases = databases
        self.apps = apps
        self.one = one
        self.one_app = one_app
        self.key = key
        self.away: set[str] = set()
        self.suspected: set[str] = set()
        self.placement = Placement(1, dict.fromkeys(NAMES, 1.0))

    # What the router offers: :class:`app.cells.fan_out.ServedApps`.

    def app_of(self, cell: str) -> FairlineApp | None:
        return self.apps.get(cell)

    def is_away(self, cell: str) -> bool:
        return cell in self.away

    def suspect(self, cell: str) -> None:
        self.suspected.add(cell)

    def cell_numbered(self, number: int) -> str | None:
        return NAMES[number - 1] if 0 < number <= len(NAMES) else None

    def cell_names(self) -> Sequence[str]:
        return NAMES

    def placement_of(self, tenant: str) -> Placement | None:
        return self.placement if tenant == "demo" else None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return merged_routes.answer(self, self.placement, environ, start_response)

    # What tests do.

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> TestResponse:
        """Call as the tenant."""
        return self._call(self, method, path, body, headers)

    def call_one(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> TestResponse:
        """The same of the database that has all rows."""
        return self._call(self.one_app, method, path, body, headers)

    def _call(
        self, app: Any, method: str, path: str, body: Any, headers: Mapping[str, str] | None
    ) -> TestResponse:
        sent = {"Authorization": f"Bearer {self.key}", **(headers or {})}
        return Client(app).open(path, method=method, headers=sent, json=body)

    def number(self, cell: str) -> int:
        return NAMES.index(cell) + 1

    def submit(self, cell: str, **fields: Any) -> str:
        """Admit a job in a cell; its id says so."""
        job_id = new_id(cell=self.number(cell))
        return self.databases[cell].submit(id=job_id, **fields)

    def gather_rows(self) -> None:
        """Let the one database have the rows of all cells."""
        for name in TABLES:
            table = CopiedTable(Base.metadata.tables[name])
            self.one.execute(f"TRUNCATE {name} CASCADE")
            for database in self.databases.values():
                with database.engine.connect() as connection:
                    rows = table.read(connection, "", {})
                with transaction(self.one.engine) as connection:
                    if name in ("usage", "refusals"):
                        table.add(connection, rows)
                    else:
                        table.insert(connection, rows)

    def forget(self) -> None:
        """Begin anew."""
        self.away.clear()
        self.suspected.clear()
        self.placement = Placement(1, dict.fromkeys(NAMES, 1.0))
        for cell, database in self.databases.items():
            self.databases[cell] = emptied(database)
        self.one = emptied(self.one)
        for app in (*self.apps.values(), self.one_app):
            app.extensions["fairline"].views._kept.clear()


@contextmanager
def several_cells(urls: Sequence[str], blobs: Path) -> Iterator[SeveralCells]:
    """Three cells and the one database with all rows, which is the last of four."""
    with ExitStack() as stack:
        databases = [DatabaseFixture(stack.enter_context(engine_of(url))) for url in urls]
        first, *others = databases
        first.execute("INSERT INTO tenants (name) VALUES ('demo')")
        key = issue_key(first.engine, "demo", KEPT).key
        rows = read_own_rows(first.engine, 1)
        shares = [1 / len(NAMES)] * (len(NAMES) - 1) + [1.0]
        for database, share in zip(others, shares, strict=True):
            with transaction(database.engine) as connection:
                write_own_rows(connection, rows, share=share)
        first.execute(f"UPDATE tenants SET share = 1.0 / {len(NAMES)}")
        apps = [stack.enter_context(opened(database, blobs)) for database in databases]
        cells = dict(zip(NAMES, databases, strict=False))
        yield SeveralCells(
            cells, dict(zip(NAMES, apps, strict=False)), databases[-1], apps[-1], key
        )


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = open_engine(DatabaseSettings(database_url=url, db_pool_size=5))
    yield engine
    engine.dispose()


@contextmanager
def unreachable(server: EmbeddedPostgres, engine: Engine) -> Iterator[None]:
    """While a database takes no connections, and those that it had are closed."""
    name = engine.url.database
    with server._admin() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
    try:
        yield
    finally:
        with server._admin() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        engine.dispose()
