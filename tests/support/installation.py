"""An installation of several cells in the test's own process: real databases, the real router."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from werkzeug.test import Client, TestResponse

from app.cells.router import CellRouter
from app.config import Settings
from app.server.cells import build_router
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.cells.placements import change_placement, place_tenant, read_placement
from models.cells.registry import CellRow, add_cell, identify
from models.cells.tenant_rows import find_tenant, read_own_rows, write_own_rows
from models.settings import DatabaseSettings
from models.store.session import open_engine, transaction
from tests.support.database_fixture import DatabaseFixture


@dataclass
class Installation:
    """Cells, of which the first has the registry too."""

    databases: Mapping[str, DatabaseFixture]
    settings: Settings
    router: CellRouter

    @property
    def registry(self) -> Engine:
        """The engine of the registry."""
        return next(iter(self.databases.values())).engine

    def tenant(self, name: str, cell: str, **terms: Any) -> str:
        """Create a tenant that lives in a cell; its key."""
        engine = self.databases[cell].engine
        create_tenant(engine, name, Change({"tier_limits": False, **terms}))
        with transaction(self.registry) as connection:
            place_tenant(connection, name, {cell: 1.0})
        return issue_key(engine, name).key

    def tenant_id(self, name: str, cell: str) -> int:
        """The id of a tenant, which is the same in all cells."""
        found = find_tenant(self.databases[cell].engine, name)
        assert found is not None
        return found[0]

    def copy(self, name: str, source: str, target: str, share: float = 1.0) -> None:
        """Let another cell know the tenant and its keys."""
        tenant_id = self.tenant_id(name, source)
        rows = read_own_rows(self.databases[source].engine, tenant_id)
        with transaction(self.databases[target].engine) as connection:
            write_own_rows(connection, rows, share=share)

    def place(self, name: str, **weights: float) -> int:
        """Change the placement in the registry; its version. The router is not told."""
        known = read_placement(self.registry, name)
        assert known is not None
        wanted = {cell.replace("_", "-"): weight for cell, weight in weights.items()}
        with transaction(self.registry) as connection:
            assert change_placement(connection, name, known.version, wanted)
        return known.version + 1

    def refresh(self) -> None:
        """Let the router know what is in the registry."""
        self.router.cache.refresh()

    def call(
        self,
        key: str | None,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> TestResponse:
        """Call the router."""
        sent = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return Client(self.router).open(
            path, method=method, headers={**sent, **(headers or {})}, json=body
        )

    def submit(self, key: str, idempotency_key: str | None = None, **fields: Any) -> TestResponse:
        """Submit a job."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self.call(key, "POST", "/jobs", {"type": "echo", "payload": {}, **fields}, headers)

    def url(self, cell: str) -> str:
        """The address of a cell's database."""
        return self.databases[cell].engine.url.render_as_string(hide_password=False)

    def registry_execute(self, statement: str, *parameters: Any) -> None:
        """Change the registry."""
        self.databases["cell-1"].execute(statement, *parameters)

    def jobs_in(self, cell: str) -> list[str]:
        """Ids of the jobs of a cell."""
        rows = self.databases[cell].query("SELECT id::text AS id FROM jobs ORDER BY id")
        return [row.id for row in rows]


@contextmanager
def installed(
    urls: Sequence[str], folder: Path, *, links: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Installation]:
    """Cells ``cell-1``, ``cell-2``… on these databases; ``links``: by which the router reaches
    some of them."""
    with ExitStack() as stack:
        databases = {}
        for number, url in enumerate(urls, 1):
            engine = open_engine(DatabaseSettings(database_url=url, db_pool_size=5))
            stack.callback(engine.dispose)
            name = f"cell-{number}"
            databases[name] = DatabaseFixture(engine)
            reached = (links or {}).get(name, url)
            row = CellRow(name, number, "", reached, f"filesystem://{folder}/{name}", "", "open")
            identify(engine, row, first=number == 1)
            add_cell(databases["cell-1"].engine, row, number=number)
        wanted = Settings(
            database_url=urls[0],
            registry_url=urls[0],
            broker_url=f"filesystem://{folder}/cell-1",
            blob_url=str(folder / "blobs"),
            db_pool_size=2,
            **settings,
        )
        router = build_router(wanted)
        router.cache.refresh()
        try:
            yield Installation(databases, wanted, router)
        finally:
            router.cache.close()
            router.health.close()
            for app in router.served.apps():
                services = app.extensions["fairline"]
                services.refused.close()
                services.admission.counting.close()
                services.tenants.directory.close()
                services.events.close()
                services.engine.dispose()
            router.cache.registry.dispose()
