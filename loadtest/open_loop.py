"""Open arrivals: requests start by a clock, whether or not the earlier ones were answered.

Latency counts from the *intended* start, so a server that stalls cannot hide the requests that
should have started meanwhile (coordinated omission). A process of its own, one thread.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from app.stack.spec import PROJECT_ROOT
from loadtest.closed_loop import Client
from loadtest.http_bytes import Request, applications, read_response, request_bytes

#: How long answers may come in after the last start.
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Submissions at a constant rate."""

    port: int
    per_second: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """One submission and its answer."""

    #: When it was to start, in seconds since the epoch.
    intended_at: float
    #: From then to the answer.
    latency_seconds: float
    #: 0 if no answer came.
    status: int
    #: The application's id, if it was accepted.
    id: str


def drive(arrivals: Arrivals) -> list[Arrival]:
    """Send every submission at its time and collect the answers."""
    payloads = [request_bytes(request, arrivals.port) for request in bodies(arrivals)]
    poller = select.epoll()
    idle: list[Client] = []
    busy: dict[int, tuple[Client, float]] = {}
    done: list[Arrival] = []
    offset = time.time() - time.perf_counter()
    begin = time.perf_counter() + 0.05
    sent = 0
    while sent < len(payloads) or busy:
        now = time.perf_counter()
        due = begin + sent / arrivals.per_second
        if sent < len(payloads) and now >= due:
            client = idle.pop() if idle else connect(arrivals.port, poller)
            busy[client.socket.fileno()] = (client, due)
            client.socket.sendall(payloads[sent])
            sent += 1
            continue
        last_word = begin + arrivals.seconds + GRACE_SECONDS
        if now > last_word:
            break
        wake = due if sent < len(payloads) else last_word
        for fd, _ in poller.poll(max(0.0, wake - now)):
            if fd not in busy:
                drop(idle, fd, poller)
                continue
            client, intended = busy[fd]
            data = client.socket.recv(65_536)
            client.buffer += data
            response = read_response(client.buffer)
            if data and response is None:
                continue
            latency = time.perf_counter() - intended
            status = response.status if response else 0
            name = json.loads(response.body)["id"] if response and status == 202 else ""
            done.append(Arrival(intended + offset, latency, status, name))
            client.buffer = b""
            del busy[fd]
            if data:
                idle.append(client)
            else:
                poller.unregister(fd)
                client.socket.close()
    for _, intended in busy.values():
        done.append(Arrival(intended + offset, time.perf_counter() - intended, 0, ""))
    return sorted(done, key=lambda arrival: arrival.intended_at)


def bodies(arrivals: Arrivals) -> Sequence[Request]:
    """One submission for each arrival, all different."""
    return applications(round(arrivals.per_second * arrivals.seconds), prefix="Arrival")


def connect(port: int, poller: select.epoll) -> Client:
    """One more connection."""
    client = Client(port, 0)
    poller.register(client.socket.fileno(), select.EPOLLIN)
    return client


def drop(idle: list[Client], fd: int, poller: select.epoll) -> None:
    """Forget an idle connection that the server closed."""
    poller.unregister(fd)
    for client in [client for client in idle if client.socket.fileno() == fd]:
        idle.remove(client)
        client.socket.close()


class Sender:
    """A process that sends arrivals. Its answer goes to a file: a pipe that nobody reads while
    the load lasts would fill and stop it."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `finish` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.open_loop", json.dumps(asdict(arrivals))],
            cwd=PROJECT_ROOT,
            stdout=self._output,
        )

    def is_over(self) -> bool:
        """Whether every arrival was answered or given up."""
        return self._process.poll() is not None

    def finish(self) -> list[Arrival]:
        """What became of every arrival."""
        status = self._process.wait()
        with self._output:
            if status != 0:
                raise RuntimeError(f"the load generator failed with status {status}")
            self._output.seek(0)
            return [Arrival(**arrival) for arrival in json.load(self._output)]


if __name__ == "__main__":
    print(json.dumps([asdict(arrival) for arrival in drive(Arrivals(**json.loads(sys.argv[1])))]))
