"""Flower without a login: closed to other machines, other names for this one, and proxies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import flower.app  # type: ignore[import-untyped]  # no types
import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from app.flower_access import ProtectedFlower, RefusedRequest

DIRECT = {"Host": "localhost:5555"}


def options(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"basic_auth": None, "auth": "", "address": "", "unix_socket": ""} | given
    )


class BareFlower(ProtectedFlower):
    """Without Celery, events and routes."""

    def __init__(self, **given: Any) -> None:
        self.options = options(**given)

    def get_handler_delegate(self, request: Any, target: Any, *_: Any, **__: Any) -> Any:
        return target

    @property
    def default_router(self) -> Any:
        return SimpleNamespace(find_handler=lambda request: "found")


def handler(headers: dict[str, str], address: str = "127.0.0.1", **given: Any) -> Any:
    context: Any = SimpleNamespace(remote_ip=address, protocol="http")
    connection: Any = SimpleNamespace(context=context)
    asked = HTTPServerRequest(
        start_line=RequestStartLine(
            "GET", given.pop("path", "/workers"), given.pop("version", "HTTP/1.1")
        ),
        headers=HTTPHeaders(headers),
        connection=connection,
    )
    return BareFlower(**given).find_handler(asked)


@pytest.mark.parametrize("host", ["localhost:5555", "127.0.0.1", "[::1]:5555"])
def test_direct_requests_are_answered(host: str) -> None:
    for address in ("127.0.0.1", "::1"):
        assert handler({"Host": host}, address) == "found"


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"Host": "evil.example:5555"}, {}),
        ({}, {"version": "HTTP/1.0"}),
        (DIRECT, {"address": "10.0.0.9"}),
        (DIRECT, {"version": "HTTP/1.0"}),
        *(
            ({**DIRECT, name: "127.0.0.1"}, {})
            for name in ("Forwarded", "Via", "X-Real-Ip", "X-Forwarded-For", "X-Forwarded-Proto")
        ),
    ],
)
def test_others_are_refused_unless_there_is_a_login(
    headers: dict[str, str], given: dict[str, Any]
) -> None:
    assert handler(headers, **given) is RefusedRequest
    assert handler(headers, path="/healthcheck", **given) == "found"
    assert handler(headers, basic_auth=["a:b"], **given) == "found"
    assert handler(headers, auth=".*@example.com", **given) == "found"


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that Flower listens on."""
    addresses: list[str] = []
    monkeypatch.setattr(
        flower.app.Flower, "start_http_server", lambda self: addresses.append(self.options.address)
    )
    return addresses


def test_flower_without_a_login_listens_on_loopback(listening: list[str]) -> None:
    for address in ("", "127.0.0.1", "::1", "localhost"):
        BareFlower(address=address).start_http_server()
    assert listening == ["127.0.0.1", "127.0.0.1", "::1", "localhost"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1"])
def test_flower_without_a_login_does_not_listen_for_others(
    listening: list[str], address: str
) -> None:
    with pytest.raises(SystemExit, match="FLOWER_BASIC_AUTH"):
        BareFlower(address=address).start_http_server()
    assert not listening
    BareFlower(address=address, basic_auth=["a:b"]).start_http_server()
    BareFlower(address="", auth=".*@example.com").start_http_server()
    assert listening == [address, ""]
