"""Clients that want mixed work done, whatever happens to the server.

A request under a key is repeated, the same to the letter, until it is accepted. One without a
key is given up: the client cannot know whether it was admitted.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from loadtest.chaos.client import Api
from loadtest.chaos.plan import Order, Orders, Request


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer. Times are of the wall clock."""

    client: int
    #: Which try of this request it is, from 1.
    turn: int
    request: Request
    sent_at: float
    answered_at: float
    #: 0: no answer.
    status: int
    document: Any = None
    #: The server says that it has seen the request before.
    repeated: bool = False

    def promises(self) -> Iterator[tuple[str, Order]]:
        """What a 202 promised: job ids with what was ordered."""
        if self.status != 202 or not self.request.orders:
            return
        results = self.document.get("results", [self.document])
        for order, result in zip(self.request.orders, results, strict=True):
            if order is not None and "id" in result:
                yield result["id"], order


class Ledger:
    """Written by many clients."""

    def __init__(self, path: Path) -> None:
        self.exchanges: list[Exchange] = []
        #: How requests were answered, by kind and status.
        self.answers: Counter[tuple[str, int]] = Counter()
        self._file = path.open("a")
        self._writing = threading.Lock()

    def append(self, exchange: Exchange) -> None:
        """Through to the file before anything is done with the answer."""
        line = json.dumps(asdict(exchange))
        with self._writing:
            self._file.write(line + "\n")
            self._file.flush()
            self.exchanges.append(exchange)
            self.answers[exchange.request.kind, exchange.status] += 1

    def count(self, *statuses: int) -> int:
        """Answers with one of these statuses."""
        with self._writing:
            return sum(count for (_, status), count in self.answers.items() if status in statuses)

    def total(self) -> int:
        """All requests so far."""
        return len(self.exchanges)

    def close(self) -> None:
        """The file stays."""
        self._file.close()


CLIENTS = 4
#: An answer that takes longer is none.
ANSWER_SECONDS = 5.0
#: Pause before a request is repeated.
RETRY_SECONDS = 0.25
#: Clients go on repeating for so long after the load has ended.
PATIENCE_SECONDS = 60.0
#: When the first client orders a job that kills its worker, and how long until the next one.
CRASH_FIRST_SECONDS, CRASH_EVERY_SECONDS = 8.0, 120.0
#: Answers after which the same request may succeed later.
AGAIN = frozenset({0, 429, 503})
#: Ids that a client remembers, to cancel or look at.
REMEMBERED = 100

#: Pauses before a repetition; whether there is to be one.
Patience = Callable[[], bool]


class Load:
    """Several clients at a steady rate, as far as the server keeps up."""

    def __init__(self, port: int, ledger: Ledger, *, seed: int, per_second: float) -> None:
        self._port = port
        self._ledger = ledger
        self._seed = seed
        self._interval = CLIENTS / per_second
        self._stop = threading.Event()
        #: No more jobs that kill; those there are need time to die.
        self.harmless = threading.Event()
        self._deadline = float("inf")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Clients come and go with the block; its end waits for their last answers."""
        threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._deadline = time.monotonic() + PATIENCE_SECONDS
            self._stop.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS + 2 * ANSWER_SECONDS)

    def _run(self, number: int) -> None:
        client = Client(number, self._port, self._ledger, self._seed)
        due = time.monotonic() + number * self._interval / CLIENTS
        murder_due = due + CRASH_FIRST_SECONDS if number == 0 else float("inf")
        with client.api:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                murder = time.monotonic() >= murder_due and not self.harmless.is_set()
                murder_due += CRASH_EVERY_SECONDS if murder else 0.0
                client.act(murder, self._patient)
                # An outage is not made up for: the stack is to be loaded, not punished.
                due = max(due + self._interval, time.monotonic())

    def _patient(self) -> bool:
        """Pause before the next repetition; whether there is to be one."""
        time.sleep(RETRY_SECONDS)
        return time.monotonic() < self._deadline


class Client:
    """One of them."""

    def __init__(self, number: int, port: int, ledger: Ledger, seed: int) -> None:
        self.api = Api(port, seconds=ANSWER_SECONDS)
        self._number = number
        self._ledger = ledger
        self._orders = Orders(number, seed)
        self._chance = Random(f"{seed}/{number}/manners")
        self._known: list[str] = []

    def act(self, murder: bool, patient: Patience) -> None:
        """Do one thing, as often as it takes."""
        request = self._orders.crash() if murder else self._orders.next(time.time(), self._known)
        exchange = self._insist(request, patient)
        if request.key is None or exchange.status != 202:
            return
        if request.kind == "reuse":
            other = replace(request, body={**request.body, "priority": 1}, kind="misuse")
            self._insist(replace(other, orders=()), patient)
        elif self._chance.random() < 0.15:
            self._insist(request, patient, turn=exchange.turn + 1)

    def _insist(self, request: Request, patient: Patience, turn: int = 1) -> Exchange:
        exchange = self._exchange(request, turn)
        repeatable = request.key is not None
        while repeatable and exchange.status in AGAIN and patient():
            exchange = self._exchange(request, exchange.turn + 1)
        return exchange

    def _exchange(self, request: Request, turn: int) -> Exchange:
        headers = {"Idempotency-Key": request.key} if request.key else {}
        sent_at = time.time()
        answer = self.api.call(request.method, request.path, request.body, headers)
        repeated = (answer.headers or {}).get("idempotent-replayed") == "true"
        said = (answer.status, answer.document, repeated)
        exchange = Exchange(self._number, turn, request, sent_at, time.time(), *said)
        self._ledger.append(exchange)
        self._known += [job_id for job_id, _ in exchange.promises()]
        del self._known[:-REMEMBERED]
        return exchange
