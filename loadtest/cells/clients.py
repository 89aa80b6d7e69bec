"""Clients of several tenants that submit at a steady rate, and repeat what was not accepted.

Latency counts from the moment at which a request was to be sent, whatever the clients were waiting
for then. Every submission has an idempotency key.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from loadtest.cells.installation import Customer
from loadtest.chaos.client import Answer, Api
from loadtest.figures import percentile

#: More than may wait for a cell that is frozen: others would wait for a thread.
THREADS = 256
#: Pause before a submission that was not accepted is sent again.
AGAIN_SECONDS = 0.5
#: A client gives up on a request after this.
ANSWER_SECONDS = 10.0

#: The role that applications are for.
ROLE = "engineer"

#: The body of the submission with this key.
Body = Callable[[str], tuple[str, dict[str, Any]]]


def mark(key: str, seconds: float = 0.05) -> tuple[str, dict[str, Any]]:
    """A job that writes down when it runs."""
    return "/jobs", {"type": "chaos.mark", "payload": {"seconds": seconds, "tag": key}}


def application(key: str) -> tuple[str, dict[str, Any]]:
    """An application that is scored."""
    return "/applications", {"candidate": key, "role": ROLE, "payload": {"years": 3}}


@dataclass(frozen=True, slots=True)
class Sent:
    """A request and its answer. Times are in seconds since the epoch."""

    tenant: str
    key: str
    #: When it was to be sent.
    due_at: float
    #: From then on, and from when it was sent.
    seconds: float
    answer_seconds: float
    status: int


@dataclass
class Clients:
    """Submissions of some tenants, in turn, to one of the given ports."""

    customers: Sequence[Customer]
    #: Ports of the API by tenant; the one for "" is for all others.
    ports: Mapping[str, int]
    per_second: float
    body: Body = mark
    #: Whether a request that was refused is sent again, until it is accepted.
    repeat: bool = True
    #: Ids by the key of their submission.
    accepted: dict[str, str] = field(default_factory=dict)
    owners: dict[str, Customer] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    #: Answers that are neither a 202 nor a 503.
    strange: list[str] = field(default_factory=list)
    #: Requests to a server that was not there, or broke off.
    unanswered: int = 0
    name: str = "cells"
    _over: threading.Event = field(default_factory=threading.Event)
    _gone: threading.Event = field(default_factory=threading.Event)
    _local: threading.local = field(default_factory=threading.local)
    _opened: list[Api] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send for as long as the block lasts; then until everything is accepted, or given up."""
        thread = threading.Thread(target=self._send_all, name="clients")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60.0)
            self._gone.set()
            thread.join()
            for api in self._opened:
                api.__exit__()

    def of(self, tenants: Sequence[str], begin: float, end: float) -> list[Sent]:
        """What was to be sent for these tenants between two moments."""
        wanted = set(tenants)
        return [
            one for one in tuple(self.sent) if one.tenant in wanted and begin <= one.due_at < end
        ]

    def port_of(self, customer: Customer) -> int:
        return self.ports.get(customer.name) or self.ports[""]

    def _send_all(self) -> None:
        began = time.time()
        with ThreadPoolExecutor(THREADS) as pool:
            for number in count():
                due = began + number / self.per_second
                if self._over.wait(max(0.0, due - time.time())):
                    return
                pool.submit(self._submit, number, due)

    def _submit(self, number: int, due: float) -> None:
        customer = self.customers[number % len(self.customers)]
        key = f"{self.name}-{number}"
        self.owners[key] = customer
        path, body = self.body(key)
        headers = {**customer.headers, "Idempotency-Key": key}
        while not self._gone.is_set():
            sent = time.time()
            answer = self.call(customer, "POST", path, body, headers)
            now = time.time()
            self.sent.append(Sent(customer.name, key, due, now - due, now - sent, answer.status))
            if answer.status == 202:
                self.accepted[key] = answer.document.get("id", "")  # a batch has many
                return
            if answer.status == 0:
                self.unanswered += 1
            elif answer.status != 503:
                self.strange.append(f"{key}: {answer.status} {answer.document}")
            if not self.repeat:
                return
            self._gone.wait(AGAIN_SECONDS)
            due = time.time()

    def call(
        self,
        customer: Customer,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request of a tenant, by a connection of this thread's."""
        port = self.port_of(customer)
        apis: dict[int, Api] = self._local.__dict__.setdefault("apis", {})
        if port not in apis:
            apis[port] = Api(port, ANSWER_SECONDS)
            self._opened.append(apis[port])
        return apis[port].call(method, path, body, headers or customer.headers)


def p99_ms(sent: Sequence[Sent]) -> float:
    """The 99th percentile of the latency of those that were accepted."""
    return 1000 * percentile([one.seconds for one in sent if one.status == 202], 0.99)
