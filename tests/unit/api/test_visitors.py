"""Authentication of browsers: cookies, other sites, foreign names for this machine, proxies."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.auth.visitors import (
    HOST_PREFIX,
    LOCAL_OPERATOR,
    OPERATOR_COOKIE,
    TENANT_COOKIE,
    Visitors,
    asks_for_page,
    cookie_of,
    is_same_origin,
    session_of,
)
from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.tenants.directory import Caller, Directory
from app.tenants.sessions import Sessions
from app.tenants.tenant import TenantProfile

ACME = TenantProfile(7, "acme")
DEMO = TenantProfile(1, "demo")


class FakeDirectory(Directory):
    """Three keys, one of them revoked, and the tenant who needs none."""

    def __init__(self) -> None:
        self.revoked = {"gone"}

    def caller(self, authorization: str) -> Caller:
        key = authorization.removeprefix("Bearer ")
        if key in self.revoked:
            raise Unauthenticated("This API key was revoked.")
        known = {"operator": Caller("op", b"", None), "acme": Caller("ac", b"", ACME)}
        if key not in known:
            raise Unauthenticated("This API key is not known.")
        return known[key]

    def of_id(self, key: str) -> Caller:
        return self.caller(f"Bearer {key}")

    def keyless(self, name: str) -> Caller | None:
        return Caller("", b"", DEMO) if name == "demo" else None


class FakeSessions(Sessions):
    """The token of each key's session is the name of the key."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.uses: list[bool] = []

    def caller(self, token: str, *, used: bool) -> Caller:
        self.uses.append(used)
        return self._directory.of_id(token)


def environ(**given: str) -> dict[str, Any]:
    """A request from localhost for a typed address."""
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "REMOTE_ADDR": "127.0.0.1",
        "HTTP_HOST": "localhost:8000",
        "wsgi.url_scheme": "http",
        **given,
    }


@pytest.fixture
def directory() -> FakeDirectory:
    return FakeDirectory()


@pytest.fixture
def visitors(directory: FakeDirectory) -> Visitors:
    """As on the embedded stack: the console is open and demo needs no key."""
    return Visitors(directory, FakeSessions(directory), "demo", console_open=True)


@pytest.fixture
def closed(directory: FakeDirectory) -> Visitors:
    """As everywhere else."""
    return Visitors(directory, FakeSessions(directory), "", console_open=False)


def test_who_sits_at_the_machine_is_an_operator_only_where_the_console_is_open(
    visitors: Visitors, closed: Visitors
) -> None:
    asked = environ()
    assert visitors.operator(asked) is LOCAL_OPERATOR
    assert asked[CALLER] is LOCAL_OPERATOR
    with pytest.raises(Unauthenticated):
        closed.operator(environ())
    with pytest.raises(Unauthenticated):
        closed.tenant(environ())


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "10.0.0.1"])
def test_a_name_that_was_made_to_point_here_is_none_of_this_machine(
    visitors: Visitors, host: str
) -> None:
    for enter in (visitors.operator, visitors.tenant):
        with pytest.raises(Unauthenticated, match="direct requests from this machine"):
            enter(environ(HTTP_HOST=host))


@pytest.mark.parametrize("address", ["10.0.0.9", "192.168.1.4", "::ffff:10.0.0.9", "fe80::1", ""])
def test_who_calls_from_elsewhere_is_not_local_whatever_it_writes(
    visitors: Visitors, address: str
) -> None:
    said = {
        "HTTP_X_FORWARDED_FOR": "127.0.0.1",
        "HTTP_X_REAL_IP": "127.0.0.1",
        "HTTP_FORWARDED": "for=127.0.0.1",
        "HTTP_X_FORWARDED_HOST": "localhost",
    }
    for headers in ({}, said, *({name: value} for name, value in said.items())):
        for enter in (visitors.operator, visitors.tenant):
            with pytest.raises(Unauthenticated):
                enter(environ(REMOTE_ADDR=address, **headers))


@pytest.mark.parametrize(
    "header",
    ["X_FORWARDED_FOR", "X_FORWARDED_HOST", "X_FORWARDED_PROTO", "X_REAL_IP", "FORWARDED", "VIA"],
)
def test_who_comes_through_a_proxy_on_this_machine_is_not_local(
    visitors: Visitors, header: str
) -> None:
    for enter in (visitors.operator, visitors.tenant):
        with pytest.raises(Unauthenticated):
            enter(environ(**{f"HTTP_{header}": "127.0.0.1"}))


