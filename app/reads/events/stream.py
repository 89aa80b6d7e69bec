"""One client's stream: the messages that wait to be sent to it.

A client that reads slower than events happen gets fewer, and nothing is buffered for it: while
its mailbox is full a feed does not advance, and a job's states in between are left out. One
that reads nothing for half a minute is disconnected; it can resume.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gevent.monkey import get_original

from app.reads.events.feed import FeedEntry
from app.reads.events.message import KEEP_ALIVE, OPENING, place
from app.reads.events.position import Position

#: Messages that may wait; a page of the feed fits on top.
ROOM = 50
#: Events that are written without a pause.
EVENTS_AT_ONCE = 50
KEEP_ALIVE_SECONDS = 15.0
#: How long a client that waits for an end may be gone before it is noticed.
GONE_SECONDS = 2.0
#: gevent's own would switch to another greenlet.
plain_poll = get_original("select", "poll")
#: A client that reads nothing for so long is gone.
STALL_SECONDS = 30.0
#: What the kernel keeps for a client that is behind.
SEND_BUFFER_BYTES = 65_536


@dataclass(slots=True, eq=False, kw_only=True)
class Stream:
    """A mailbox and the bytes that leave it."""

    #: The client's connection, if the server gives access to it.
    wire: socket.socket | None = None
    #: Short part of the API key that opened it; empty: none did.
    key: str = ""
    _waiting: deque[bytes] = field(init=False, default_factory=lambda: deque([OPENING]))
    _ended: bool = field(init=False, default=False)
    #: When the client last took something.
    _read_at: float = field(init=False, default_factory=time.monotonic)
    #: A plain lock wakes the reader: there is one waiter, and thousands of these in a process.
    _wake: threading.Lock = field(init=False, default_factory=threading.Lock)

    def send(self, *messages: bytes) -> None:
        """Send them when the client is ready."""
        if messages:  # or a stream whose filter lets nothing pass would never be kept alive
            self._waiting.extend(messages)
            self._wake_up()

    def end(self) -> None:
        """Send what waits, then no more."""
        self._ended = True
        self._wake_up()

    def has_room(self) -> bool:
        """Whether to send it more; a client that has stalled is disconnected."""
        if len(self._waiting) < ROOM:
            return True
        if time.monotonic() - self._read_at > STALL_SECONDS:
            self.end()
            if self.wire is not None:  # its greenlet waits in the middle of a write
                with contextlib.suppress(OSError):
                    self.wire.shutdown(socket.SHUT_RDWR)
        return False

    def messages(self) -> Iterator[bytes]:
        """What to write, until the stream has ended or the client has gone."""
        while True:
            while self._waiting:
                yield b"".join([self._waiting.popleft() for _ in range(len(self._waiting))])
                self._read_at = time.monotonic()
            if self._ended or self._broken():
                return
            if not self._wake.acquire(timeout=KEEP_ALIVE_SECONDS):
                yield self.keep_alive()
                self._read_at = time.monotonic()

    def keep_alive(self) -> bytes:
        """What is sent while there is nothing to send."""
        return KEEP_ALIVE

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # awake already
            self._wake.release()

    def _broken(self) -> bool:
        """Whether the connection failed while nothing was written; gunicorn would log it."""
        if self.wire is None:
            return False
        try:
            return self.wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        except OSError:
            return True


@dataclass(slots=True, eq=False)
class JobStream(Stream):
    """Follows one job."""

    job_id: str
    #: Version of the row that the client knows.
    known: str


@dataclass(slots=True, eq=False)
class EndWaiter(JobStream):
    """A request that waits for the end of one job; states in between are nothing to it."""

    def send(self, *messages: bytes) -> None:
        """Nothing: the end alone counts."""

    def wait(self, seconds: float) -> None:
        """Return when the job has ended, after so long, or soon after the client has gone."""
        until = time.monotonic() + seconds
        while not self._ended and not self._gone() and (left := until - time.monotonic()) > 0:
            self._wake.acquire(timeout=min(left, GONE_SECONDS))

    def _gone(self) -> bool:
        """Whether the client has closed its side of the connection."""
        if self.wire is None:
            return False
        found = plain_poll()
        try:
            found.register(self.wire, select.POLLRDHUP)
            return bool(found.poll(0))
        except (OSError, ValueError):
            return True


@dataclass(slots=True, eq=False)
class FeedStream(Stream):
    """Follows a tenant."""

    tenant_id: int
    #: Last entry that was read for it, sent or left out.
    position: Position
    #: Only ends of jobs of this type, if it is set.
    job_type: str | None = None
    #: Whether there is probably more than a few entries for it.
    behind: bool = False
    #: When entries were last read for it.
    read_at: float = field(init=False, default=0.0)
    #: The position that the client got last.
    _sent: Position = field(init=False)

    def __post_init__(self) -> None:
        self._sent = self.position
        # From here on nothing is lost, even if the first event comes after a reconnect.
        self.send(place(str(self.position)))

    def wants(self, entry: FeedEntry) -> bool:
        """Whether the entry passes its filter; one that is no job's end always does."""
        return self.job_type is None or entry.job_type in (None, self.job_type)

    def read(self, entries: Sequence[FeedEntry], full: bool) -> None:
        """Send those of the next entries that it wants; ``full``: there are probably more."""
        events: list[bytes] = []
        for entry in filter(self.wants, entries):
            events.append(entry.event)
            if len(events) % EVENTS_AT_ONCE == 0:
                time.sleep(0)  # the loop goes on to other greenlets
        self.send(*events)
        if entries:
            self.position = entries[-1].position
        self.behind, self.read_at = full, time.monotonic()

    def keep_alive(self) -> bytes:
        """Also moves the client past what its filter left out."""
        position = self.position
        # Read first: a position may be named only when everything before it was taken.
        if self._waiting or position == self._sent:
            return KEEP_ALIVE
        self._sent = position
        return place(str(position))


def prepare(wire: socket.socket | None) -> None:
    """Bound what the kernel does for a stream: memory, and waiting for a vanished client."""
    if wire is None or wire.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # gone already: the first write will fail
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000))
