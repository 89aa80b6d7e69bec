"""Bounds of connections, on the server as the product runs it: gunicorn, without a database."""

from __future__ import annotations

import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest

from app.console.assets import all_assets, asset_url
from tests.integration.server.test_master import NOWHERE
from tests.support.api_server import MEGABYTE, ApiServer, parse_raw, serving
from tests.support.waiting import wait_for

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


#: The largest file of the console, and how many clients ask for it and never read.
SILENT_READERS = 40


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server that waits two seconds for readers, and to which loopback is no proxy."""
    home = tmp_path_factory.mktemp("bounded")
    settings = {"write_seconds": 2.0, "max_connections_per_address": SILENT_READERS + 10}
    with ExitStack() as started:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("FORWARDED_ALLOW_IPS", "192.0.2.1")
            server = started.enter_context(serving(NOWHERE, home, api_workers=1, **settings))
        yield server


def silent_reader(api: ApiServer, request: bytes) -> socket.socket:
    """A client that asks and reads nothing, with as little room as the kernel allows."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    wire.settimeout(20)
    wire.connect(("127.0.0.1", api.port))
    wire.sendall(request)
    return wire


def read_until_closed(wire: socket.socket) -> None:
    while wire.recv(65_536):
        pass


def asset_request(name: str) -> bytes:
    return f"GET {asset_url(name)} HTTP/1.1\r\nHost: fairline\r\n\r\n".encode()


def open_connections(api: ApiServer) -> int:
    """Connections that the server has not closed."""
    return sum(
        one.status == psutil.CONN_ESTABLISHED and one.laddr.port == api.port
        for worker in api.workers()
        for one in worker.net_connections()
    )


def test_readers_that_never_read_share_one_copy_and_are_closed(bounded: ApiServer) -> None:
    request = asset_request("plotly.js")
    assert len(all_assets()["plotly.js"].body) > MEGABYTE
    assert bounded.request("GET", asset_url("plotly.js")).status == 200
    before = bounded.resident_megabytes()
    with ExitStack() as wires:
        silent = [
            wires.enter_context(closing(silent_reader(bounded, 3 * request)))
            for _ in range(SILENT_READERS)
        ]
        wait_for(lambda: open_connections(bounded) == SILENT_READERS, 20)
        time.sleep(0.5)
        assert bounded.resident_megabytes() - before < 20
        assert bounded.get("/healthz").status == 200
        wait_for(lambda: open_connections(bounded) == 0, 30)
        with pytest.raises(ConnectionResetError):
            read_until_closed(silent[0])
    assert bounded.get("/healthz").status == 200


def test_reader_that_takes_its_time_gets_everything(bounded: ApiServer) -> None:
    body = all_assets()["plotly.js"].body
    with bounded.connect() as wire:
        wire.sendall(asset_request("plotly.js"))
        received = b""
        for _ in range(10):  # longer than the deadline, but never without progress
            time.sleep(0.5)
            received += wire.recv(131_072)
        while not received.endswith(body[-100:]):
            received += wire.recv(1_048_576)
    assert received.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize("accepts", ["gzip, deflate, br", "identity", "gzip;q=0"])
def test_assets_are_compressed_for_those_who_accept_it(bounded: ApiServer, accepts: str) -> None:
    answer = bounded.get(asset_url("plotly.js"), {"Accept-Encoding": accepts})
    packed = answer.headers.get("content-encoding") == "gzip"
    assert packed == accepts.startswith("gzip,")
    body = gzip.decompress(answer.body) if packed else answer.body
    assert body == all_assets()["plotly.js"].body


def test_one_address_has_a_bounded_number_of_connections(bounded: ApiServer) -> None:
    wait_for(lambda: open_connections(bounded) == 0, 30)
    with ExitStack() as wires:
        for _ in range(SILENT_READERS + 10):
            wire = wires.enter_context(bounded.connect())
            wire.sendall(HEALTH)
            assert wire.recv(65_536).startswith(b"HTTP/1.1 200 ")
        answer = parse_raw(bounded.exchange(HEALTH, end=False))
        assert (answer.status, answer.json()["code"]) == (429, "TOO_MANY_REQUESTS")
        assert answer.headers["connection"] == "close" and "retry-after" in answer.headers
    wait_for(lambda: open_connections(bounded) == 0, 30)
    assert bounded.get("/healthz").status == 200


def test_a_process_has_a_bounded_number_of_connections(tmp_path: Path) -> None:
    limits = {"max_connections": 5, "max_connections_per_address": 2}
    with serving(NOWHERE, tmp_path, api_workers=1, **limits) as api, ExitStack() as wires:
        for _ in range(5):  # from loopback, which is a proxy unless configured otherwise
            wire = wires.enter_context(api.connect())
            wire.sendall(HEALTH)
            assert wire.recv(65_536).startswith(b"HTTP/1.1 200 ")
        answer = parse_raw(api.exchange(HEALTH, end=False))
        assert (answer.status, answer.json()["code"]) == (503, "SERVICE_UNAVAILABLE")
