"""For tests: a TCP proxy that delivers what a server sends later than it was sent.

Clients connect to ``port``. What they send is passed on at once; what the server sends waits for
``delay_seconds``, which may be changed at any time. Order is kept and nothing is dropped. A server
may be a PostgreSQL that has a folder of sockets only.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Self

CHUNK = 65_536


class SlowLink:
    """Runs in threads for the length of a ``with`` block."""

    def __init__(self, host: str, port: int, delay_seconds: float = 0.0) -> None:
        self.delay_seconds = delay_seconds
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A blocked accept does not notice a close.
        self._shut(self._listener)
        self.cut()

    def cut(self) -> None:
        """Break every connection at once; new ones are accepted."""
        while self._sockets:
            self._shut(self._sockets.pop())

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:
                    self._shut(client)
                    continue
                server.settimeout(None)
                self._sockets += (client, server)
                self._start(self._pass_on, client, server)
                self._start(self._pass_late, server, client)

    def _connect(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection(self._server, timeout=5)
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
        self._shut(target)

    def _pass_late(self, source: socket.socket, target: socket.socket) -> None:
        waiting: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
        self._start(self._deliver, waiting, target)
        with suppress(OSError):
            while data := source.recv(CHUNK):
                waiting.put((time.monotonic() + self.delay_seconds, data))
        waiting.put((time.monotonic() + self.delay_seconds, b""))

    def _deliver(self, waiting: SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with suppress(OSError):
            while True:
                due, data = waiting.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                target.sendall(data)
        self._shut(target)

    @staticmethod
    def _start(target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]

    @staticmethod
    def _shut(one: socket.socket) -> None:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
