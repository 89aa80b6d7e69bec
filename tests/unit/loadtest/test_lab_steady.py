"""The cost of jobs at a fixed rate, read from a contender that is this process itself."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.lab.peers.contender import Contender, Counter
from loadtest.lab.peers.costs import CLIENTS, POSTGRES, RABBITMQ, steady

RATE, SECONDS = 100.0, 0.5


class Here(Contender):
    """Counts what arrives, one in ten of which never ends; each has 100 bytes of WAL."""

    name = "here"

    def __init__(self, loses: bool = False) -> None:
        services = {"rabbitmq": [], "postgres": [], "here-worker": [os.getpid()]}
        started = {"here-worker": SimpleNamespace(pid=os.getpid())}
        self.fleet: Any = SimpleNamespace(children=started, pids=lambda: services)
        self.key, self.numbers, self._loses = "here", [], loses
        self.connections: set[Any] = set()

    numbers: list[int]

    @property
    def parts(self) -> Mapping[str, Sequence[str]]:
        return {"API": ["not started"], "workers": self.workers}

    def read(self, sql: str) -> int:
        return 100 * len(self.numbers)

    def count_from_now(self) -> Counter:
        def ended() -> int:
            return sum(not (self._loses and number % 10 == 0) for number in list(self.numbers))

        before = ended()
        return lambda: ended() - before

    def work(self) -> None: ...

    def remove(self) -> None: ...


@pytest.fixture(params=[False, True], ids=["all end", "some are lost"])
def here(request: pytest.FixtureRequest) -> Iterator[Here]:
    contender = Here(request.param)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            contender.numbers.append(body["payload"]["n"])
            contender.connections.add(self.client_address)
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        contender.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield contender
        server.shutdown()


def test_every_job_is_sent_once_and_its_cost_is_read_in_the_middle(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.lab.peers.costs.STALL_SECONDS", 0.3)
    cost = steady(here, "peer.nap", 20, RATE, 0.2, SECONDS)
    sent = len(here.numbers)
    assert sorted(here.numbers) == list(range(sent))
    assert len(here.connections) == CLIENTS
    ending = 0.9 if here._loses else 1.0
    assert cost.lost == pytest.approx(sent * (1 - ending), abs=1)
    assert cost.rate > 0
    assert (cost.name, cost.ms, cost.offered) == ("here", 20, RATE)
    assert cost.wal > 90
    assert set(cost.cores) == {"API", "workers", RABBITMQ, POSTGRES}
    assert cost.of("workers") == cost.total > 0 == cost.of("API")
