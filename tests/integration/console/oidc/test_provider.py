"""Sign-in by OpenID Connect: what the provider is asked for, and a provider that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask.testing import FlaskClient

from app.api.auth import oidc, provider_calls
from app.server.wsgi import FairlineApp
from app.tenants.changes import issue_key
from tests.support import oidc_provider as behaviours
from tests.support.api_server import serving
from tests.support.database_fixture import DatabaseFixture
from tests.support.oidc_provider import OidcProvider, ProviderHandler
from tests.support.oidc_sign_in import (
    BACK,
    DISCOVERY,
    OWN,
    PUBLIC,
    begin,
    come_back,
    refused,
    settings,
    sign_in,
)

FAULTS: list[Callable[[ProviderHandler], None]] = [
    behaviours.hang,
    behaviours.drip,
    behaviours.huge,
    behaviours.bomb,
    behaviours.broken,
    behaviours.not_json,
    behaviours.nested,
    behaviours.a_list,
    behaviours.leads_elsewhere,
]


@pytest.mark.parametrize("path", [DISCOVERY, "/token", "/keys"])
@pytest.mark.parametrize("fault", FAULTS)
def test_provider_that_fails_costs_a_moment_and_a_key_still_does(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    fault: Callable[[ProviderHandler], None],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_calls, "CALL_SECONDS", 1.0)
    provider.faults = {path: fault}
    began = time.monotonic()
    if path == DISCOVERY:
        answer = browser.get("/console/oidc", headers=OWN)
    else:
        answer = sign_in(browser, provider)
    assert time.monotonic() - began < 5.0
    assert "is not available" in refused(answer, database, 503)
    assert provider.asked[path] == 1, "redirects are not followed"
    key = issue_key(database.engine, None).key
    assert browser.post("/console/sign-in", data={"key": key}, headers=OWN).status_code == 303
    # And it is asked again.
    monkeypatch.undo()
    provider.faults = {}
    assert sign_in(browser, provider).status_code == 303


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://other.example"},
        {"issuer": None},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": None},
        {"token_endpoint": "http://other.example/token"},
        {"jwks_uri": ["https://other.example/keys"]},
    ],
)
def test_document_of_another_or_with_addresses_that_are_not_secure_is_refused(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    metadata: dict[str, Any],
) -> None:
    provider.metadata = metadata
    answer = browser.get("/console/oidc", headers=OWN)
    assert "is not available" in refused(answer, database, 503)


def test_too_many_who_wait_for_the_provider_are_told_at_once(
    app: FairlineApp, browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    client = app.extensions["fairline"].oidc
    back = provider.authorize(begin(browser))
    for _ in range(oidc.MOST_WAITING):
        assert client._waiting.acquire(blocking=False)
    refused(come_back(browser, back), database, 503)
    client._waiting.release()
    assert sign_in(browser, provider).status_code == 303


@pytest.mark.parametrize("methods", [None, ["client_secret_post"], ["client_secret_basic"]])
def test_client_authenticates_as_the_provider_wants(
    browser: FlaskClient, provider: OidcProvider, methods: list[str] | None
) -> None:
    provider.metadata = {"token_endpoint_auth_methods_supported": methods}
    assert sign_in(browser, provider).status_code == 303
    provider.secret = "another"
    assert sign_in(browser, provider).status_code == 401


def test_public_client_has_pkce_alone(
    make: Callable[..., FairlineApp], provider: OidcProvider
) -> None:
    provider.secret = None
    assert sign_in(make(oidc_client_secret="").test_client(), provider).status_code == 303


def test_server_with_a_provider_that_hangs(
    api_database: DatabaseFixture, services_home: Path, provider: OidcProvider
) -> None:
    """As the product runs it, in greenlets: others notice nothing."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    key = issue_key(api_database.engine, None, "beside").key
    with serving(url, services_home / "oidc", api_workers=1, **settings(provider)) as server:
        sent = server.get("/console/oidc?next=/console/workers", OWN)
        cookie = {"Cookie": sent.headers["set-cookie"].partition(";")[0]}
        back = provider.authorize(sent.headers["location"]).removeprefix(PUBLIC)
        provider.faults = {"/token": behaviours.hang}
        with server.connect() as waiting:
            head = "".join(f"{name}: {value}\r\n" for name, value in {**BACK, **cookie}.items())
            waiting.sendall(f"GET {back} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
            time.sleep(0.3)
            form = {**OWN, "Content-Type": "application/x-www-form-urlencoded"}
            beside = server.request("POST", "/console/sign-in", urlencode({"key": key}), form)
            assert beside.status == 303 and beside.seconds < 2.0
            began = time.monotonic()
            waiting.settimeout(15)
            assert waiting.recv(100).startswith(b"HTTP/1.1 503")
            assert time.monotonic() - began < 10.0
        provider.faults = {}
        sent = server.get("/console/oidc", OWN)
        cookie = {"Cookie": sent.headers["set-cookie"].partition(";")[0]}
        back = provider.authorize(sent.headers["location"]).removeprefix(PUBLIC)
        assert server.get(back, {**BACK, **cookie}).status == 303
