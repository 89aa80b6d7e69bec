"""Group commit: many callers, one statement, one commit.

Callers hand in items; one writer thread takes everything that has gathered while the
group before was being written, writes it as one statement, and each caller gets its own
result. There is no artificial delay: an idle process writes a group of one at once, a
busy one writes large groups, because that is what gathers during a commit.

The primitive uses ``threading`` only, so it is green under gevent and real in prefork.
It never holds a connection itself: ``write`` takes one for the moment of its statement.

Guarantees: an item is written at most once per successful ``write``; a caller whose group
failed gets the error; one bad item cannot fail its neighbours. Not guaranteed: that a
caller who gave up waiting was not written. It may have been; ids make a repeat harmless.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from models.errors import StateStoreUnavailable

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Pauses between attempts while the state store is away.
RETRY_SECONDS = (0.0, 0.1, 0.2, 0.5, 1.0)


class Ticket(Generic[Item, Result]):
    """A caller's place in a group."""

    __slots__ = ("_done", "_error", "_result", "abandoned", "item")

    def __init__(self, item: Item, done: threading.Event) -> None:
        self.item = item
        #: The caller no longer waits; skip the item if it has not been written yet.
        self.abandoned = False
        self._done = done
        self._result: Result | None = None
        self._error: BaseException | None = None

    def result(self, timeout: float | None = None) -> Result:
        """The item's own result, once its group is committed."""
        if not self._done.wait(timeout):
            self.abandoned = True
            raise StateStoreUnavailable
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set whenever no error is

    def succeed(self, result: Result) -> None:
        self._result = result

    def fail(self, error: BaseException) -> None:
        self._error = error


class GroupCommit(Generic[Item, Result]):
    """Collects items of concurrent callers and writes them in groups, in order."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        name: str,
        max_group: int = 500,
        max_weight: int = 4 * 1_048_576,
        persistent: bool = False,
        on_refused: Callable[[Item, Exception], None] | None = None,
    ) -> None:
        """``persistent``: keep trying while the state store is away, instead of failing.

        ``on_refused`` hears of items that cannot be written at all, for posts that nobody
        waits for. A group ends at ``max_group`` items or at ``max_weight`` bytes, whichever
        comes first: a statement is held in memory several times over while it is sent.
        """
        self._write = write
        self._name = name
        self._max_group = max_group
        self._max_weight = max_weight
        self._persistent = persistent
        self._on_refused = on_refused
        self._waiting: deque[Ticket[Item, Result]] = deque()
        self._gathered = threading.Condition(threading.Lock())
        #: Shared by every ticket that will be written together with the next group.
        self._done = threading.Event()
        self._items = 0
        self._weight = 0
        self._writer: threading.Thread | None = None
        self._closing = False

    def submit(self, item: Item, timeout: float | None = None, weight: int = 0) -> Result:
        """Write ``item`` with its group and wait for the commit."""
        return self.post(item, weight).result(timeout)

    def post(self, item: Item, weight: int = 0) -> Ticket[Item, Result]:
        """Write ``item``, which has ``weight`` bytes, with its group, without waiting."""
        with self._gathered:
            if self._closing:
                raise StateStoreUnavailable(f"{self._name} is closed.")
            if self._items >= self._max_group or (
                self._items and self._weight + weight > self._max_weight
            ):
                self._begin_group()  # this one is full
            self._items += 1
            self._weight += weight
            ticket: Ticket[Item, Result] = Ticket(item, self._done)
            self._waiting.append(ticket)
            if self._writer is None:
                # Started late, so that a process forks before it has threads.
                self._writer = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._writer.start()
            self._gathered.notify()
        return ticket

    def close(self, timeout: float | None = None) -> bool:
        """Take nothing more and write what is waiting; True if all of it was written."""
        with self._gathered:
            self._closing = True
            self._gathered.notify()
            writer = self._writer
        if writer is not None:
            writer.join(timeout)
            return not writer.is_alive()
        return True

    @property
    def waiting(self) -> int:
        """Items gathered for the next group."""
        return len(self._waiting)

    def _begin_group(self) -> None:
        """The tickets from now on belong together and have a bell of their own."""
        self._done = threading.Event()
        self._items = self._weight = 0

    def _run(self) -> None:
        while True:
            with self._gathered:
                while not self._waiting:
                    if self._closing:
                        return
                    self._gathered.wait()
                bell = self._waiting[0]._done
                tickets = []
                while self._waiting and self._waiting[0]._done is bell:
                    tickets.append(self._waiting.popleft())
                if self._done is bell:
                    self._begin_group()
            try:
                self._settle([ticket for ticket in tickets if not ticket.abandoned])
            finally:
                bell.set()

    def _settle(self, tickets: list[Ticket[Item, Result]]) -> None:
        """Write the group; on a bad item, halve until only that item fails."""
        if not tickets:
            return
        try:
            tickets, results = self._write_with_patience(tickets)
        except StateStoreUnavailable as error:
            for ticket in tickets:
                ticket.fail(error)
        except Exception as error:
            if len(tickets) == 1:
                logger.exception("%s: an item was refused", self._name)
                tickets[0].fail(error)
                if self._on_refused is not None:
                    self._on_refused(tickets[0].item, error)
                return
            half = len(tickets) // 2
            self._settle(tickets[:half])
            self._settle(tickets[half:])
        else:
            for ticket, result in zip(tickets, results, strict=True):
                ticket.succeed(result)

    def _write_with_patience(
        self, tickets: list[Ticket[Item, Result]]
    ) -> tuple[list[Ticket[Item, Result]], Sequence[Result]]:
        """Try again at once (a restarted server kills pooled connections), then give up.

        A persistent group goes on until the state store is back or the group is closed. Who
        gave up in the meantime is left out. Gives back who was written, and the results.
        """
        attempt = 0
        while True:
            try:
                return tickets, self._write([ticket.item for ticket in tickets])
            except StateStoreUnavailable:
                attempt += 1
                tickets = [ticket for ticket in tickets if not ticket.abandoned]
                if not tickets or (attempt > 1 and (not self._persistent or self._closing)):
                    raise
                if attempt == 2:
                    logger.warning("%s: the state store is away, waiting for it", self._name)
                time.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS)) - 1])
