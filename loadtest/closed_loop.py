"""A closed loop of keep-alive connections: each sends its next request when the last is answered.

Runs in a separate process and costs little: one thread, one epoll, request bytes built beforehand.
It answers "how much can the server take"; for latency at a given arrival rate see
`loadtest.users.submitter`.
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
from typing import NamedTuple, Self

from app.stack.spec import PROJECT_ROOT
from loadtest.figures import percentiles

LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class Response(NamedTuple):
    """The parts of an answer that a load generator uses."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header; empty if it is not there."""
        return value_of(self.head, f"\r\n{name.lower()}:".encode()).decode("latin-1")


def value_of(head: bytes, name: bytes) -> bytes:
    """The value of a header, named as in `LENGTH`; empty if it is not there."""
    start = head.lower().find(name)
    if start < 0:
        return b""
    start += len(name)
    stop = head.find(b"\r", start)
    return head[start : stop if stop >= 0 else None].strip()


def request_bytes(request: Request, port: int) -> bytes:
    body = request.body.encode()
    headers = {"Host": f"127.0.0.1:{port}", **request.headers}
    if body:
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{request.method} {request.path} HTTP/1.1\r\n{head}\r\n".encode() + body


def read_response(buffer: bytes) -> Response | None:
    """The answer, if it is complete. Only answers with a length, or without a body."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    status = int(buffer[9:12])
    head = buffer[:end]
    length = value_of(head, LENGTH)
    if not length and status not in (204, 304):
        raise ValueError(f"an answer without a length: {head!r}")
    body = buffer[end + 4 :]
    return Response(status, head, body) if len(body) >= int(length or 0) else None


ROLES = ("engineer", "designer", "analyst", "general")
SKILLS = ("python", "sql", "queues", "operations")


def application(number: int, prefix: str, letter: str, path: str = "/applications") -> Request:
    """A submission; each number has another candidate, role and content."""
    skills = ", ".join(SKILLS[: 1 + number % 4])
    payload = f"{number % 30} years of {skills}. {letter}"
    body = {"candidate": f"{prefix} {number}", "role": ROLES[number % 4], "payload": payload}
    return Request("POST", path, body=json.dumps(body))


def applications(
    count: int, prefix: str = "Candidate", path: str = "/applications"
) -> list[Request]:
    """Submissions of a few hundred bytes each."""
    letter = "I have kept {} systems running. "
    letters = (letter.format(number) * (1 + number % 5) for number in range(count))
    return [application(number, prefix, letter, path) for number, letter in enumerate(letters)]


#: Between two connections, so that servers that accept in bursts share them.
SPREAD_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Load:
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
    rate: float
    p50_ms: float
    p99_ms: float
    #: Answers that were not the expected one, by status; 0 is a lost connection.
    unexpected: dict[str, int] = field(default_factory=dict)


class Client:
    __slots__ = ("buffer", "index", "port", "sent", "socket")

    def __init__(self, port: int, index: int = 0, seconds: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port, self.index = port, index
        self.buffer = b""
        self.sent = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Request, *expected: int) -> Response:
        """Send it, outside any measurement, and read the answer; 202 is expected by default."""
        self.socket.sendall(request_bytes(request, self.port))
        self.buffer = b""
        while (response := read_response(self.buffer)) is None:
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("the server hung up")
            self.buffer += data
        if response.status not in (expected or (202,)):
            raise RuntimeError(f"{request.path}: {response.status}: {response.body[:300]!r}")
        return response


def drive(load: Load) -> Answered:
    """Send the load and wait for it to be over."""
    payloads = [request_bytes(request, load.port) for request in load.requests]
    poller = select.epoll()
    clients: dict[int, Client] = {}
    latencies = array("d")
    unexpected: Counter[str] = Counter()

    def connect(index: int) -> None:
        client = Client(load.port, index, seconds=5)
        clients[client.socket.fileno()] = client
        poller.register(client.socket.fileno(), select.EPOLLIN)
        send(client)

    def send(client: Client) -> None:
        client.index += 1
        client.sent = time.perf_counter()
        client.socket.sendall(payloads[client.index % len(payloads)])

    for number in range(load.connections):
        connect(number * 7)
        time.sleep(SPREAD_SECONDS)
    begin = time.perf_counter() + load.warm_seconds
    end = begin + load.seconds
    while (now := time.perf_counter()) < end:
        for fd, _ in poller.poll(max(0.0, end - now)):
            client = clients[fd]
            data = client.socket.recv(65_536)
            if not data:
                unexpected["0"] += 1
                poller.unregister(fd)
                client.socket.close()
                del clients[fd]
                connect(client.index)
                continue
            client.buffer = client.buffer + data if client.buffer else data
            response = read_response(client.buffer)
            if response is None:
                continue
            client.buffer = b""
            done = time.perf_counter()
            if done >= begin and response.status == load.expected_status:
                latencies.append(done - client.sent)
            elif done >= begin:
                unexpected[str(response.status)] += 1
            send(client)
    for client in clients.values():
        client.socket.close()
    p50, p99 = percentiles(latencies, 0.50, 0.99)
    return Answered(len(latencies) / load.seconds, 1000 * p50, 1000 * p99, dict(unexpected))


def start(load: Load) -> subprocess.Popen[str]:
    """Drive in a separate process; `finish` waits for it."""
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