def test_a_tenant_that_is_open_to_all_opens_the_console_to_nobody_else(
    directory: FakeDirectory,
) -> None:
    opened = Visitors(directory, FakeSessions(directory), "demo", console_open=True, anywhere=True)
    asked = environ(REMOTE_ADDR="10.0.0.9", HTTP_HOST="fairline.example", HTTP_VIA="1.1 proxy")
    assert opened.tenant(asked) == DEMO
    with pytest.raises(Unauthenticated):
        opened.operator(asked)


@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_SEC_FETCH_SITE": "same-origin"},
        # The browser's own word counts before what it says of the origin.
        {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://proxied.example"},
        {"HTTP_ORIGIN": "http://localhost:8000"},
        # A proxy has taken the encryption off.
        {"HTTP_ORIGIN": "https://localhost:8000"},
    ],
)
def test_pages_of_our_own_may_change_something(visitors: Visitors, headers: dict[str, str]) -> None:
    asked = environ(REQUEST_METHOD="POST", **headers)
    assert is_same_origin(asked)
    assert visitors.operator(asked) is LOCAL_OPERATOR
    assert visitors.tenant(asked) == DEMO


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"HTTP_SEC_FETCH_SITE": "cross-site"},
        {"HTTP_SEC_FETCH_SITE": "same-site"},
        {"HTTP_SEC_FETCH_SITE": "none"},
        {"HTTP_SEC_FETCH_SITE": ""},
        {"HTTP_SEC_FETCH_SITE": "same-origin, cross-site"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_ORIGIN": "http://localhost:8000"},
        # A navigation that posts is no link.
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate"},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_ORIGIN": "null", "HTTP_HOST": ""},
        {"HTTP_ORIGIN": "://", "HTTP_HOST": ""},
        {"HTTP_ORIGIN": "http://localhost:3000"},
        {"HTTP_ORIGIN": "http://localhost"},
        {"HTTP_ORIGIN": "http://localhost:8000.evil.example"},
        {"HTTP_ORIGIN": "http://evil.example/http://localhost:8000"},
        {"HTTP_ORIGIN": "chrome-extension://localhost:8000"},
        {"HTTP_ORIGIN": "http://localhost:8000", "wsgi.url_scheme": "https"},
    ],
)
def test_nothing_else_may(visitors: Visitors, headers: dict[str, str]) -> None:
    for cookie in ("", f"{OPERATOR_COOKIE}=operator; {TENANT_COOKIE}=acme"):
        for method in ("POST", "PUT", "PATCH", "DELETE", "QUERY"):
            asked = {**environ(REQUEST_METHOD=method, HTTP_COOKIE=cookie), **headers}
            for enter in (visitors.operator, visitors.tenant):
                # A host that is none of ours opens nothing in the first place.
                with pytest.raises((Forbidden, Unauthenticated)):
                    enter(asked)
            assert CALLER not in asked


