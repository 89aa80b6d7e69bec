"""A provider on this machine, and applications that let its users in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.reads.single_flight import SingleFlight
from app.server.wsgi import FairlineApp
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import opened
from tests.support.oidc_provider import OidcProvider
from tests.support.oidc_sign_in import settings


@pytest.fixture(scope="module")
def running_provider() -> Iterator[OidcProvider]:
    with OidcProvider() as provider:
        yield provider


@pytest.fixture
def provider(running_provider: OidcProvider) -> OidcProvider:
    """Alice, who is an operator."""
    running_provider.reset()
    running_provider.user = {
        "sub": "alice-1",
        "email": "alice@example.com",
        "email_verified": True,
        "groups": ["everybody", "admins"],
    }
    return running_provider


@pytest.fixture
def make(
    provider: OidcProvider, database: DatabaseFixture, tmp_path: Path
) -> Iterator[Callable[..., FairlineApp]]:
    """Applications with other settings; each has read nothing of the provider yet."""
    made = []

    def build(**changes: Any) -> FairlineApp:
        context = opened(database, tmp_path, **settings(provider, **changes))
        made.append(context)
        return context.__enter__()

    yield build
    for context in made:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared_app(
    running_provider: OidcProvider,
    api_database: DatabaseFixture,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FairlineApp]:
    blobs = tmp_path_factory.mktemp("blobs")
    with opened(api_database, blobs, **settings(running_provider)) as app:
        yield app


@pytest.fixture
def app(shared_app: FairlineApp, provider: OidcProvider, database: DatabaseFixture) -> FairlineApp:
    """The application, which has read nothing of the provider yet."""
    client = shared_app.extensions["fairline"].oidc
    client._metadata, client._keys = SingleFlight(), SingleFlight()
    return shared_app


@pytest.fixture
def browser(app: FairlineApp) -> FlaskClient:
    return app.test_client()
