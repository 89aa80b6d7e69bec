"""What all pages share: who is let in, what the browser is told, how errors look."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from app.console.assets import PACKAGED, asset_url, compressed
from app.tenants.changes import create_tenant, issue_key, revoke_key
from tests.support.api_server import Answer, ApiServer, serving
from tests.support.database_fixture import DatabaseFixture
from tests.support.waiting import wait_for

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = {"Sec-Fetch-Site": "same-origin"}
FORM = {"Content-Type": "application/x-www-form-urlencoded", **HTML}
PAGE = "/console/workers"


@pytest.fixture(scope="module")
def http_client(api_database: DatabaseFixture, services_home: Path) -> Iterator[ApiServer]:
    """As elsewhere: nobody is let in without a key."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", anonymous_tenant="", api_workers=1) as server:
        yield server


@pytest.fixture(scope="module")
def open_client(api_database: DatabaseFixture, services_home: Path) -> Iterator[ApiServer]:
    """As ``make up`` has it."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(
        url, services_home / "logs", console_open=True, api_workers=1, body_seconds=0.5
    ) as server:
        yield server


def sign_in(http_client: ApiServer, key: str, next: str = PAGE, **headers: str) -> Answer:
    body = urlencode({"key": key, "next": next})
    return http_client.request("POST", "/console/sign-in", body, {**FORM, **OWN, **headers})


def cookie_of(answer: Answer) -> dict[str, str]:
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_who_has_no_key_is_asked_to_sign_in_and_led_back(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    answer = http_client.get(f"{PAGE}?a=1", HTML)
    assert answer.status == 303
    assert answer.headers["location"] == f"/console/sign-in?next={PAGE}%3Fa%3D1"
    key = issue_key(api_database.engine, None, "console").key
    entered = sign_in(http_client, key, f"{PAGE}?a=1")
    assert (entered.status, entered.headers["location"]) == (303, f"{PAGE}?a=1")
    kept = entered.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Lax" in kept
    shown = http_client.get(PAGE, {**HTML, **cookie_of(entered)})
    assert shown.status == 200
    assert b"Sign out" in shown.body


def test_a_script_without_a_key_gets_a_problem_document(http_client: ApiServer) -> None:
    answer = http_client.get(PAGE, {"Accept": "application/json"})
    assert answer.status == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_key_goes_over_encrypted_connections_only_if_it_came_over_one(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    key = issue_key(api_database.engine, None, "secure").key
    assert "Secure" not in sign_in(http_client, key).headers["set-cookie"]
    # Behind a proxy that takes the encryption off.
    kept = sign_in(http_client, key, Origin="https://fair.example").headers["set-cookie"]
    assert "Secure" in kept
    assert kept.startswith("__Host-fairline_operator=")
    assert "Path=/" in kept and "Domain" not in kept and "HttpOnly" in kept


def test_the_cookie_is_a_session_that_ends_at_sign_out_and_never_the_key(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    issued = issue_key(api_database.engine, None, "session")
    secret = issued.key.split("_")[2]
    for name, origin in (("", {}), ("__Host-", {"Origin": "https://fair.example"})):
        entered = sign_in(http_client, issued.key, **origin)
        assert secret not in str(entered.headers) and issued.id not in str(entered.headers)
        cookie = cookie_of(entered)
        assert cookie["Cookie"].startswith(f"{name}fairline_operator=")
        other = cookie_of(sign_in(http_client, issued.key))
        assert http_client.get(PAGE, {**HTML, **cookie}).status == 200
        left = http_client.request("POST", "/console/sign-out", b"", {**FORM, **OWN, **cookie})
        assert left.status == 303
        assert left.headers["set-cookie"].startswith(f"{name}fairline_operator=;")
        # The token is worthless, whoever has kept it; the other session goes on.
        # Another process may believe it for a second.
        wait_for(lambda: http_client.get(PAGE, {**HTML, **cookie}).status == 303)  # noqa: B023
        assert http_client.get(PAGE, {**HTML, **other}).status == 200


def test_the_key_itself_in_the_cookie_opens_nothing(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    key = issue_key(api_database.engine, None, "old cookie").key
    for name in ("fairline_operator", "__Host-fairline_operator"):
        answer = http_client.get(PAGE, {**HTML, "Cookie": f"{name}={key}"})
        assert answer.status == 303
        assert answer.headers["set-cookie"].startswith(f"{name}=;")


def test_signing_in_again_ends_the_session_before(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    key = issue_key(api_database.engine, None, "twice").key
    first = cookie_of(sign_in(http_client, key))
    second = cookie_of(sign_in(http_client, key, **first))
    wait_for(lambda: http_client.get(PAGE, {**HTML, **first}).status == 303)
    assert http_client.get(PAGE, {**HTML, **second}).status == 200


def test_a_cookie_opens_pages_and_not_the_api(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "pages-only")
    cookie = cookie_of(sign_in(http_client, issue_key(api_database.engine, "pages-only").key))
    assert http_client.get("/tenant", {**HTML, **cookie}).status == 200
    for path in ("/tenant", "/tenant/usage", "/jobs"):
        assert http_client.get(path, {"Accept": "application/json", **cookie}).status == 401, path


def test_a_wrong_key_is_refused_in_words(http_client: ApiServer) -> None:
    answer = sign_in(http_client, "fair_aaaaaaaa_" + "b" * 32)
    assert answer.status == 401
    assert b"This API key is not known." in answer.body
    assert "set-cookie" not in answer.headers


def test_a_tenants_key_opens_its_page_and_not_the_console(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    create_tenant(api_database.engine, "shell")
    key = issue_key(api_database.engine, "shell").key
    entered = sign_in(http_client, key)
    assert entered.headers["location"] == "/tenant"
    assert entered.headers["set-cookie"].startswith("fairline_tenant=")
    assert http_client.get(PAGE, {**HTML, **cookie_of(entered)}).status == 303
    # Neither by the other cookie nor by the header.
    token = cookie_of(entered)["Cookie"].partition("=")[2]
    other = http_client.get(PAGE, {**HTML, "Cookie": f"fairline_operator={token}"})
    assert other.status == 403
    assert b"Access denied" in other.body
    assert http_client.get(PAGE, {"Authorization": f"Bearer {key}"}).status == 403


def test_a_revoked_key_opens_nothing(http_client: ApiServer, api_database: DatabaseFixture) -> None:
    issued = issue_key(api_database.engine, None, "short-lived")
    entered = sign_in(http_client, issued.key)
    assert http_client.get(PAGE, {**HTML, **cookie_of(entered)}).status == 200
    revoke_key(api_database.engine, issued.id)
    # Promised are two seconds; a busy machine may take longer.
    wait_for(lambda: http_client.get(PAGE, {**HTML, **cookie_of(entered)}).status == 303, 10)
    answer = http_client.get(PAGE, {**HTML, **cookie_of(entered)})
    assert answer.headers["location"].startswith("/console/sign-in")


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "//["],
)
def test_nobody_is_led_to_another_site(
    http_client: ApiServer, api_database: DatabaseFixture, target: str
) -> None:
    key = issue_key(api_database.engine, None, "led").key
    assert sign_in(http_client, key, target).headers["location"] == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
    ],
)
def test_a_form_of_another_site_does_nothing(
    open_client: ApiServer, headers: dict[str, str]
) -> None:
    for path in ("/console/sign-in", "/console/sign-out"):
        answer = open_client.request("POST", path, "", {**FORM, **headers})
        assert answer.status == 403, (path, headers)


def test_a_browser_without_fetch_metadata_is_known_by_its_origin(open_client: ApiServer) -> None:
    origin = f"http://127.0.0.1:{open_client.port}"
    answer = open_client.request("POST", "/console/sign-out", "", {**FORM, "Origin": origin})
    assert answer.status == 303


def test_who_sits_at_the_machine_needs_no_key_where_the_console_is_open(
    open_client: ApiServer,
) -> None:
    assert open_client.get(PAGE, HTML).status == 200
    assert open_client.get(PAGE, {**HTML, "Host": f"localhost:{open_client.port}"}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_a_name_that_was_made_to_point_here_opens_nothing(
    open_client: ApiServer, host: str
) -> None:
    assert open_client.get(PAGE, {**HTML, "Host": host}).status in (303, 400)


def test_pages_may_load_nothing_but_files_of_ours(open_client: ApiServer) -> None:
    for path in (PAGE, "/console/nothing", "/console/sign-in"):
        answer = open_client.get(path, HTML)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert b"<script>" not in answer.body
        assert b" style=" not in answer.body
        assert b"onclick" not in answer.body


def test_an_address_without_a_page_is_a_page_that_says_so(open_client: ApiServer) -> None:
    answer = open_client.get("/console/<script>alert(1)</script>", HTML)
    assert answer.status == 404
    assert b"Not found" in answer.body
    assert b"<script>alert" not in answer.body


@pytest.mark.parametrize("path", ["/nothing", "/tenant/nothing", "/a/b/<i>c</i>"])
def test_an_unknown_address_is_a_page_for_browsers_alone(
    open_client: ApiServer, http_client: ApiServer, path: str
) -> None:
    for client in (open_client, http_client):
        page = client.get(quote(path), HTML)
        assert page.status == 404
        assert page.headers["content-type"].startswith("text/html")
        assert b"There is no such path." in page.body and b"<i>" not in page.body
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for accept in ({"Accept": "application/json"}, {"Accept": "*/*"}, {}):
            answer = client.get(quote(path), accept)
            assert answer.status == 404
            assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/console", "/console/"])
def test_the_console_begins_with_its_overview(open_client: ApiServer, path: str) -> None:
    answer = open_client.get(path, HTML)
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_the_api_stays_json_for_browsers_too(open_client: ApiServer) -> None:
    answer = open_client.get("/jobs/nonsense", HTML)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_files_are_kept_for_a_year_under_a_name_that_changes(open_client: ApiServer) -> None:
    page = open_client.get(PAGE, HTML).body.decode()
    path = next(part for part in page.split('"') if part.endswith("/console.css"))
    answer = open_client.get(path, {"Accept-Encoding": "gzip"})
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-encoding"] == "gzip"
    assert open_client.get(path.replace("/assets/", "/assets/0")).status == 404
    for name in ("../shell.py", "%2e%2e/shell.py", "..%2fshell.py", "/etc/passwd"):
        assert open_client.get(f"{path.rpartition('/')[0]}/{name}").status == 404


def test_what_strangers_ask_for_is_not_kept(open_client: ApiServer) -> None:
    for name in ("%00", "x" * 3_000, "console.css/../console.css"):
        assert open_client.get(f"/console/assets/0/{name}").status == 404
    assert compressed.cache_info().maxsize is None  # by names that there are, and no others
    with pytest.raises(KeyError):
        compressed("nonsense")


def test_no_field_may_hold_a_nul(open_client: ApiServer) -> None:
    for path in ("/console/dead-letters?tenant=%00", "/console/jobs?te%00xt=a", "/?window=%00"):
        assert open_client.get(path, HTML).status == 422, path
    page = quote("/console/dead-letters?tenant=%00")
    assert open_client.get(f"/console/events?page={page}", HTML).status == 422
    sent = open_client.request(
        "POST", "/tenant/dead-letters/replay", "type=%00&error_class=TIMEOUT", {**FORM, **OWN}
    )
    assert sent.status == 422


def test_a_stream_ends_soon_after_its_key_was_revoked(
    http_client: ApiServer, api_database: DatabaseFixture
) -> None:
    issued = issue_key(api_database.engine, None, "to be revoked")
    wire = http.client.HTTPConnection("127.0.0.1", http_client.port, timeout=15)
    try:
        cookie = cookie_of(sign_in(http_client, issued.key))
        wire.request("GET", "/console/events?page=/console/lab", headers={**HTML, **cookie})
        stream = wire.getresponse()
        next_event(stream, "parts")
        revoke_key(api_database.engine, issued.id)
        began = time.monotonic()
        assert stream.read().strip() == b""
        assert time.monotonic() - began < 12
    finally:
        wire.close()


def test_every_file_of_a_package_is_there(open_client: ApiServer) -> None:
    for name in PACKAGED:
        assert open_client.get(asset_url(name)).status == 200, name


def test_a_form_is_bounded_in_size_and_time(open_client: ApiServer) -> None:
    large = open_client.request(
        "POST", "/console/sign-in", b"key=" + b"x" * 2_000_000, {**FORM, **OWN}
    )
    assert large.status == 413
    head = b"POST /console/sign-in HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    slow = (
        head + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\nkey="
    )
    assert open_client.exchange(slow, end=False).startswith(b"HTTP/1.1 408")


def test_a_live_page_is_told_what_changes(
    open_client: ApiServer, api_database: DatabaseFixture
) -> None:
    api_database.execute("INSERT INTO processes (name, kind) VALUES ('api@here:1', 'api')")
    wire = http.client.HTTPConnection("127.0.0.1", open_client.port, timeout=10)
    try:
        wire.request("GET", f"/console/events?page={PAGE}", headers=HTML)
        stream = wire.getresponse()
        assert stream.getheader("Content-Type") == "text/event-stream"
        assert "api@here:1" in next_event(stream, "parts")
        api_database.execute("INSERT INTO processes (name, kind) VALUES ('api@there:2', 'api')")
        assert "api@there:2" in next_event(stream, "parts")
    finally:
        wire.close()


def test_only_pages_of_the_console_are_followed_there(open_client: ApiServer) -> None:
    for page in (
        "/tenant",
        "/console/nothing",
        "/metrics",
        "https://evil.example/",
        "/console/sign-in",
    ):
        answer = open_client.get(f"/console/events?page={page}", HTML)
        assert answer.status == 404, page


def next_event(stream: http.client.HTTPResponse, name: str) -> str:
    """The data of the next event of that name."""
    while line := stream.readline().decode():
        if line == f"event: {name}\n":
            return stream.readline().decode()
    raise AssertionError("the stream has ended")
