"""Locust as a generator: real processes against a tiny server in this one."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.stack.identity import identity_of
from loadtest.closed_loop import Request
from loadtest.generator import Generator, GeneratorFailed, Order
from loadtest.shapes import steps
from loadtest.users import wire as wires
from loadtest.users.wire import (
    POLL,
    SUBMIT,
    Arrival,
    Record,
    Requests,
    Target,
    Wire,
    read_record,
)

RATE = 40
STALL_SECONDS = 1.0


class TinyServer(ThreadingHTTPServer):
    """Accepts whatever is posted. Stalls once if told to, or hangs up after each answer."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TinyHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.number = 0
        self.connections = 0
        self.keys: set[str | None] = set()
        self.lock = threading.Lock()
        #: The number of the request at which all stand still.
        self.stall_at = 0
        self.stalled_at = 0.0
        self.hang_up = False
        self.hung_up = threading.Event()

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.hung_up.set()


class TinyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: TinyServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.number += 1
            self.server.keys.add(self.headers["Authorization"])
            number = self.server.number
            if number == self.server.stall_at:
                self.server.stalled_at = time.time()
                time.sleep(STALL_SECONDS)  # the stall itself
        self.close_connection = self.server.hang_up
        body = json.dumps({"id": f"job-{number}"}).encode()
        self.send_response(202)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Not into the test's output."""


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with TinyServer() as started:
        thread = threading.Thread(target=started.serve_forever, args=(0.02,))
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def free_url() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{bound.getsockname()[1]}"


def post(target: Target) -> bytes:
    return target.payload(Request("POST", "/applications", body="{}"))


def test_arrivals_that_fall_into_a_stall_show_it(server: TinyServer, tmp_path: Path) -> None:
    server.stall_at = 5
    order = Order(server.url, "Submitter", steps([RATE], 1.8), {"key": "secret"}, processes=2)

    with Generator(order, tmp_path) as generator:
        assert len(generator.pids) == 2
        record = generator.finish()

    arrivals = record.arrivals
    assert len(arrivals) == len({each.id for each in arrivals}) == round(1.8 * RATE)
    assert {each.status for each in arrivals} == {202}
    assert server.keys == {"Bearer secret"}
    pauses = [b.intended_at - a.intended_at for a, b in pairwise(arrivals)]
    assert pauses == pytest.approx([1 / RATE] * len(pauses), abs=0.001)
    over = server.stalled_at + STALL_SECONDS
    caught = [each for each in arrivals if server.stalled_at < each.intended_at < over - 0.1]
    assert len(caught) >= 0.85 * RATE * STALL_SECONDS
    assert [each for each in caught if each.latency_seconds < over - each.intended_at - 0.02] == []
    assert [file.name for file in tmp_path.iterdir()] == ["locust.log"]
    assert [pid for pid in generator.pids if identity_of(pid) is not None] == []


def test_a_target_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    url = free_url()
    generator = Generator(Order(url, "Submitter", steps([5], 60)), tmp_path)

    with pytest.raises(GeneratorFailed, match=f"(?s)Submitter against {url}.*cannot reach {url}"):
        generator.finish()

    assert generator.is_over()


def test_a_generator_is_stopped_in_the_middle(server: TinyServer, tmp_path: Path) -> None:
    with Generator(Order(server.url, "Submitter", steps([5], 60)), tmp_path) as generator:
        assert not generator.is_over()
    assert generator.is_over()


def test_a_wire_keeps_its_connection_and_replaces_one_that_the_server_closed(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "RESTED_SECONDS", 0.0)
    target = Target(server.url)
    heard: list[dict[str, Any]] = []
    wire = Wire(target, lambda **what: heard.append(what))

    answers = [wire.ask("/applications", post(target), (202,)) for _ in range(3)]
    assert server.connections == 1
    server.hang_up = True
    answers.append(wire.ask("/applications", post(target), (202,)))
    assert server.hung_up.wait(15)
    answers.append(wire.ask("/applications", post(target), (202,)))
    wire.close()

    assert [each.status for each in answers] == [202] * 5
    assert server.connections == 2
    assert [(what["request_type"], what["exception"]) for what in heard] == [("POST", None)] * 5


def test_a_lost_connection_is_status_0_and_the_next_request_connects_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        target = Target(f"http://127.0.0.1:{listening.getsockname()[1]}")
        heard: list[dict[str, Any]] = []
        wire = Wire(target, lambda **what: heard.append(what))
        impatient = Wire(target, lambda **what: heard.append(what), timeout_seconds=0.1)

        def serve() -> None:
            for answer in (b"", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", None):
                opened, _ = listening.accept()
                with opened:
                    opened.recv(65_536)
                    if answer is None:
                        opened.recv(65_536)  # until the other side gives up
                    else:
                        opened.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        statuses = [wire.ask("/x", post(target), (202,)).status for _ in range(2)]
        wire.close()
        silent = impatient.ask("/x", post(target), (202,), since=time.perf_counter() - 5)
        impatient.close()
        thread.join(15)

    assert statuses == [0, 503]
    assert silent.status == 0 and silent.seconds >= 5.1 and silent.error == "timed out"
    words = [str(what["exception"]) for what in heard]
    assert words == [
        "the server hung up before it had answered",
        "status 503",
        "timed out",
    ]


def test_a_record_is_read_back_from_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, early = Arrival(2.5, 0.01, 202, "b"), Arrival(1.5, 0.2, 0, "")
    for pid, arrival in ((10, late), (11, early)):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        requests = Requests()
        requests.add(float(pid), 0.25, 202, SUBMIT)
        requests.add(float(pid), 0.5, 304, POLL)
        Record([arrival], requests).write(tmp_path)

    record = read_record(tmp_path)

    assert record.arrivals == [early, late]
    assert list(zip(*record.requests.columns(), strict=True)) == [
        *((10.0, 0.25, 202, SUBMIT), (10.0, 0.5, 304, POLL)),
        *((11.0, 0.25, 202, SUBMIT), (11.0, 0.5, 304, POLL)),
    ]
    assert sorted(record.statuses()) == [0, 202, 202, 202, 304, 304]
