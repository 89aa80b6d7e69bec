"""Sign-in by OpenID Connect: the whole flow, on the application and a provider of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from flask.testing import FlaskClient

from app.server.wsgi import FairlineApp
from tests.support.browsing import text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.oidc_provider import CLIENT_SECRET, OidcProvider
from tests.support.oidc_sign_in import (
    BACK,
    DISCOVERY,
    HTML,
    OWN,
    PUBLIC,
    begin,
    come_back,
    refused,
    sessions,
    sign_in,
)


def test_operator_signs_in_acts_under_their_name_and_signs_out(
    browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    page = browser.get("/console/sign-in?next=/console/workers%3Fa=1", headers=HTML).text
    [link] = re.findall(r'href="(http://localhost/console/oidc[^"]*)"', page)
    assert f"Sign in with {urlsplit(provider.issuer).netloc}" in text_of(page)
    assert parse_qs(urlsplit(link).query) == {"next": ["/console/workers?a=1"]}
    entered = sign_in(browser, provider, "/console/workers?a=1")
    assert (entered.status_code, entered.headers["Location"]) == (303, "/console/workers?a=1")
    shown = browser.get("/console/workers?a=1", headers=BACK)
    assert shown.status_code == 200 and "Sign out" in shown.text
    made = browser.post(
        "/console/tenants", data={"name": "made-by-alice", "tier": "standard"}, headers=OWN
    )
    assert made.status_code in (201, 303), made.text
    rows = database.query("SELECT what, via, who, who_name, role, after FROM audit_log ORDER BY id")
    assert [row.what for row in rows] == ["session.begin", "tenant.create"]
    for row in rows:
        assert (row.who, row.who_name) == ("oidc:alice-1", "alice@example.com")
        assert (row.role, row.via) == ("operator", "console")
    assert rows[0].after == {
        "issuer": provider.issuer,
        "subject": "alice-1",
        "email": "alice@example.com",
        "granted_by": "admins",
    }
    assert browser.post("/console/sign-out", headers=OWN).status_code == 303
    assert sessions(database) == 0
    assert browser.get("/console/workers", headers=HTML).status_code == 303
    database.execute("DELETE FROM tenants WHERE name = 'made-by-alice'")


def test_reader_sees_everything_and_changes_nothing(
    browser: FlaskClient, provider: OidcProvider
) -> None:
    provider.user = {"sub": "bob", "groups": ["viewers"]}
    assert sign_in(browser, provider).status_code == 303
    assert browser.get("/console/audit", headers=HTML).status_code == 200
    answer = browser.post("/console/tenants", data={"name": "x"}, headers=OWN)
    assert answer.status_code == 403 and "You lack the scope operate." in text_of(answer.text)
    # The session is of the pages; the API knows keys alone.
    assert browser.get("/operator/tenants").status_code == 401


def test_who_is_in_no_group_is_refused_by_name(
    make: Callable[..., FairlineApp], provider: OidcProvider, database: DatabaseFixture
) -> None:
    provider.user |= {"groups": ["everybody"]}
    app = make()  # one that has refused nobody yet
    told = refused(sign_in(app.test_client(), provider), database, 403)
    assert "may not sign in here" in told
    app.extensions["fairline"].refused.flush()
    [row] = database.query("SELECT * FROM audit_log WHERE what = 'request.refuse'")
    assert (row.what, row.who, row.who_name) == (
        *("request.refuse", "oidc:alice-1", "alice@example.com"),
    )
    assert row.target == "GET /console/oidc/callback"


def test_a_link_of_another_site_begins_nothing(browser: FlaskClient) -> None:
    answer = browser.get("/console/oidc", headers=BACK)
    assert answer.status_code == 200 and "Set-Cookie" not in answer.headers
    assert "Sign in" in answer.text


def test_request_asks_for_a_code_with_pkce_state_and_nonce(
    browser: FlaskClient, provider: OidcProvider
) -> None:
    asked = [parse_qs(urlsplit(begin(browser)).query) for _ in range(2)]
    for one in asked:
        assert one["response_type"] == ["code"] and one["code_challenge_method"] == ["S256"]
        assert one["redirect_uri"] == [f"{PUBLIC}/console/oidc/callback"]
        assert one["scope"] == ["openid email groups"]
        assert CLIENT_SECRET not in str(one)
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked[0][name][0]) == 43 and asked[0][name] != asked[1][name]
    assert provider.asked[DISCOVERY] == 1


def test_the_host_header_does_not_decide_where_the_provider_sends_browsers(
    browser: FlaskClient,
) -> None:
    sent = begin(browser, base="http://evil.example")
    assert parse_qs(urlsplit(sent).query)["redirect_uri"] == [f"{PUBLIC}/console/oidc/callback"]
    page = browser.get("/console/sign-in", base_url="http://evil.example", headers=HTML).text
    assert "evil" not in page


def test_over_tls_no_other_host_can_set_the_cookies(
    make: Callable[..., FairlineApp], provider: OidcProvider
) -> None:
    base = "https://fair.example"
    browser = make(public_url=f"{base}/").test_client()
    answer = browser.get("/console/oidc", base_url=base, headers=OWN)
    kept = answer.headers["Set-Cookie"]
    assert kept.startswith("__Host-fairline_oidc=") and "Max-Age=600" in kept
    for word in ("Secure", "HttpOnly", "Path=/", "SameSite=Lax"):
        assert word in kept
    assert "Domain" not in kept
    entered = come_back(browser, provider.authorize(answer.headers["Location"]), base)
    assert entered.status_code == 303
    begun, ended = entered.headers.getlist("Set-Cookie")
    assert begun.startswith("__Host-fairline_operator=") and "Secure" in begun
    assert ended.startswith("__Host-fairline_oidc=;") and "Secure" in ended
    assert browser.get("/", base_url=base, headers=BACK).status_code == 200


@pytest.mark.parametrize(
    ("asked", "led_to"),
    [
        ("/console/jobs?status=dead", "/console/jobs?status=dead"),
        ("/tenant", "/"),
        ("https://evil.example/", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/" + "a" * 3000, "/"),
        ("/console/jobs?name=ä.b", "/console/jobs?name=%C3%A4.b"),
    ],
)
def test_browser_is_led_on_within_this_site_only(
    browser: FlaskClient, provider: OidcProvider, asked: str, led_to: str
) -> None:
    assert sign_in(browser, provider, asked).headers["Location"] == led_to


def test_path_that_was_put_into_the_cookie_is_checked_too(
    browser: FlaskClient, provider: OidcProvider
) -> None:
    back = provider.authorize(begin(browser))
    cookie = browser.get_cookie("fairline_oidc")
    assert cookie is not None
    value = ".".join((*cookie.value.split(".")[:3], quote("//evil.example")))
    browser.set_cookie("fairline_oidc", value)
    assert come_back(browser, back).headers["Location"] == "/"


def test_session_has_the_limits_of_others_and_ends_with_the_rule_that_began_it(
    make: Callable[..., FairlineApp], provider: OidcProvider, database: DatabaseFixture
) -> None:
    browser = make(session_idle_minutes=30.0, session_hours=2.0).test_client()
    assert sign_in(browser, provider).status_code == 303
    [row] = database.query(
        "SELECT extract(epoch FROM ends_at - created_at)::float8 AS idle,"
        " extract(epoch FROM expires_at - created_at)::float8 AS most, granted_by FROM sessions"
    )
    assert (row.idle, row.most, row.granted_by) == (1800.0, 7200.0, "admins")
    token = browser.get_cookie("fairline_operator")
    assert token is not None
    for changes, status in (
        ({}, 200),
        ({"oidc_operators": "others"}, 303),
        ({"oidc_issuer": "https://other.example"}, 303),
        ({"oidc_issuer": ""}, 303),
    ):
        other = make(**changes).test_client()
        other.set_cookie("fairline_operator", token.value)
        assert other.get("/console/workers", headers=HTML).status_code == status


def test_signing_in_again_ends_the_session_before(
    browser: FlaskClient, provider: OidcProvider, database: DatabaseFixture
) -> None:
    for _ in range(2):
        assert sign_in(browser, provider).status_code == 303
    assert sessions(database) == 1


def test_by_address(
    make: Callable[..., FairlineApp], provider: OidcProvider, database: DatabaseFixture
) -> None:
    app = make(oidc_claim="email", oidc_operators="ALICE@example.com", oidc_readers="")
    assert parse_qs(urlsplit(begin(app.test_client())).query)["scope"] == ["openid email"]
    assert sign_in(app.test_client(), provider).status_code == 303
    database.execute("DELETE FROM sessions")
    provider.user |= {"email_verified": False}
    refused(sign_in(app.test_client(), provider), database, 403)


def test_without_a_provider_there_is_nothing_to_see(
    make: Callable[..., FairlineApp],
) -> None:
    browser = make(oidc_issuer="").test_client()
    assert "Sign in with" not in text_of(browser.get("/console/sign-in", headers=HTML).text)
    for path in ("/console/oidc", "/console/oidc/callback?code=x&state=y"):
        assert browser.get(path, headers=HTML).status_code == 404
