"""Clients that submit mixed work and retry while the server is away.

A request with an idempotency key is repeated unchanged until it is accepted. One without a key is
given up: the client cannot know whether it was admitted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from loadtest.chaos.client import Api
from loadtest.chaos.plan import Order, Orders, Request


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. Times are in seconds since the epoch."""

    client: int
    #: How often this request has been sent, this one included.
    turn: int
    request: Request
    sent_at: float
    answered_at: float
    #: 0: no answer.
    status: int
    document: Any = None

    def promises(self) -> Iterator[tuple[str, Order]]:
        """What a 202 promised: job ids with what was ordered."""
        if self.status != 202 or not self.request.orders:
            return
        results = self.document.get("results", [self.document])
        for order, result in zip(self.request.orders, results, strict=True):
            if order is not None and "id" in result:
                yield result["id"], order


class ExchangeLog:
    """A log of all exchanges, in memory and in a file, shared by the clients."""

    def __init__(self, path: Path) -> None:
        self.exchanges: list[Exchange] = []
        #: How many requests were answered with each status.
        self.answers: Counter[int] = Counter()
        self._file = path.open("a")
        self._writing = threading.Lock()

    def append(self, exchange: Exchange) -> None:
        """Through to the file before anything is done with the answer."""
        line = json.dumps(asdict(exchange))
        with self._writing:
            self._file.write(line + "\n")
            self._file.flush()
            self.exchanges.append(exchange)
            self.answers[exchange.status] += 1

    def close(self) -> None:
        self._file.close()


CLIENTS = 4
#: Timeout of a request.
ANSWER_SECONDS = 5.0
#: Pause before a request is repeated.
RETRY_SECONDS = 0.25
#: Clients go on repeating for so long after the load has ended.
PATIENCE_SECONDS = 60.0
#: When the first client submits a job that kills its worker, and how long until the next one.
CRASH_FIRST_SECONDS, CRASH_EVERY_SECONDS = 8.0, 120.0
#: Answers after which the same request may succeed later.
AGAIN = frozenset({0, 429, 503})
#: Ids that a client remembers, to cancel or look at.
REMEMBERED = 100


class Load:
    """Several clients at a steady rate, as far as the server keeps up."""

    def __init__(self, port: int, log: ExchangeLog, *, seed: int, per_second: float) -> None:
        self.interval = CLIENTS / per_second
        self.stopping = threading.Event()
        #: No more jobs that kill their worker; those there are need time to die.
        self.harmless = threading.Event()
        self._deadline = float("inf")
        self._clients = [Client(self, number, port, log, seed) for number in range(CLIENTS)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clients run while the block does; its end waits for their last answers."""
        for client in self._clients:
            client.start()
        try:
            yield
        finally:
            self._deadline = time.monotonic() + PATIENCE_SECONDS
            self.stopping.set()
            for client in self._clients:
                client.join(PATIENCE_SECONDS + 2 * ANSWER_SECONDS)

    def may_retry(self) -> bool:
        """Pause before the next repetition; whether there is to be one."""
        time.sleep(RETRY_SECONDS)
        return time.monotonic() < self._deadline


class Client(threading.Thread):
    """One client, with the ids that it was given."""

    def __init__(self, load: Load, number: int, port: int, log: ExchangeLog, seed: int) -> None:
        super().__init__(daemon=True)
        self._load = load
        self._number = number
        self._api = Api(port, seconds=ANSWER_SECONDS)
        self._log = log
        self._orders = Orders(number, seed)
        self._chance = Random(f"{seed}/{number}/manners")
        self._known: list[str] = []

    def run(self) -> None:
        load = self._load
        due = time.monotonic() + self._number * load.interval / CLIENTS
        crash_due = due + CRASH_FIRST_SECONDS if self._number == 0 else float("inf")
        with self._api:
            while not load.stopping.wait(max(0.0, due - time.monotonic())):
                crash = time.monotonic() >= crash_due and not load.harmless.is_set()
                crash_due += CRASH_EVERY_SECONDS if crash else 0.0
                self.act(crash)
                # An outage is not made up for: the stack is to be loaded, not punished.
                due = max(due + load.interval, time.monotonic())

    def act(self, crash: bool) -> None:
        """Send one request, as often as it takes."""
        request = self._orders.crash() if crash else self._orders.next(time.time(), self._known)
        exchange = self._send(request)
        if request.key is None or exchange.status != 202:
            return
        if request.kind == "reuse":
            other = {**request.body, "priority": 1}
            self._send(replace(request, body=other, kind="misuse", orders=()))
        elif self._chance.random() < 0.15:
            self._send(request, turn=exchange.turn + 1)

    def _send(self, request: Request, turn: int = 1) -> Exchange:
        headers = {"Idempotency-Key": request.key} if request.key else {}
        while True:
            sent_at = time.time()
            answer = self._api.call(request.method, request.path, request.body, headers)
            answered = (sent_at, time.time(), answer.status, answer.document)
            exchange = Exchange(self._number, turn, request, *answered)
            self._log.append(exchange)
            self._known += [job_id for job_id, _ in exchange.promises()]
            del self._known[:-REMEMBERED]
            turn += 1
            if not (request.key and answer.status in AGAIN and self._load.may_retry()):
                return exchange
