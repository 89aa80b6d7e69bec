"""The victim: a steady, polite client whose requests are timed, in a process of its own.

It submits a job, polls it twice and lists its jobs, on a few connections at a fixed pace. Every
answer is one line of JSON on its standard output.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import NamedTuple

from app.stack.spec import PROJECT_ROOT
from loadtest.closed_loop import Client, Request, Response, read_response, request_bytes
from loadtest.figures import percentiles

#: How long a request may take.
ANSWER_SECONDS = 10.0
#: A connection that was not used for so long is not used again: the server may be closing it.
KEPT_SECONDS = 30.0
#: A process that did not run for so long was stopped by the machine, not by the server.
STALL_SECONDS = 1.0
TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Habits:
    port: int
    key: str
    #: What its jobs contain.
    text: str
    connections: int = 3
    #: Of each connection, per second.
    requests_per_second: float = 12.0


class Timed(NamedTuple):
    """One request, by the monotonic clock; status 0: no answer. A stall has status -1."""

    at: float
    milliseconds: float
    status: int
    #: Of the job, if this was a submission.
    job_id: str = ""

    @property
    def end(self) -> float:
        return self.at + self.milliseconds / 1000


STALL = -1


def without_stalls(timed: Iterable[Timed]) -> list[Timed]:
    """Requests during which this machine let the victim's process run."""
    everything = list(timed)
    stalls = [each for each in everything if each.status == STALL]
    return [
        each
        for each in everything
        if each.status != STALL
        and not any(each.at < stall.end and stall.at < each.end for stall in stalls)
    ]


def tail(timed: Iterable[Timed], begin: float, end: float) -> tuple[float, float, int]:
    """p50 and p99 in milliseconds of the requests that began in between, and their number."""
    taken = [one.milliseconds for one in without_stalls(timed) if begin <= one.at < end]
    p50, p99 = percentiles(taken, 0.50, 0.99)
    return p50, p99, len(taken)


def unserved(timed: Sequence[Timed], since: float = 0.0) -> list[Timed]:
    """Requests that got no answer, or another one than was due to them."""
    kept = without_stalls(timed)
    return [each for each in kept if each.at >= since and each.status not in (200, 202)]


class Victim:
    """The victim's process, and what it reported so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.timed: list[Timed] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.timed.append(Timed(*json.loads(line)))

    def stop(self) -> None:
        """Have it finish its requests."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        self.process.wait(3 * ANSWER_SECONDS)
        self._reader.join(ANSWER_SECONDS)

    @property
    def accepted(self) -> list[str]:
        return [each.job_id for each in self.timed if each.status == 202]


@contextmanager
def living(habits: Habits) -> Iterator[Victim]:
    """The victim at work, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.attack.victim"],
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(asdict(habits)) + "\n")
        process.stdin.flush()
        victim = Victim(process)
        yield victim
        victim.stop()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


class Errands:
    """The requests of one connection, one after the other."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._headers = {"Authorization": f"Bearer {habits.key}"}
        self._client: Client | None = None
        self._used = 0.0
        self._job = ""

    def step(self, number: int) -> Timed:
        """The next request."""
        began = time.monotonic()
        try:
            response = self._ask(self._request(number))
        except (OSError, ValueError):
            self._client = None
            return Timed(began, 1000 * (time.monotonic() - began), 0)
        took = 1000 * (time.monotonic() - began)
        if response.status != 202:
            return Timed(began, took, response.status)
        self._job = str(json.loads(response.body)["id"])
        return Timed(began, took, 202, self._job)

    def _request(self, number: int) -> Request:
        turn = number % 4
        if turn == 0 or not self._job:
            body = {"type": "echo", "payload": {"text": self._habits.text, "number": number}}
            return Request("POST", "/jobs", self._headers, json.dumps(body))
        path = f"/jobs/{self._job}" if turn < 3 else "/jobs?limit=20"
        return Request("GET", path, self._headers)

    def _ask(self, request: Request) -> Response:
        if self._client is None or time.monotonic() - self._used > KEPT_SECONDS:
            self._client = Client(self._habits.port, seconds=ANSWER_SECONDS)
        client, self._used = self._client, time.monotonic()
        client.socket.sendall(request_bytes(request, self._habits.port))
        buffer = b""
        while (response := read_response(buffer)) is None:
            data = client.socket.recv(65_536)
            if not data:
                raise ConnectionError("the server hung up")
            buffer += data
        return response


def main() -> None:
    """Read the habits from standard input, live until it is closed."""
    habits = Habits(**json.loads(sys.stdin.readline()))
    stopping, writing = threading.Event(), threading.Lock()

    def write(timed: Timed) -> None:
        with writing:
            print(json.dumps(timed), flush=True)

    def live(number: int) -> None:
        one, period = Errands(habits), 1 / habits.requests_per_second
        due = time.monotonic() + period * number / habits.connections
        for step in range(sys.maxsize):
            if stopping.wait(max(0.0, due - time.monotonic())):
                return
            write(one.step(step))
            due = max(due + period, time.monotonic() - period)

    def watch() -> None:
        before = time.monotonic()
        while not stopping.wait(TICK_SECONDS):
            now = time.monotonic()
            if now - before > STALL_SECONDS:
                write(Timed(before, 1000 * (now - before), STALL))
            before = now

    threads = [threading.Thread(target=live, args=(n,)) for n in range(habits.connections)]
    for thread in (*threads, threading.Thread(target=watch)):
        thread.start()
    sys.stdin.read()
    stopping.set()


if __name__ == "__main__":
    main()
