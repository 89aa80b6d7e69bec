"""The API of another region than that of a tenant's cell, in the test's own process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.test import Client, TestResponse

from app.cells.router import CellRouter
from app.config import Settings
from app.server.cells import build_router
from tests.support.cell_databases import NO_BROKER, TestCells
from tests.support.intake_requests import handover
from tests.support.waiting import wait_for

JOB = {"type": "echo", "payload": {"a": 1}}
APPLICATION = {"candidate": "Ada", "role": "engineer", "payload": {"years": 3}}


class RegionFront:
    """The API of the other region, called as a tenant."""

    def __init__(self, cells: TestCells, router: CellRouter, key: str) -> None:
        self.cells = cells
        self.router = router
        self.key = key
        self._client = Client(router)

    def call(
        self, method: str, path: str, body: Any = None, *, key: str = "", **headers: str
    ) -> TestResponse:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Authorization": f"Bearer {key or self.key}", **given}
        return self._client.open(path, method=method, headers=sent, json=body)

    def submit(self, body: Mapping[str, Any] = JOB, path: str = "/jobs", **headers: str) -> str:
        answer = self.call("POST", path, body, **headers)
        assert answer.status_code == 202, answer.text
        return str(answer.get_json()["id"])

    def lose_home(self) -> None:
        """Take the cell away, and wait until this process knows."""
        self.cells.home.leave()

        def known() -> bool:
            self.call("GET", "/jobs")
            return self.router.is_away("cell-eu")

        wait_for(known, 20.0)

    def refresh(self) -> None:
        """Read what changed, as the process does every second."""
        app = self.router.app_of("cell-eu")
        assert app is not None
        app.extensions["fairline"].tenants.directory.refresh()

    def find_home(self) -> None:
        self.cells.home.come_back()
        wait_for(lambda: not self.router.is_away("cell-eu"), 20.0)

    def hand_over(self, blobs: Path) -> int:
        """One turn of the host's scheduler."""
        return handover(self.cells, blobs).run_once(time.monotonic())


@contextmanager
def routing(cells: TestCells, blobs: Path, region: str = "us") -> Iterator[CellRouter]:
    """An API process of a region, whose own database is the registry's."""
    settings = Settings(
        database_url=cells.registry_url,
        registry_url=cells.registry_url,
        broker_url=NO_BROKER,
        blob_url=str(blobs),
        region=region,
        db_connect_seconds=2.0,
        admission_seconds=4.0,
    )
    router = build_router(settings)
    router.cache.refresh()
    try:
        yield router
    finally:
        router.end_serving()


def suspended(cells: TestCells) -> None:
    cells.home.run("UPDATE tenants SET suspended_at = now(), changed_at = now()")
