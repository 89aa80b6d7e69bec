"""Callers without a key at a running API: this machine, other names for it, and proxies."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.ports import free_port
from app.tenants.changes import issue_key
from loadtest.attack.corpus.origins import FOREIGN_HOSTS, FORWARDING
from tests import ROOT
from tests.support.api_server import ApiServer, parse_raw, read_all, serving
from tests.support.commands import API, command, wait_for_answer
from tests.support.database_fixture import DatabaseFixture

APPLICATION = b'{"candidate": "Ada", "payload": {}}'
#: Requests that are answered without a key: by the fast path, by Flask, and by gunicorn.
ASKED = {
    "fast submission": ("POST", "/applications", APPLICATION),
    "fast job": ("POST", "/jobs", b'{"type": "echo"}'),
    "fast poll": ("GET", "/jobs/01a1e391-96fc-769e-98fa-f9f9ac5d93b6", b""),
    "Flask": ("GET", "/leaderboard", b""),
    "Flask's submission": ("POST", "/jobs/batch", b'{"jobs": [{"type": "echo"}]}'),
    "tenant page": ("GET", "/tenant", b""),
    "console": ("GET", "/console/workers", b""),
    "gunicorn": ("GET", "/events", b""),
}
#: Accepted, found, not found, and a batch's answer.
LET_IN = {200, 202, 207, 404}


@pytest.fixture(scope="module")
def opened(api_database: DatabaseFixture, services_home: Path) -> Iterator[ApiServer]:
    """As ``make up`` has it."""
    url = api_database.engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", console_open=True, api_workers=1) as server:
        yield server


def status_of(
    server: ApiServer,
    asked: tuple[str, str, bytes],
    *lines: str,
    protocol: str = "HTTP/1.1",
    key: str = "",
) -> tuple[int, bytes]:
    """The status and body of an answer; ``lines``: of the head, Host included."""
    method, path, body = asked
    head = [f"{method} {path} {protocol}", *lines]
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if key:
        head.append(f"Authorization: Bearer {key}")
    with server.connect() as wire:
        wire.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        if path == "/events":  # which does not end by itself
            received = b""
            while b"\r\n\r\n" not in received and (more := wire.recv(4096)):
                received += more
            return int(received.split()[1]), b""
        wire.shutdown(socket.SHUT_WR)
        answer = parse_raw(read_all(wire))
    return answer.status, answer.body


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_who_is_on_this_machine_needs_no_key(
    opened: ApiServer, asked: tuple[str, str, bytes]
) -> None:
    for host in ("localhost", f"localhost:{opened.port}", "127.0.0.1:1", "[::1]:8000"):
        status, body = status_of(opened, asked, f"Host: {host}")
        assert status in LET_IN, (host, status, body)


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_another_name_for_this_machine_needs_one(
    opened: ApiServer, api_database: DatabaseFixture, asked: tuple[str, str, bytes]
) -> None:
    for host in FOREIGN_HOSTS:
        status, body = status_of(opened, asked, f"Host: {host}")
        assert status == 401, (host, status)
        assert not body or b"Host header" in body
    assert status_of(opened, asked)[0] == 400, "without a Host it is not HTTP/1.1"
    operator = asked[1].startswith("/console")
    key = issue_key(api_database.engine, None if operator else "demo", "test").key
    assert status_of(opened, asked, "Host: evil.example", key=key)[0] in LET_IN


@pytest.mark.parametrize("header", FORWARDING)
@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_what_passed_a_proxy_needs_one(
    opened: ApiServer, asked: tuple[str, str, bytes], header: str
) -> None:
    status, body = status_of(opened, asked, "Host: localhost", header)
    assert status == 401
    assert not body or b"a proxy, which added" in body


@pytest.mark.parametrize("asked", ASKED.values(), ids=list(ASKED))
def test_nginx_as_it_is_installed_needs_one(
    opened: ApiServer, asked: tuple[str, str, bytes]
) -> None:
    lines = (f"Host: 127.0.0.1:{opened.port}", "Connection: close")
    assert status_of(opened, asked, *lines, protocol="HTTP/1.0")[0] == 401


def test_a_body_that_gunicorn_reads_is_refused_like_the_others(opened: ApiServer) -> None:
    def submit(host: str) -> bytes:
        head = f"POST /applications HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(APPLICATION), APPLICATION)
        return opened.exchange(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + body)

    assert submit("localhost").startswith(b"HTTP/1.1 202")
    assert submit("evil.example").startswith(b"HTTP/1.1 401")


def test_what_is_public_stays_public(opened: ApiServer) -> None:
    for path in ("/healthz", "/metrics", "/openapi.json"):
        assert (
            status_of(opened, ("GET", path, b""), "Host: fairline.example", "Via: 1.1 a")[0] == 200
        )


def test_the_api_on_an_ipv6_address(api_database: DatabaseFixture, services_home: Path) -> None:
    url = api_database.engine.url.render_as_string(hide_password=False)
    port = free_port()
    env = {
        "FAIRLINE_DATABASE_URL": url,
        "FAIRLINE_BROKER_URL": "amqp://guest:guest@127.0.0.1:1//",
        "FAIRLINE_BLOB_URL": str(services_home / "blobs-ipv6"),
        "FAIRLINE_ANONYMOUS_TENANT": "demo",
        "FAIRLINE_HOST": "::1",
        "FAIRLINE_PORT": str(port),
        "FAIRLINE_API_WORKERS": "1",
    }
    with command(API, env, services_home / "logs" / "api-ipv6.log"):
        wait_for_answer(f"http://[::1]:{port}/healthz", seconds=60)

        def leaderboard(**headers: str) -> int:
            connection = http.client.HTTPConnection("::1", port, timeout=10)
            try:
                connection.request("GET", "/leaderboard", headers=headers)
                return connection.getresponse().status
            finally:
                connection.close()

        assert leaderboard() == 200
        assert leaderboard(Host="localhost") == 200
        assert leaderboard(Host="evil.example") == 401
        assert leaderboard(Via="1.1 proxy") == 401


@pytest.mark.parametrize("arguments", [(), ("--bind", "0.0.0.0:{port}")])
def test_an_api_without_keys_does_not_listen_for_others(
    api_database: DatabaseFixture, services_home: Path, arguments: tuple[str, ...]
) -> None:
    env = {
        **os.environ,
        "FAIRLINE_DATABASE_URL": api_database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_ANONYMOUS_TENANT": "demo",
        "FAIRLINE_HOST": "127.0.0.1" if arguments else "0.0.0.0",
        "FAIRLINE_PORT": str(port := free_port()),
    }
    argv = [*API[:-1], *(word.format(port=port) for word in arguments), API[-1]]
    ended = subprocess.run(
        argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert "FAIRLINE_ANONYMOUS_TENANT=demo" in ended.stderr
    assert "FAIRLINE_ANONYMOUS_FROM=anywhere" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_who_says_anywhere_is_reached_from_anywhere(
    api_database: DatabaseFixture, services_home: Path
) -> None:
    url = api_database.engine.url.render_as_string(hide_password=False)
    settings = {"anonymous_from": "anywhere", "api_workers": 1}
    with serving(url, services_home / "logs", console_open=True, **settings) as server:
        strange = ("Host: fairline.example", "X-Forwarded-For: 10.0.0.1")
        for name, asked in ASKED.items():
            status = status_of(server, asked, *strange)[0]
            assert status == 401 if name == "console" else status in LET_IN, name
