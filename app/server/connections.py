"""Connections of clients: a deadline for every write, and bounds of their number."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from http import HTTPStatus
from ipaddress import IPv6Address
from typing import Any, ClassVar

import gevent
from gevent import socket
from gunicorn import util

#: How long a refused client may take to send its request and read the answer.
REFUSED_SECONDS = 0.5
#: Bytes of a refused request that are read at once.
READ_BYTES = 65_536
#: Bytes of a response that the kernel keeps beyond those on their way. Half of it must be read
#: before more can be written: by default 2 KB a second.
UNSENT_BYTES = 131_072
#: Close without waiting for what the client did not read.
NO_LINGER = struct.pack("ii", 1, 0)


class ClientSocket(socket.socket):
    """A connection on which a write fails if nothing could be written for too long.

    Otherwise a client that never reads would keep its response in memory for as long as it likes.
    """

    __slots__ = ()

    write_seconds: ClassVar[float] = 30.0

    def send(self, data: Any, flags: int = 0, *ignored: object) -> int:
        """Send some of the data; raises ``TimeoutError``."""
        reading = self.timeout
        if reading == 0.0:
            return super().send(data, flags)
        self.settimeout(self.write_seconds)
        try:
            return super().send(data, flags)
        finally:
            self.settimeout(reading)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of the data; there is a deadline for each part of it that the kernel takes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest, flags) :]

    def reset(self) -> None:
        """Discard what the client did not read, with the next close."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)


def bound_unsent(listener: socket.socket) -> None:
    """Bound what the kernel keeps for a client that does not read; connections inherit it.

    It would be megabytes, of which a slow client has to read a third before more can be written.
    """
    with contextlib.suppress(OSError):  # a Unix socket
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


class Connections:
    """The open connections of this process, and how many there may be."""

    def __init__(self, most: int = 10_000, most_of_address: int = 1_000) -> None:
        self._most = most
        #: 0: any number. Proxies are exempt.
        self._most_of_address = most_of_address
        self._of_address: Counter[str | int] = Counter()
        self.count = 0

    def enter(self, host: str, *, is_proxy: bool) -> HTTPStatus | None:
        """Count a new connection; the status to refuse it with, if there are too many."""
        address = address_of(host)
        if self.count >= self._most:
            return HTTPStatus.SERVICE_UNAVAILABLE
        if 0 < self._most_of_address <= self._of_address[address] and not is_proxy:
            return HTTPStatus.TOO_MANY_REQUESTS
        self.count += 1
        self._of_address[address] += 1
        return None

    def leave(self, host: str) -> None:
        """Undo a successful ``enter``."""
        address = address_of(host)
        self.count -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]


def address_of(host: str) -> str | int:
    """Whom to count a connection for: a single user of IPv6 has 2**64 addresses."""
    if ":" not in host:
        return host
    found = IPv6Address(host)
    return str(found.ipv4_mapped) if found.ipv4_mapped else int(found) >> 64


def refuse(client: socket.socket, status: HTTPStatus) -> None:
    """Answer a connection that is one too many."""
    whose = "this address" if status is HTTPStatus.TOO_MANY_REQUESTS else "this process"
    detail = f"There are too many open connections of {whose}."
    with contextlib.suppress(OSError, gevent.Timeout), gevent.Timeout(REFUSED_SECONDS):
        util.write_error(client, status.value, status.phrase, detail)
        client.shutdown(socket.SHUT_WR)
        # With unread bytes a close would be a reset, and the answer might be lost.
        while client.recv(READ_BYTES):
            pass
