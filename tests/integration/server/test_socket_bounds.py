"""Bounds of connections, on the server as the product runs it: gunicorn, without a database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.integration.server.test_master import NOWHERE
from tests.support.api_server import ApiServer, parse_raw, serving

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: fairline\r\n\r\n"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home = tmp_path_factory.mktemp("api")
    with serving(NOWHERE, home, api_workers=1, head_seconds=1.0) as server:
        yield server


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: fairline\n\n",
        b"GET /healthz HTTP/1.1\r\nHost: fairline\n\n",
    ],
)
def test_no_host_and_bare_line_feeds_are_a_400(api: ApiServer, head: bytes) -> None:
    answer = parse_raw(api.exchange(head, end=False))
    assert (answer.status, answer.json()["code"]) == (400, "BAD_REQUEST")


def test_head_that_trickles_in_is_a_408(api: ApiServer) -> None:
    with api.connect() as wire:
        began = time.monotonic()
        wire.sendall(HEALTH[:-2])
        wire.settimeout(0.1)
        answer = b""
        while not answer and time.monotonic() - began < 15:
            wire.sendall(b"X: y\r\n")
            with suppress(TimeoutError):
                answer = wire.recv(65_536)
        assert parse_raw(answer).json()["code"] == "REQUEST_TIMEOUT"
        assert time.monotonic() - began < 10
    assert api.get("/healthz").status == 200