def test_a_page_of_another_site_may_link_here_but_not_fetch_or_frame(visitors: Visitors) -> None:
    link = {"HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "document"}
    for site in ("cross-site", "same-site"):
        assert visitors.operator(environ(HTTP_SEC_FETCH_SITE=site, **link)) is LOCAL_OPERATOR
        for mode, dest in (
            ("no-cors", "image"),
            ("no-cors", "script"),
            ("cors", "empty"),
            ("navigate", "iframe"),
            ("navigate", "object"),
        ):
            asked = environ(
                HTTP_SEC_FETCH_SITE=site,
                HTTP_SEC_FETCH_MODE=mode,
                HTTP_SEC_FETCH_DEST=dest,
                HTTP_COOKIE=f"{TENANT_COOKIE}=acme",
            )
            for enter in (visitors.operator, visitors.tenant):
                with pytest.raises(Forbidden):
                    enter(asked)


def test_a_key_in_the_header_needs_no_page_of_ours(visitors: Visitors) -> None:
    asked = environ(
        REQUEST_METHOD="POST",
        HTTP_AUTHORIZATION="Bearer acme",
        HTTP_SEC_FETCH_SITE="cross-site",
        REMOTE_ADDR="10.0.0.9",
    )
    assert visitors.tenant(asked) == ACME


def test_cookies_open_what_they_are_for(visitors: Visitors, closed: Visitors) -> None:
    both = environ(
        HTTP_COOKIE=f"x=1; {OPERATOR_COOKIE}=operator; {TENANT_COOKIE}=acme", REMOTE_ADDR="10.0.0.9"
    )
    assert closed.operator(both).key == "op"
    assert closed.tenant(both) == ACME
    for swapped in (
        environ(HTTP_COOKIE=f"{OPERATOR_COOKIE}=acme"),
        environ(HTTP_AUTHORIZATION="Bearer acme", HTTP_COOKIE=f"{OPERATOR_COOKIE}=operator"),
    ):
        with pytest.raises(Forbidden):
            visitors.operator(swapped)
    with pytest.raises(Forbidden):
        visitors.tenant(environ(HTTP_COOKIE=f"{TENANT_COOKIE}=operator"))
    # The other's cookie is not looked at.
    assert visitors.tenant(environ(HTTP_COOKIE=f"{OPERATOR_COOKIE}=operator")) == DEMO


@pytest.mark.parametrize("key", ["gone", "unknown", "fair_x_y"])
def test_a_key_that_opens_nothing_is_not_the_same_as_none(visitors: Visitors, key: str) -> None:
    cookies = f"{OPERATOR_COOKIE}={key}; {TENANT_COOKIE}={key}"
    for asked in (environ(HTTP_COOKIE=cookies), environ(HTTP_AUTHORIZATION=f"Bearer {key}")):
        for enter in (visitors.operator, visitors.tenant):
            with pytest.raises(Unauthenticated):
                enter(asked)


def test_a_key_that_is_revoked_while_somebody_looks_is_refused_at_the_next_look(
    visitors: Visitors, directory: FakeDirectory
) -> None:
    asked = environ(HTTP_COOKIE=f"{TENANT_COOKIE}=acme")
    assert visitors.tenant(asked) == ACME
    directory.revoked.add("acme")
    with pytest.raises(Unauthenticated):
        visitors.tenant(asked)


def test_cookies_of_others_do_not_hide_ours() -> None:
    for others in ('a="', "=; ;;", "bad name=1", "ü=ü", "x[1]=2", "a=b=c"):
        asked = environ(HTTP_COOKIE=f"{others}; {TENANT_COOKIE}=acme")
        assert cookie_of(asked, TENANT_COOKIE) == "acme", others
    assert cookie_of(environ(), TENANT_COOKIE) is None
    assert cookie_of(environ(HTTP_COOKIE=f"{TENANT_COOKIE}"), TENANT_COOKIE) in (None, "")


@pytest.mark.parametrize(
    ("accepted", "page"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("text/html;q=0.5, application/json", False),
        ("application/json", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
        (None, False),
    ],
)
def test_only_browsers_are_shown_pages(accepted: str | None, page: bool) -> None:
    asked = environ() if accepted is None else environ(HTTP_ACCEPT=accepted)
    assert asks_for_page(asked) is page


def test_over_tls_only_the_cookie_that_no_other_host_can_set_counts() -> None:
    plain, host = f"{OPERATOR_COOKIE}=plain", f"{HOST_PREFIX}{OPERATOR_COOKIE}=host"
    tls = {"wsgi.url_scheme": "https"}
    for sent, over, token in (
        (plain, {}, "plain"),
        (host, {}, "host"),  # a proxy has taken the encryption off
        (f"{plain}; {host}", {}, "host"),
        (plain, tls, None),
        (f"{plain}; {host}", tls, "host"),
    ):
        assert session_of(environ(HTTP_COOKIE=sent, **over), OPERATOR_COOKIE) == token


def test_a_stream_does_not_count_as_a_use_of_its_session(directory: FakeDirectory) -> None:
    sessions = FakeSessions(directory)
    visitors = Visitors(directory, sessions, "", console_open=False)
    for path in ("/console/jobs", "/console/events"):
        visitors.operator(environ(PATH_INFO=path, HTTP_COOKIE=f"{OPERATOR_COOKIE}=operator"))
    assert sessions.uses == [True, False]
