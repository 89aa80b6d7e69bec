"""Group commit: items of concurrent callers are written by one statement with one commit.

One writer thread takes everything that has gathered while the group before was being written, and
each caller gets its own result. An idle process writes a group of one at once. Uses ``threading``
only, so it is green under gevent and real in prefork. Holds no connection: ``write`` takes one.

Guarantees: an item is written at most once per successful ``write``; a caller whose group
failed gets the error; one bad item cannot fail its neighbours; a persistent group that is too
much for one statement is written in smaller ones; an item that waits for a lock does so behind all
others, if ``locked`` is given. Not guaranteed: that a caller who gave up waiting was not written.
It may have been; ids make a repeat harmless.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from models.store.errors import StatementTooSlow, StateStoreUnavailable
from models.store.ticket import Ticket

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Rest after a group of more than one, so that callers gather instead of halving the groups.
LINGER_SECONDS = 0.001
#: A gathering group that no item joined for so many rests is complete.
QUIET_RESTS = 2
#: A store that was slow once is not waited for as long again.
MOST_LINGER_SECONDS = 0.02
#: No caller waits longer than this, even while groups are being written.
MOST_PATIENCE_SECONDS = 10.0
#: Waits that a caller divides its timeout into.
WAITS_A_TIMEOUT = 8
#: Pauses between attempts while the state store is away.
RETRY_SECONDS = (0.0, 0.1, 0.2, 0.5, 1.0)
#: Pause between two looks at items that were set aside because of a lock.
LOCKED_SECONDS = 0.5


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
        gathers: bool = False,
        rest: Callable[[], float] | None = None,
        locked: Callable[[Sequence[Item]], Sequence[bool]] | None = None,
    ) -> None:
        """``persistent``: keep trying while the state store is away, instead of failing.

        ``on_refused`` is called with items that cannot be written at all, for posts without a
        waiting caller. A group ends at ``max_group`` items or at ``max_weight`` bytes, whichever
        comes first: a statement is held in memory several times over while it is sent.
        ``gathers``: callers come back as soon as they are answered, so wait for them.
        ``rest`` says for how many seconds more may gather of what nobody waits for.
        ``locked`` says of items whether they would have to wait for a lock, without waiting.
        """
        self._write = write
        self._name = name
        self._max_group = max_group
        #: Items per statement: halved as long as the store does not get through with more.
        self._most = max_group
        self._max_weight = max_weight
        self._persistent = persistent
        self._gathers = gathers
        self._rest_seconds = rest
        self._on_refused = on_refused
        self._locked = locked
        #: Items that wait for a lock, and when to look at them again. The writer's own.
        self._aside: list[Ticket[Item, Result]] = []
        self._look_again = 0.0
        #: Items were given up while closing.
        self._given_up = False
        self._gathering = threading.Lock()
        self._waiting: deque[Ticket[Item, Result]] = deque()
        self._closing = False
        #: Somebody waits for an item of the next group.
        self._awaited = False
        #: Whether the writer sleeps; it is then woken through ``_wake``.
        self._asleep = False
        #: Whether it rests, and whoever waits for an item may wake it.
        self._resting = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._writer: threading.Thread | None = None
        #: When a group was last written.
        self._written = 0.0

    def submit(self, item: Item, timeout: float | None = None, weight: int = 0) -> Result:
        """Write ``item`` with its group and wait for the commit.

        After ``timeout`` without a group that was written, the store counts as away. A caller
        whose queue moves waits on, and so does one whose process is too busy to notice the
        store's answer: waits are counted as they were asked for, not as long as they took.
        """
        ticket = self.post(item, weight, awaited=True)
        step = None if timeout is None else timeout / WAITS_A_TIMEOUT
        began = time.monotonic()
        longest, idle_waits = began + MOST_PATIENCE_SECONDS, 0
        while not ticket.wait(step):
            now = time.monotonic()
            idle_waits = 0 if self._written > began else idle_waits + 1
            if idle_waits == WAITS_A_TIMEOUT or now >= longest:
                break
            began = now
        return ticket.result(0)

    def post(self, item: Item, weight: int = 0, *, awaited: bool = False) -> Ticket[Item, Result]:
        """Write ``item``, which has ``weight`` bytes, with its group, without waiting.

        ``awaited``: the caller will wait for it, so its group does not rest.
        """
        ticket: Ticket[Item, Result] = Ticket(item, weight)
        with self._gathering:
            if self._closing:
                raise StateStoreUnavailable(f"{self._name} is closed.")
            self._waiting.append(ticket)
            self._awaited = self._awaited or awaited
            if self._writer is None:
                # Started late, so that a process forks before it has threads.
                self._writer = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    self._writer.start()
                except BaseException:  # the caller gets it, so the item is not to be written
                    self._waiting.pop()
                    self._writer = None
                    raise
            self._wake_writer()
        return ticket

    def close(self, timeout: float | None = None) -> bool:
        """Take nothing more and write what is waiting; True if all of it was written."""
        with self._gathering:
            self._closing = True
            self._wake_writer()
            writer = self._writer
        if writer is not None:
            writer.join(timeout)
            return not (writer.is_alive() or self._waiting or self._given_up)
        return True

    def _wake_writer(self) -> None:
        """In this order: a caller may be stopped in between, and the next one has to wake it.

        A writer that is woken once too often finds nothing and sleeps again.
        """
        if self._asleep or (self._resting and (self._awaited or self._closing)):
            if self._wake.locked():
                self._wake.release()
            self._asleep = self._resting = False

    def _run(self) -> None:
        taken: list[Ticket[Item, Result]] = []
        while True:
            try:
                if not self._take_group(taken):
                    return
                size, began = len(taken), time.monotonic()
                self._settle(taken)
            except Exception as error:  # noqa: BLE001 - say, no memory: there may be some soon
                size = 1
                self._recover(taken, error)
            finally:
                for ticket in taken:
                    ticket.finish()
                taken.clear()
            if size == 0:
                self._wake.acquire(timeout=LOCKED_SECONDS if self._aside else -1)
            elif size > 1:
                self._linger(size, time.monotonic() - began)

    def _recover(self, taken: list[Ticket[Item, Result]], error: Exception) -> None:
        """After an error that is no item's fault: what is persistent waits for another group."""
        with suppress(MemoryError):
            logger.warning("%s: not written: %r", self._name, error)
        if self._persistent and not self._closing:
            with self._gathering:
                self._waiting.extendleft(reversed(taken))
            taken.clear()
            time.sleep(RETRY_SECONDS[-1])
        for ticket in taken:
            ticket.error = StateStoreUnavailable(f"{self._name}: {error!r}")
        self._given_up = self._given_up or (self._closing and bool(taken))

    def _linger(self, answered: int, write_seconds: float) -> None:
        """Let the callers go on and come back before the next group.

        Two halves of the callers would take turns otherwise, each waiting for the other's write.
        A gathering group waits for all of them as long as they keep coming, and not longer than
        the write took: waiting for the other half would take as long.
        """
        wanted = min(answered + len(self._waiting), self._max_group)
        until = time.monotonic() + min(write_seconds, MOST_LINGER_SECONDS)
        there, quiet = len(self._waiting), 0
        while there < wanted and not self._closing:
            time.sleep(LINGER_SECONDS)
            if not self._gathers or time.monotonic() >= until:
                return
            # In the first rest the callers go on; in the second they come back.
            quiet = quiet + 1 if there == len(self._waiting) else 0
            if quiet == QUIET_RESTS:
                return
            there = len(self._waiting)

    def _take_group(self, taken: list[Ticket[Item, Result]]) -> bool:
        """Take what has gathered, up to the limits of a group; nothing: sleep. False: closed."""
        if self._aside:
            self._bring_back()
        self._rest()
        with self._gathering:
            if not self._waiting:
                # Items set aside may have been left when close() was called a moment ago.
                if self._closing and not self._aside:
                    return False
                self._asleep = True
                return True
            weight = 0
            while self._waiting and len(taken) < self._max_group:
                weight += self._waiting[0].weight
                if taken and weight > self._max_weight:
                    break
                taken.append(self._waiting[0])
                self._waiting.popleft()
            self._awaited = self._awaited and bool(self._waiting)
            return True

    def _rest(self) -> None:
        """Let more gather, unless somebody waits for what is there."""
        seconds = self._rest_seconds() if self._rest_seconds and self._waiting else 0.0
        if seconds > 0.0:
            with self._gathering:
                self._resting = not (self._awaited or self._closing)
            if self._resting:
                self._wake.acquire(timeout=seconds)
                self._resting = False

    def _settle(self, left: list[Ticket[Item, Result]]) -> None:
        """Write ``left`` in order; tickets with a result are taken out of it.

        A bad item halves the next piece until it stands alone; a piece that was written
        doubles it again.
        """
        size, failures = len(left), 0
        while left:
            piece = left[: min(size, self._most)]
            tickets = [ticket for ticket in piece if not ticket.abandoned]
            try:
                results = self._write([ticket.item for ticket in tickets]) if tickets else ()
            except StateStoreUnavailable as error:
                if isinstance(error, StatementTooSlow) and self._set_aside(left, tickets):
                    continue
                failures += 1
                if failures > 1 and (not self._persistent or self._closing):
                    for ticket in left:
                        ticket.error = error
                    self._given_up = self._closing
                    return
                self._back_off(failures, len(piece), error)
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is some item's fault
                if len(tickets) > 1:
                    size = len(piece) // 2
                    continue
                self._refuse(tickets[0], error)
            else:
                for ticket, result in zip(tickets, results, strict=True):
                    ticket.value = result
            failures = 0
            if tickets:  # a piece that all callers have given up says nothing about the store
                self._written = time.monotonic()
            size = min(2 * size, self._max_group)
            self._most = min(2 * self._most, self._max_group)
            del left[: len(piece)]
            for ticket in piece:
                ticket.finish()

    def _set_aside(
        self, left: list[Ticket[Item, Result]], tickets: Sequence[Ticket[Item, Result]]
    ) -> bool:
        """Take out of ``left`` what waits for a lock, as a piece of one does; whether to go on."""
        locked = self._find_locked(tickets)
        if locked is not None and len(tickets) == 1:
            locked = {*tickets}
        if not locked or (self._closing and len(locked) == len(left)):
            return False
        logger.warning("%s: %d items wait for a lock", self._name, len(locked))
        self._aside += [ticket for ticket in left if ticket in locked]
        left[:] = [ticket for ticket in left if ticket not in locked]
        self._look_again = time.monotonic() + LOCKED_SECONDS
        return True

    def _bring_back(self) -> None:
        """Let what is no longer locked wait for its group again; in the end all of it."""
        ending, now = self._closing and not self._waiting, time.monotonic()
        if now < self._look_again and not ending:
            return
        self._look_again = now + LOCKED_SECONDS
        locked = set() if ending else self._find_locked(self._aside)
        if locked is None:
            return
        unlocked = [ticket for ticket in self._aside if ticket not in locked]
        self._aside = [ticket for ticket in self._aside if ticket in locked]
        with self._gathering:
            self._waiting.extend(unlocked)

    def _find_locked(self, tickets: Sequence[Ticket[Item, Result]]) -> set[Any] | None:
        """Those that wait for a lock of their own; None if that cannot be said."""
        if self._locked is None:
            return None
        try:
            locked = self._locked([ticket.item for ticket in tickets])
        except Exception:  # noqa: BLE001 - a look only; perhaps the whole table is locked
            return None
        return {ticket for ticket, waits in zip(tickets, locked, strict=True) if waits}

    def _back_off(self, failures: int, size: int, error: StateStoreUnavailable) -> None:
        """Try again at once (a restarted server kills pooled connections), then with pauses.

        A store that cannot take this much in time looks as if it were away: try less and less.
        """
        if self._persistent and (failures > 1 or self._most < self._max_group):
            self._most = max(1, size // 2)
        if failures == 2:
            logger.warning("%s: not written, retrying: %s", self._name, error)
        time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1])

    def _refuse(self, ticket: Ticket[Item, Result], error: Exception) -> None:
        logger.error("%s: an item was refused", self._name, exc_info=error)
        ticket.error = error
        if self._on_refused is not None:
            try:
                self._on_refused(ticket.item, error)
            except Exception:  # the writer must outlive whatever a listener does
                logger.exception("%s: the refusal could not be reported", self._name)
