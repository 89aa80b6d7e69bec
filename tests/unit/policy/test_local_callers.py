"""Who may do without a key, and where an API that needs none may listen."""

from __future__ import annotations

from typing import Any

import pytest

from app.policy.local_callers import host_name, is_loopback, why_not_listen, why_not_local

HOSTS_HERE = [
    *("localhost", "LOCALHOST:80", "127.0.0.1:1", "127.8.8.8", "127.0.0.1", "localhost:65535"),
    *("[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:80"),
]
HOSTS_ELSEWHERE = [
    *("", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("localhost:80@evil.example", "[::1]evil.example", "[::1].evil.example", "::1", "[::1"),
    *("localhost,evil.example", "localhost evil.example", "evil.example/localhost", "localhost."),
    *("0.0.0.0", "10.0.0.1", "[::ffff:10.0.0.1]", "[fe80::1]", "[::]", "127.1", "2130706433"),
    *("localhost:80:80", "localhost:x", "localhost:", "l\u043ecalhost", "128.0.0.1"),
]
FORWARDING = [
    *("FORWARDED", "VIA", "X_REAL_IP", "X_FORWARDED", "X_FORWARDED_FOR", "X_FORWARDED_HOST"),
    *("X_FORWARDED_PROTO", "X_FORWARDED_PORT", "X_FORWARDED_SERVER", "X_FORWARDED_ANYTHING"),
]


def environ(**given: str) -> dict[str, Any]:
    """A request of curl on this machine."""
    return {
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost:8000",
        "HTTP_USER_AGENT": "curl/8",
        **given,
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", HOSTS_HERE)
def test_direct_requests_from_this_machine_are_local(host: str, address: str) -> None:
    assert why_not_local(environ(HTTP_HOST=host, REMOTE_ADDR=address)) == ""


@pytest.mark.parametrize("host", HOSTS_ELSEWHERE)
def test_a_name_that_was_made_to_point_here_is_none_of_this_machine(host: str) -> None:
    for address in ("127.0.0.1", "::1"):
        assert "Host header" in why_not_local(environ(HTTP_HOST=host, REMOTE_ADDR=address))


def test_a_request_without_a_host_is_not_local() -> None:
    asked = environ()
    del asked["HTTP_HOST"]
    assert "Host header" in why_not_local(asked)


@pytest.mark.parametrize("address", ["10.0.0.9", "::ffff:10.0.0.9", "fe80::1", "fd00::2", ""])
def test_another_address_is_not_local_whatever_the_headers_say(address: str) -> None:
    said = {f"HTTP_{name}": "127.0.0.1" for name in FORWARDING}
    for headers in ({}, said):
        assert "another machine" in why_not_local(environ(REMOTE_ADDR=address, **headers))


@pytest.mark.parametrize("header", FORWARDING)
def test_what_passed_a_proxy_is_not_local(header: str) -> None:
    for value in ("", "127.0.0.1"):
        reason = why_not_local(environ(**{f"HTTP_{header}": value}))
        assert header.replace("_", "-").title() in reason


def test_nginx_as_it_is_installed_is_a_proxy() -> None:
    """Its defaults: the address of ``proxy_pass`` as Host, no header of its own, HTTP/1.0."""
    asked = environ(SERVER_PROTOCOL="HTTP/1.0", HTTP_HOST="127.0.0.1:8000", HTTP_CONNECTION="close")
    assert "HTTP/1.0" in why_not_local(asked)


def test_host_names_are_read_strictly() -> None:
    assert host_name("a.example:80") == "a.example"
    assert host_name("[::1]:80") == "::1"
    assert host_name("[::1") == ""
    assert not is_loopback("")
    assert not is_loopback("::ffff:10.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "fe80::1", "myhost"])
def test_an_api_without_keys_listens_on_this_machine_only(host: str) -> None:
    closed: dict[str, Any] = {"tenant": "", "console_open": False, "anywhere": False}
    assert why_not_listen([host], **closed) == ""
    for opened in ({"tenant": "demo"}, {"console_open": True}):
        for here in ("127.0.0.1", "localhost", "::1"):
            assert why_not_listen([here], **{**closed, **opened}) == ""
            problem = why_not_listen([here, host], **{**closed, **opened})
            assert "FAIRLINE_HOST=127.0.0.1" in problem
            assert "FAIRLINE_ANONYMOUS_FROM=anywhere" in problem
            assert "keys issue" in problem
        assert why_not_listen([host], **{**closed, **opened, "anywhere": True}) == ""
