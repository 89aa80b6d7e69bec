"""One client's stream: what waits to be sent to it, and nothing more.

A reader that is slower than what happens is asked for less, not buffered for: while its
mailbox is full the feed stands still at its place, and a job's states in between are left
out. One that takes nothing for half a minute is disconnected; it can resume.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator

from app.reads.events.feed import FeedEntry
from app.reads.events.message import KEEP_ALIVE, OPENING, place
from app.reads.events.position import Position

#: Messages that may wait; a page of the feed fits on top.
ROOM = 50
KEEP_ALIVE_SECONDS = 15.0
#: A reader that takes nothing for so long is gone.
STALL_SECONDS = 30.0
#: What the kernel keeps for a reader that is behind.
SEND_BUFFER_BYTES = 65_536


class Stream:
    """A mailbox and the bytes that leave it.

    A plain lock is the bell: there is one waiter, and thousands of these in a process.
    """

    __slots__ = ("_bell", "_ended", "_taken", "_waiting", "key", "wire")

    def __init__(self, wire: socket.socket | None = None) -> None:
        #: The client's connection, where the server gives it away.
        self.wire = wire
        #: The API key that opened it, by its short part; empty: none did.
        self.key = ""
        self._waiting: deque[bytes] = deque([OPENING])
        self._ended = False
        #: When the reader last took something.
        self._taken = time.monotonic()
        self._bell = threading.Lock()

    def tell(self, *messages: bytes) -> None:
        """Send them when the reader is ready."""
        if messages:  # or a stream whose filter lets nothing pass would never be kept alive
            self._waiting.extend(messages)
            self._ring()

    def end(self) -> None:
        """Send what waits, then no more."""
        self._ended = True
        self._ring()

    def has_room(self) -> bool:
        """Whether to tell it more; a reader that stands still is cut off."""
        if len(self._waiting) < ROOM:
            return True
        if time.monotonic() - self._taken > STALL_SECONDS:
            self.cut()
        return False

    def cut(self) -> None:
        """Disconnect a reader whose greenlet waits in the middle of a write."""
        self.end()
        if self.wire is not None:
            with contextlib.suppress(OSError):
                self.wire.shutdown(socket.SHUT_RDWR)

    def messages(self) -> Iterator[bytes]:
        """What to write, until the stream has ended or the client has gone."""
        while True:
            while self._waiting:
                yield b"".join([self._waiting.popleft() for _ in range(len(self._waiting))])
                self._taken = time.monotonic()
            if self._ended or self._broken():
                return
            if not self._bell.acquire(timeout=KEEP_ALIVE_SECONDS):
                yield self.keep_alive()
                self._taken = time.monotonic()

    def keep_alive(self) -> bytes:
        """What is said while there is nothing to say."""
        return KEEP_ALIVE

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # rung already
            self._bell.release()

    def _broken(self) -> bool:
        """Whether the connection failed while nothing was written; gunicorn would log it."""
        if self.wire is None:
            return False
        try:
            return self.wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        except OSError:
            return True


class JobStream(Stream):
    """Follows one job."""

    __slots__ = ("job_id", "known")

    def __init__(self, job_id: str, known: str, wire: socket.socket | None = None) -> None:
        super().__init__(wire)
        self.job_id = job_id
        #: Version of the row that the client knows.
        self.known = known


class FeedStream(Stream):
    """Follows a tenant."""

    __slots__ = ("_told", "job_type", "position", "tenant_id")

    def __init__(
        self,
        tenant_id: int,
        position: Position,
        job_type: str | None = None,
        wire: socket.socket | None = None,
    ) -> None:
        super().__init__(wire)
        self.tenant_id = tenant_id
        #: Last entry that was read for it, sent or left out.
        self.position = position
        #: Only ends of jobs of this type, if it is set.
        self.job_type = job_type
        self._told = position
        # From here on nothing is lost, even if the first event comes after a reconnect.
        self.tell(place(str(position)))

    def wants(self, entry: FeedEntry) -> bool:
        """Whether its filter lets the entry pass; what is no job's end always does."""
        return self.job_type is None or entry.job_type in (None, self.job_type)

    def keep_alive(self) -> bytes:
        """Also moves the client past what its filter left out."""
        position = self.position
        # Read first: a position may be named only when everything before it was taken.
        if self._waiting or position == self._told:
            return KEEP_ALIVE
        self._told = position
        return place(str(position))


def prepare(wire: socket.socket | None) -> None:
    """Bound what the kernel does for a stream: memory, and patience with a vanished client."""
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # gone already: the first write will tell
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000))
