"""A closed loop of keep-alive connections: each sends its next request when the last is answered.

Runs as a process of its own and costs little: one thread, one epoll, request bytes built
beforehand. It answers "how much can the server take"; latency under a given arrival rate is
`loadtest.users.submitter`'s question.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from app.stack.spec import PROJECT_ROOT
from loadtest.http_bytes import Request, Response, read_response, request_bytes
from loadtest.percentiles import percentile

#: Between two connections, so that servers that accept in bursts share them.
SPREAD_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Load:
    """What to send."""

    port: int
    connections: int
    #: Sent before anything is counted.
    warm_seconds: float
    seconds: float
    requests: Sequence[Request]
    expected_status: int

    @property
    def start_seconds(self) -> float:
        """From the start of the generator's process to the first counted answer, about."""
        return 0.3 + self.connections * SPREAD_SECONDS + self.warm_seconds


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    count: int
    #: Answers that were not the expected one, by status; 0 is a lost connection.
    unexpected: dict[str, int] = field(default_factory=dict)
    #: Share of one core that the generator took.
    generator_cores: float = 0.0


class Client:
    """One connection."""

    __slots__ = ("buffer", "index", "sent", "socket")

    def __init__(self, port: int, index: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.index = index
        self.buffer = b""
        self.sent = 0.0


def drive(load: Load) -> Answered:
    """Send the load and wait for it to be over."""
    payloads = [request_bytes(request, load.port) for request in load.requests]
    poller = select.epoll()
    clients: dict[int, Client] = {}
    for number in range(load.connections):
        client = Client(load.port, number * 7)
        clients[client.socket.fileno()] = client
        poller.register(client.socket.fileno(), select.EPOLLIN)
        time.sleep(SPREAD_SECONDS)
    latencies = array("d")
    unexpected: Counter[str] = Counter()
    begin = time.perf_counter() + load.warm_seconds
    end = begin + load.seconds
    cpu = 0.0

    def send(client: Client) -> None:
        client.index += 1
        client.sent = time.perf_counter()
        client.socket.sendall(payloads[client.index % len(payloads)])

    for client in clients.values():
        send(client)
    while (now := time.perf_counter()) < end:
        if not cpu and now >= begin:
            cpu = time.process_time()
        for fd, _ in poller.poll(max(0.0, end - now)):
            client = clients[fd]
            data = client.socket.recv(65_536)
            if not data:
                unexpected["0"] += 1
                poller.unregister(fd)
                client.socket.close()
                del clients[fd]
                client = Client(load.port, client.index)
                clients[client.socket.fileno()] = client
                poller.register(client.socket.fileno(), select.EPOLLIN)
                send(client)
                continue
            client.buffer = client.buffer + data if client.buffer else data
            response = read_response(client.buffer)
            if response is None:
                continue
            client.buffer = b""
            done = time.perf_counter()
            if done >= begin:
                if response.status == load.expected_status:
                    latencies.append(done - client.sent)
                else:
                    unexpected[str(response.status)] += 1
            send(client)
    cpu = time.process_time() - cpu
    for client in clients.values():
        client.socket.close()
    ordered = sorted(latencies)
    return Answered(
        rate=len(ordered) / load.seconds,
        p50_ms=1000 * percentile(ordered, 0.50),
        p95_ms=1000 * percentile(ordered, 0.95),
        p99_ms=1000 * percentile(ordered, 0.99),
        max_ms=1000 * (ordered[-1] if ordered else 0.0),
        count=len(ordered),
        unexpected=dict(unexpected),
        generator_cores=cpu / load.seconds,
    )


def ask(port: int, request: Request) -> Response:
    """One request, outside any measurement."""
    client = Client(port, 0)
    with client.socket:
        client.socket.sendall(request_bytes(request, port))
        while (response := read_response(client.buffer)) is None:
            client.buffer += client.socket.recv(65_536)
    return response


def start(load: Load) -> subprocess.Popen[str]:
    """Begin to drive from a process of its own; `finish` waits for it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.closed_loop"],
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(load)))
    process.stdin.close()
    return process


def finish(process: subprocess.Popen[str]) -> Answered:
    """What the generator saw."""
    with process:
        assert process.stdout is not None
        output = process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"the load generator failed with status {process.returncode}")
    return Answered(**json.loads(output))


def main() -> None:
    """Read a load from standard input, drive it, write what came back."""
    given = json.loads(sys.stdin.read())
    requests = [Request(**request) for request in given.pop("requests")]
    print(json.dumps(asdict(drive(Load(requests=requests, **given)))))


if __name__ == "__main__":
    main()
