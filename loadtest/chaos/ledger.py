"""The clients' ledger: every request and every answer, in memory and in a file."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.chaos.orders import Order, Request


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
