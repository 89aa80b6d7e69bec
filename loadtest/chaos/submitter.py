"""Clients that submit at a steady rate and write down every promise they were given.

A request without a 202 is tried again as a new submission: the client cannot know whether the
first one was admitted, so the tables may hold more applications than the log, never fewer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.chaos.api import Api

#: Pause of a client after a request that was not accepted.
RETRY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Promise:
    """One 202."""

    id: str
    #: What was sent; the expected score follows from it.
    candidate: str
    #: Wall clock, for reading the log beside those of the stack.
    accepted_at: float
    seconds: float


class ClientLog:
    """Every 202, appended to a file before anything else is done with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a")
        self._lock = threading.Lock()

    def append(self, promise: Promise) -> None:
        """Write one line, through to the file."""
        with self._lock:
            self._file.write(json.dumps(asdict(promise)) + "\n")
            self._file.flush()

    def read(self) -> list[Promise]:
        """All promises so far, from the file."""
        with self._lock:
            return [Promise(**json.loads(line)) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        """The file stays."""
        self._file.close()


def application(candidate: str, role: str) -> dict[str, Any]:
    """What a client sends."""
    return {"candidate": candidate, "role": role, "payload": {"letter": f"I am {candidate}."}}


class Submitter:
    """Several clients on a common clock of intended start times."""

    def __init__(
        self, port: int, log: ClientLog, *, role: str, per_second: float = 20.0, clients: int = 4
    ) -> None:
        self.role = role
        self.log = log
        self._port = port
        self._interval = clients / per_second
        self._clients = clients
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._counting = threading.Lock()
        self._number = 0
        #: Requests that got a 202, and those that got anything else.
        self.accepted = 0
        self.refused = 0
        #: How the refused ones were answered; 0 is a broken connection.
        self.refusals: dict[int, int] = {}

    @contextmanager
    def running(self) -> Iterator[Submitter]:
        """Submit while the block runs; the rate holds as long as the server keeps up."""
        for number in range(self._clients):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(15)

    def submit(self, api: Api) -> Promise | None:
        """One application; None if there is no promise."""
        with self._counting:
            self._number += 1
            candidate = f"{self.role} {self._number}"
        began = time.monotonic()
        answer = api.call("POST", "/applications", application(candidate, self.role))
        promise = None
        if answer.status == 202:
            seconds = time.monotonic() - began
            promise = Promise(answer.document["id"], candidate, time.time(), seconds)
            self.log.append(promise)
        with self._counting:
            if promise:
                self.accepted += 1
            else:
                self.refused += 1
                self.refusals[answer.status] = self.refusals.get(answer.status, 0) + 1
        return promise

    def _run(self, number: int) -> None:
        due = time.monotonic() + number * self._interval / self._clients
        with Api(self._port) as api:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                promise = self.submit(api)
                # An outage is not made up for: the stack is to be loaded, not punished.
                due = max(due + self._interval, time.monotonic())
                if promise is None:
                    due = time.monotonic() + RETRY_SECONDS
