"""The hostile client: it connects to loopback alone, and notes every answer it gets."""

from __future__ import annotations

import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlencode

#: Where the hostile client calls from: another address than the victim's, on the same machine.
HOSTILE_ADDRESS = "127.0.0.66"
#: Answers of a raw stream.
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
#: Statuses with which a request that must not be served is refused.
REFUSED = range(400, 500)
#: No errors of the server: a transfer coding that there is not, a limit that was reached.
BY_DESIGN = (501, 503)
#: Most bytes read of one answer, longest time for one list of requests, descriptions kept.
MOST_BYTES, MOST_SECONDS, MOST_KEPT = 8 * 1_048_576, 60.0, 20
#: Processor time of this client: a quarter of the machine. It shares the cores with what it
#: attacks; with more, the victim would wait for the client instead of for the server.
MOST_CORES = 0.25 * (os.cpu_count() or 1)
#: Connections that are held are opened at this pace: what is tried is that they stay.
OPENED_PER_SECOND = 400.0
#: Between two looks at the time that was used.
PAUSE_SECONDS = 0.002


class NotLoopback(ValueError):
    """The target is not this machine."""


def on_loopback(host: str) -> str:
    """The address, if it is one of this machine; a name is none, since it may point anywhere."""
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise NotLoopback(f"{host} is not a loopback address: nothing else is attacked")
    return host


@dataclass(slots=True)
class Tally:
    """What a round was answered."""

    statuses: dict[int, int] = field(default_factory=dict)
    #: Connections that ended without an answer.
    closed: int = 0
    #: Requests that were served although they must not be, and answers with the victim's marker.
    served: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    #: The most connections at once.
    connections: int = 0

    @property
    def server_errors(self) -> int:
        """Answers from 500 on that are faults."""
        faults = (n for code, n in self.statuses.items() if code >= 500 and code not in BY_DESIGN)
        return sum(faults)


class Attacker:
    """Opens connections, sends what it is given, and looks for the marker in every answer."""

    def __init__(self, port: int, marker: str, host: str = "127.0.0.1") -> None:
        self.host, self.port = on_loopback(host), port
        #: What only the victim has, and this client never sends.
        self._marker = marker.encode()
        self._changing = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Begin a round: with a tally of its own and nothing used."""
        self.tally = Tally()
        self._began, self._used = time.monotonic(), time.process_time()

    @property
    def cores(self) -> float:
        """Processor time of this client since the round began, per second."""
        elapsed = time.monotonic() - self._began
        return (time.process_time() - self._used) / max(elapsed, PAUSE_SECONDS)

    def connect(
        self, seconds: float = 5.0, room: int = 0, port: int = 0, source: str = HOSTILE_ADDRESS
    ) -> socket.socket:
        """A bare connection; ``room``: bytes that its kernel buffers, as few as possible."""
        while self.cores > MOST_CORES:
            time.sleep(PAUSE_SECONDS)
        wire = socket.socket()
        try:
            if room:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            wire.settimeout(seconds)
            wire.bind((on_loopback(source), 0))
            wire.connect((self.host, port or self.port))
        except BaseException:
            wire.close()
            raise
        return wire

    @contextmanager
    def held(
        self, count: int, begun: Sequence[bytes], room: int = 0
    ) -> Iterator[list[socket.socket]]:
        """As many connections as the server takes, up to a number, closed at the end.

        Each sends one of the beginnings, in turns.
        """
        wires: list[socket.socket] = []
        began = time.monotonic()
        try:
            for number in range(count):
                time.sleep(max(0.0, began + number / OPENED_PER_SECOND - time.monotonic()))
                try:
                    wires.append(self.connect(0.5, room))
                    wires[-1].sendall(begun[number % len(begun)])
                except OSError:
                    self.note("connection", b"")
            self.tally.connections = max(self.tally.connections, len(wires))
            yield wires
        finally:
            for wire in wires:
                wire.close()

    def exchange(
        self,
        what: str,
        sent: bytes,
        allowed: Collection[int] | None = None,
        *,
        end: bool = True,
        port: int = 0,
    ) -> None:
        """Send bytes, read until the server closes, and note the answers.

        ``allowed``: those that the request may get, if not any; ``end``: say that no more comes.
        """
        received = b""
        with suppress(OSError), self.connect(port=port) as wire:
            with suppress(OSError):  # refused before the end; the answer is there to be read
                wire.sendall(sent)
                if end:
                    wire.shutdown(socket.SHUT_WR)
            received = read_answers(wire)
        self.note(what, received, allowed)

    def ask(
        self,
        method: str,
        path: str,
        allowed: Collection[int] | None = None,
        *,
        port: int = 0,
        **parts: object,
    ) -> None:
        """One request on a connection of its own, with the parts of `request`."""
        sent = request(method, path, port=port or self.port, **parts)  # type: ignore[arg-type]
        self.exchange(f"{method} {path[:80]}", sent, allowed, end=False, port=port)

    def note(self, what: str, received: bytes, allowed: Collection[int] | None = None) -> None:
        """Count answers, look for the marker, and compare with what is allowed."""
        statuses = [int(status) for status in STATUS.findall(received)]
        with self._changing:
            tally = self.tally
            tally.closed += not statuses
            if self._marker in received:
                tally.leaks = [*tally.leaks, what][:MOST_KEPT]
            for status in statuses:
                tally.statuses[status] = tally.statuses.get(status, 0) + 1
                if allowed is not None and status not in allowed and status < 500:
                    tally.served = [*tally.served, f"{what}: {status}"][:MOST_KEPT]

    def repeat(
        self,
        calls: Sequence[Callable[[], object]],
        threads: int,
        seconds: float,
        per_second: float = 0.0,
    ) -> None:
        """Make all calls, by so many threads, and again while there is time.

        ``per_second``: of all threads, 0: as many as `MOST_CORES` allows.
        """
        self.tally.connections = max(self.tally.connections, threads)
        numbers = itertools.count()
        began = time.monotonic()
        # A server that keeps this client waiting does not make the round endless.
        until, at_most = began + seconds, began + MOST_SECONDS

        def work() -> None:
            while (now := time.monotonic()) < at_most:
                number = next(numbers)
                if number >= len(calls) and now >= until:
                    return
                if per_second:
                    time.sleep(max(0.0, began + number / per_second - now))
                calls[number % len(calls)]()

        workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def request(
    method: str,
    path: str,
    *,
    key: str = "",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    form: Mapping[str, str] | None = None,
    port: int = 0,
    keep: bool = False,
) -> bytes:
    """A request as HTTP clients make it; ``keep``: more follow on its connection."""
    lines = {"Host": f"127.0.0.1:{port}"} | ({} if keep else {"Connection": "close"})
    lines |= {"Authorization": f"Bearer {key}"} if key else {}
    if form is not None:
        body = urlencode(form).encode()
        lines["Content-Type"] = "application/x-www-form-urlencoded"
    elif body:
        lines["Content-Type"] = "application/json"
    if body or form is not None:
        lines["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(headers or {})).items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def read_answers(wire: socket.socket) -> bytes:
    """What arrives until the server closes; of an event stream, what there is."""
    received = bytearray()
    with suppress(OSError):
        while len(received) < MOST_BYTES and (data := wire.recv(65_536)):
            received += data
            if b"text/event-stream" in data:
                break
    return bytes(received)
