"""Signing in by OpenID Connect, as a browser does it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.support.browsing import text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

PUBLIC = "http://localhost"
DISCOVERY = "/.well-known/openid-configuration"
HTML = {"Accept": "text/html,*/*;q=0.8"}
#: As browsers send when a provider sends them back.
BACK = {**HTML, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
OWN = {**HTML, "Sec-Fetch-Site": "same-origin"}


def settings(provider: OidcProvider, **changes: Any) -> dict[str, Any]:
    return {
        "public_url": PUBLIC,
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET,
        "oidc_operators": "admins, owners",
        "oidc_readers": "viewers",
        **changes,
    }


def begin(browser: FlaskClient, next: str = "/console/workers", base: str = PUBLIC) -> str:
    """Press the button; where the browser is sent."""
    answer = browser.get(f"/console/oidc?next={quote(next)}", base_url=base, headers=OWN)
    assert answer.status_code == 303, answer.text
    return answer.headers["Location"]


def sign_in(
    browser: FlaskClient, provider: OidcProvider, next: str = "/console/workers", base: str = PUBLIC
) -> TestResponse:
    """To the provider, whose user agrees, and back."""
    return come_back(browser, provider.authorize(begin(browser, next, base)), base)


def come_back(browser: FlaskClient, url: str, base: str = PUBLIC) -> TestResponse:
    assert url.startswith(f"{base}/console/oidc/callback?")
    return browser.get(url.removeprefix(base), base_url=base, headers=BACK)


def sessions(database: DatabaseFixture) -> int:
    return len(database.query("SELECT 1 FROM sessions WHERE key_id IS NULL"))


def refused(answer: TestResponse, database: DatabaseFixture, status: int = 401) -> str:
    """What somebody is told who is not let in."""
    assert answer.status_code == status, answer.text
    assert sessions(database) == 0
    assert "fairline_operator" not in str(answer.headers.getlist("Set-Cookie"))
    assert 'name="key"' in answer.text, "a key would still do"
    assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
    [told] = re.findall(r'<p class="error" role="alert">(.*?)</p>', answer.text)
    return text_of(told)
