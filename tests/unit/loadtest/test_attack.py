"""The hostile client of ``make attack``: whom it attacks, what it notices, what fails a run."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.attack.attacker import MOST_CORES, REFUSED, Attacker, NotLoopback, Tally
from loadtest.attack.corpus.bodies import HUNGRY, MEGABYTE
from loadtest.attack.corpus.routes import CALLS, PUBLIC, THINGS
from loadtest.attack.judge import P99_FLOOR_MS, Attacked, Measured, judge
from loadtest.attack.picture import draw
from loadtest.attack.rounds import FAMILIES
from loadtest.attack.rounds.bodies import refused_bodies
from loadtest.attack.rounds.framing import requests
from loadtest.attack.rounds.keys import allowed, guarded
from loadtest.attack.rounds.kinds import Scale
from loadtest.attack.victim import Timed, tail

MARKER = "mark0123456789"


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "example.com", "localhost", "0.0.0.0", "::", "128.0.0.1", ""]
)
def test_nothing_but_loopback_is_attacked(host: str) -> None:
    with pytest.raises(NotLoopback):
        Attacker(80, MARKER, host)


def test_no_connection_is_made_from_another_address() -> None:
    with pytest.raises(NotLoopback):
        Attacker(80, MARKER).connect(source="192.0.2.1")


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """The port of a server that gives the same answer to everything."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "noticed"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", ()),
        (b"HTTP/1.1 200 OK\r\n\r\n", ("served",)),
        (b"HTTP/1.1 303 See Other\r\n\r\n", ("served",)),
        (b"HTTP/1.1 404 Not Found\r\n\r\nmark0123456789", ("leaks",)),
        (b"HTTP/1.1 400 Bad\r\n\r\nHTTP/1.1 200 OK\r\nX: mark0123456789\r\n", ("leaks", "served")),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", ("server_errors",)),
        (b"HTTP/1.1 501 Not Implemented\r\n\r\n", ()),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", ()),
        (b"", ("closed",)),
    ],
)
def test_what_a_server_does_wrong_is_noticed(answer: bytes, noticed: tuple[str, ...]) -> None:
    with answering(answer) as port:
        attacker = Attacker(port, MARKER)
        attacker.ask("GET", "/jobs", REFUSED, key="fair_x_y")
    found = {
        name
        for name in ("served", "leaks", "server_errors", "closed")
        if getattr(attacker.tally, name)
    }
    assert found == set(noticed)


def test_every_call_is_made_and_again_while_there_is_time() -> None:
    attacker = Attacker(1, MARKER)
    made: list[int] = []
    attacker.repeat([lambda n=n: made.append(n) for n in range(50)], 4, 0.0)  # type: ignore[misc]
    assert sorted(made) == list(range(50))
    attacker.repeat([lambda: made.append(-1)], 2, 0.05)
    assert made.count(-1) > 2


def test_the_client_leaves_most_of_the_processor_to_the_server() -> None:
    with answering(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as port:
        attacker = Attacker(port, MARKER)
        attacker.repeat([lambda: attacker.exchange("x", b"x")], 4, 0.5)
        assert attacker.tally.statuses[401] > 10
        assert attacker.cores < 1.5 * MOST_CORES


def test_every_family_has_rounds_and_every_round_its_name() -> None:
    names = [one.name for rounds in FAMILIES.values() for one in rounds]
    assert len(names) == len(set(names)) >= 15
    assert Scale(1.0, 0.001).of(100) == 2


def test_wrong_keys_are_tried_at_every_route_that_needs_one() -> None:
    tried = [call for _, call in guarded()]
    assert tried == [
        call for calls in CALLS.values() for call in calls if call.access is not PUBLIC
    ]
    by_id = [call for call in tried if allowed(call) == (404,)]
    assert len(by_id) > 20 and all("{" in call.path for call in by_id)
    ids = {thing: f"id-of-{thing}" for thing in THINGS}
    assert all("{" not in call.filled(ids)[0] for call in tried)


def test_bodies_are_as_large_as_the_server_reads() -> None:
    assert all(MEGABYTE / 2 < len(sent) <= MEGABYTE for _, sent in HUNGRY.values())
    assert len({path for path, _ in refused_bodies()}) == 4


def test_no_smuggled_request_may_succeed() -> None:
    for _, statuses in requests("fair_x_y"):
        assert not {200, 202, 204} & statuses


def attacked(*, p99_ms: float = 12.0, memory_mb: float = 210.0, **answered: Any) -> Attacked:
    tally = Tally(**{"statuses": {401: 100}, "closed": 2, "connections": 6, **answered})
    return Attacked("keys", 10.0, 15.0, memory_mb, tally, p50_ms=4.0, p99_ms=p99_ms)


def measured(**changed: Any) -> Measured:
    before = Attacked("(before)", 0.0, 9.0, 200.0, p50_ms=3.0, p99_ms=8.0)
    return replace(Measured(before, [attacked()], accepted=100), **changed)


def failed(run: Measured) -> list[str]:
    return [bar.claim for bar in judge(run, "").bars if not bar.passed]


def test_a_run_without_a_fault_passes() -> None:
    report = judge(measured(), "attack.png")
    assert report.passed and failed(measured()) == []
    rows = report.tables[0].rows
    assert rows[1][:3] == ("keys", "6", "100 × 401, 2 closed")
    assert json.dumps(report.data)


@pytest.mark.parametrize(
    ("changed", "claim"),
    [
        ({"rounds": [attacked(memory_mb=261.0)]}, "memory"),
        ({"rounds": [attacked(p99_ms=P99_FLOOR_MS + 1)]}, "p99"),
        ({"rounds": [attacked(statuses={500: 1})]}, "500"),
        ({"rounds": [attacked(leaks=["GET /jobs"])]}, "something of the victim's"),
        ({"rounds": [attacked(), attacked(served=["GET /jobs: 200"])]}, "must not be"),
        ({"changed": True}, "changed"),
        ({"unserved": ["503 after 1.0 s"]}, "not served"),
        ({"unsettled": 1}, "lost"),
        ({"different": ["/readyz: 503 instead of 200"]}, "differently"),
        ({"replaced": 1}, "replaced"),
        ({"log_errors": 1}, "unexpected errors"),
    ],
)
def test_every_fault_fails_a_bar(changed: dict[str, Any], claim: str) -> None:
    (found,) = failed(measured(**changed))
    assert claim in found


def test_a_slow_machine_has_its_own_bar() -> None:
    slow = measured(rounds=[attacked(p99_ms=239.0)])
    slow.before.p99_ms = 120.0
    assert failed(slow) == []
    assert failed(replace(slow, rounds=[attacked(p99_ms=241.0)])) != []


def test_latencies_are_those_of_requests_that_began_in_a_round() -> None:
    timed = [Timed(n / 10, float(n), 200) for n in range(100)]
    assert tail(timed, 2.0, 5.0) == (35.0, 49.0)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "attack.png", measured())
    assert (tmp_path / "attack.png").read_bytes().startswith(b"\x89PNG")


def test_a_tally_counts_the_limits_of_the_server_as_none_of_its_errors() -> None:
    assert Tally({500: 1, 502: 2, 501: 16, 503: 4, 429: 8}).server_errors == 3
