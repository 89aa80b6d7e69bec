"""Sign-in by OpenID Connect: responses and tokens that are not right let nobody in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from joserfc.jwk import RSAKey

from app.api.auth import oidc
from app.server.wsgi import FairlineApp
from tests.support import oidc_provider as behaviours
from tests.support.database_fixture import DatabaseFixture
from tests.support.oidc_provider import CLIENT_ID, OidcProvider
from tests.support.oidc_sign_in import PUBLIC, begin, come_back, refused, sessions, sign_in


def test_response_is_for_the_browser_that_began(
    app: FairlineApp, browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    back = provider.authorize(begin(browser))
    stranger = app.test_client()
    assert "not begun in this browser" in refused(come_back(stranger, back), database)
    begin(stranger)  # it has one of its own
    assert "did not sign you in" in refused(come_back(stranger, back), database)
    assert provider.asked["/token"] == 0, "the code is not wasted"
    assert come_back(browser, back).status_code == 303


def test_response_is_for_one_use(
    browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    back = provider.authorize(begin(browser))
    kept = browser.get_cookie("fairline_oidc")
    assert kept is not None
    assert come_back(browser, back).status_code == 303
    assert browser.get_cookie("fairline_oidc") is None
    assert come_back(browser, back).status_code == 401
    # Even with a copy of the cookie: the provider knows that the code was used.
    browser.set_cookie("fairline_oidc", kept.value)
    assert come_back(browser, back).status_code == 401
    assert sessions(database) == 1


@pytest.mark.parametrize("cookie", ["", "a", "a.b.c", "...", "a.b.c.", ".b.c./", "é.b.c.d"])
def test_malformed_cookie_is_none(
    browser: FlaskClient, database: DatabaseFixture, cookie: str
) -> None:
    browser.set_cookie("fairline_oidc", cookie)
    url = f"{PUBLIC}/console/oidc/callback?state=a&code=x"
    assert refused(come_back(browser, url), database)


@pytest.mark.parametrize(
    "brought",
    [
        {"state": "another"},
        {"state": None},
        {"code": None},
        {"code": "another"},
        {"code": None, "error": "access_denied", "error_description": "<b>call 0900-1234</b>"},
        {"iss": "https://other.example"},
    ],
)
def test_response_that_is_not_right_is_refused(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    brought: dict[str, str | None],
) -> None:
    provider.brought = brought
    told = refused(sign_in(browser, provider), database)
    assert "did not sign you in" in told and "0900" not in told
    provider.brought = {}
    assert sign_in(browser, provider).status_code == 303


def test_parameter_that_is_sent_twice_is_none(
    browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    back = provider.authorize(begin(browser))
    refused(come_back(browser, f"{back}&code=another"), database)
    assert provider.asked["/token"] == 0


def test_provider_that_names_itself_in_responses_must_do_so(
    browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    provider.metadata = {"authorization_response_iss_parameter_supported": True}
    refused(sign_in(browser, provider), database)
    provider.brought = {"iss": provider.issuer}
    assert sign_in(browser, provider).status_code == 303


LATER, EARLIER = int(time.time()) + 7200, int(time.time()) - 7200


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another-client"},
        {"aud": ["another-client"]},
        {"aud": "another-client", "azp": CLIENT_ID},
        {"aud": [CLIENT_ID, "another-client"]},
        {"aud": [CLIENT_ID, "another-client"], "azp": "another-client"},
        {"azp": "another-client"},
        {"aud": None},
        {"aud": []},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 7},
        {"exp": EARLIER},
        {"exp": None},
        {"exp": "soon"},
        {"iat": LATER, "exp": LATER + 300},
        {"iat": None},
        {"nbf": LATER},
        {"sub": None},
        {"sub": ""},
        {"sub": ["alice-1"]},
        {"at_hash": "wrong"},
    ],
)
def test_token_with_wrong_claims_is_refused(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    claims: dict[str, Any],
) -> None:
    provider.claims = claims
    refused(sign_in(browser, provider), database)
    provider.claims = {}
    assert sign_in(browser, provider).status_code == 303


@pytest.mark.parametrize(
    "forge",
    [
        behaviours.unsigned,
        behaviours.with_public_key_as_secret,
        behaviours.with_other_key,
        behaviours.with_unknown_key,
        behaviours.with_key_in_header,
        lambda provider: lambda claims: provider.signed(claims)[:-8] + "AAAAAAAA",
        lambda provider: lambda claims: provider.signed(claims).rpartition(".")[0] + ".",
        lambda provider: lambda claims: "a.b.c.d.e",
        lambda provider: lambda claims: "é",
        lambda provider: lambda claims: "",
        lambda provider: lambda claims: None,
        lambda provider: lambda claims: {"claims": claims},
        lambda provider: lambda claims: provider.signed({**claims, "x": "x" * 150_000}),
    ],
)
def test_forged_token_is_refused(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    forge: Callable[[OidcProvider], Callable[[dict[str, Any]], object]],
) -> None:
    provider.sign = forge(provider)
    refused(sign_in(browser, provider), database)


def test_new_key_of_the_provider_is_read_and_an_unknown_one_at_most_once_a_moment(
    browser: FlaskClient,
    provider: OidcProvider,
    database: DatabaseFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert sign_in(browser, provider).status_code == 303
    assert sign_in(browser, provider).status_code == 303
    assert provider.asked["/keys"] == 1
    database.execute("DELETE FROM sessions")
    provider.sign = behaviours.with_unknown_key(provider)
    for _ in range(3):
        refused(sign_in(browser, provider), database)
    assert provider.asked["/keys"] == 1, "they have just been read"
    provider.sign = provider.signed
    provider.keys = [provider.key, RSAKey.generate_key(2048, {"kid": "second"})]
    monkeypatch.setattr(oidc, "KEYS_AGAIN_SECONDS", 0.0)
    assert sign_in(browser, provider).status_code == 303
    assert provider.asked["/keys"] == 2
