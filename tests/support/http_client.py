"""The front door called in the test's own process: no server, no sockets, every route."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug.test import TestResponse

from app.api.services import Services
from app.config import Settings
from app.server.factory import build_app
from app.server.wsgi import FairlineApp
from tests.support.database_fixture import DatabaseFixture


class HttpClient:
    """The application and the way to call it."""

    def __init__(self, app: FairlineApp) -> None:
        self.app = app
        self.services: Services = app.extensions["fairline"]
        self._client = app.test_client()

    def call(self, key: str | None, method: str, path: str, body: Any = None) -> TestResponse:
        """Call with a key, or without one."""
        header = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return self.open(method, path, header, body)

    def open(
        self, method: str, path: str, headers: Mapping[str, str], body: Any = None
    ) -> TestResponse:
        """Call with any headers; a body is sent as JSON."""
        answer = self._client.open(path, method=method, headers=dict(headers), json=body)
        if answer.mimetype == "text/event-stream":
            answer.close()  # it would go on
        return answer


@contextmanager
def opened(
    database: DatabaseFixture,
    blobs: Path,
    *,
    anonymous: str = "",
    console_open: bool = False,
    **settings: Any,
) -> Iterator[FairlineApp]:
    """An application on the database."""
    url = database.engine.url.render_as_string(hide_password=False)
    app = build_app(
        Settings(
            database_url=url,
            anonymous_tenant=anonymous,
            blob_url=str(blobs),
            db_pool_size=2,
            console_open=console_open,
            **settings,
        )
    )
    services: Services = app.extensions["fairline"]
    # Its thread would write what one test was refused into the next one's tables.
    services.refused.close()
    try:
        yield app
    finally:
        services.tenants.directory.close()
        services.events.close()
        services.engine.dispose()
