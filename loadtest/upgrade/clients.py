"""Clients that submit at a steady rate to whichever API servers are in service."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from app.stack.ports import free_ports
from loadtest.chaos.client import Api

#: A slower 503 is a failure.
REFUSAL_SECONDS = 2.0
CLIENTS = 32

JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("echo", {}),
    ("chaos.mark", {"seconds": 0.3}),
    ("sleep", {"seconds": 0.2}),
    ("chaos.mark", {"seconds": 1.5}),
)
#: The pool of this one has the fewest slots …
LONG_JOB: tuple[str, dict[str, Any]] = ("chaos.steps", {"to": 4, "seconds_each": 0.2})
#: … and gets one of so many jobs.
SELDOM = 25


class Balancer:
    """The addresses of the API that are in service, in turn."""

    def __init__(self, names: list[str]) -> None:
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._open: dict[str, int] = {}
        self._added: Counter[str] = Counter()
        self._turn = count()
        self._changed = threading.Condition()

    def add(self, name: str) -> None:
        with self._changed:
            self._open[name] = 0
            self._added[name] += 1

    def remove(self, name: str) -> None:
        """Send it nothing more, and wait for what it has."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open[name], timeout=REFUSAL_SECONDS * 2)
            del self._open[name]

    @contextmanager
    def server(self) -> Iterator[tuple[int, int]]:
        """The port of the next one, and how often it was replaced."""
        with self._changed:
            names = list(self._open)
            name = names[next(self._turn) % len(names)]
            self._open[name] += 1
        try:
            yield self.ports[name], self._added[name]
        finally:
            with self._changed:
                self._open[name] -= 1
                self._changed.notify_all()


@dataclass
class Clients:
    """Submissions at a steady rate, each repeated under its key until it is accepted."""

    balancer: Balancer
    per_second: float
    #: Ids by the key of their submission.
    accepted: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    failures: list[str] = field(default_factory=list)
    #: Milliseconds of every answer.
    answered: list[float] = field(default_factory=list)
    _local: threading.local = field(default_factory=threading.local)

    @contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()

        def submit_all() -> None:
            began = time.monotonic()
            with ThreadPoolExecutor(CLIENTS) as pool:
                for number in count():
                    if over.wait(max(0.0, began + number / self.per_second - time.monotonic())):
                        return
                    pool.submit(self._submit, number)

        thread = threading.Thread(target=submit_all)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _submit(self, number: int) -> None:
        kind, payload = JOBS[number % len(JOBS)] if number % SELDOM else LONG_JOB
        key = f"upgrade-{number}"
        body = {"type": kind, "payload": {**payload, "tag": key} if "." in kind else payload}
        while key not in self.accepted and len(self.failures) < 100:
            self._send(key, body)

    def _send(self, key: str, body: Any) -> None:
        with self.balancer.server() as server:
            began = time.monotonic()
            answer = self._api(server).call("POST", "/jobs", body, {"Idempotency-Key": key})
        took = time.monotonic() - began
        self.answered.append(took * 1000)
        if answer.status == 202:
            self.accepted[key] = answer.document["id"]
        elif answer.status == 503 and took < REFUSAL_SECONDS:
            self.refused += 1
            time.sleep(0.25)
        else:
            self.failures.append(f"{key}: {answer.status} after {took:.1f} s {answer.document}")
            time.sleep(0.25)

    def _api(self, server: tuple[int, int]) -> Api:
        """One connection of each thread to each server."""
        apis: dict[tuple[int, int], Api] = self._local.__dict__.setdefault("apis", {})
        return apis.setdefault(server, Api(server[0]))
