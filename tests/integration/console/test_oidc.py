"""Sign-in by OpenID Connect: the whole flow, on the application and a provider of this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest
from flask.testing import FlaskClient
from joserfc.jwk import RSAKey
from werkzeug.test import TestResponse

from app.api.auth import oidc, provider_calls
from app.reads.single_flight import SingleFlight
from app.server.wsgi import FairlineApp
from app.tenants.changes import issue_key
from tests.support import oidc_provider as behaviours
from tests.support.api_server import serving
from tests.support.browsing import text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import opened
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider, ProviderHandler

PUBLIC = "http://localhost"
DISCOVERY = "/.well-known/openid-configuration"
HTML = {"Accept": "text/html,*/*;q=0.8"}
#: As browsers send when a provider sends them back.
BACK = {**HTML, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
OWN = {**HTML, "Sec-Fetch-Site": "same-origin"}


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
