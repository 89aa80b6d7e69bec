"""The supervisor's control socket, a unix socket in its home: ``status``, ``scale``, ``env``.

One line of JSON each way. Stopping does not need the socket: it is a SIGTERM to the supervisor.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.stack.home import Home, drop_socket_folder, socket_folder
from app.stack.spec import StackError

SOCKET_NAME = "control.sock"
REQUEST_SECONDS = 5.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Request = dict[str, Any]
Answer = dict[str, Any]


class NotRunning(StackError):
    """No supervisor answers in this home."""


class ControlServer:
    """Serves requests while the supervisor pauses, without blocking it for long."""

    def __init__(self, home: Home, handle: Callable[[Request], Answer]) -> None:
        self.path = socket_path(home)
        self._handle = handle
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        # The mask rather than a chmod afterwards: there is no moment at which others could connect.
        mask = os.umask(0o177)
        try:
            self._listener.bind(str(self.path))
        finally:
            os.umask(mask)
        self._listener.listen(16)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def handle_signals(self, request_stop: Callable[[], None]) -> None:
        """Call ``request_stop`` on a stop signal; any signal, also of a dead child, ends a pause.

        Only on the main thread.
        """
        readable, self._writable = socket.socketpair()
        readable.setblocking(False)
        self._writable.setblocking(False)
        self._selector.register(readable, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._writable.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: request_stop())
        # Any handler will do: without one the signal would not end the pause.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def pause(self, seconds: float) -> None:
        """Wait up to that long; serve a request that arrives, and return early after it."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._serve_one()
            elif isinstance(key.fileobj, socket.socket):
                with suppress(BlockingIOError):
                    key.fileobj.recv(4096)

    def _serve_one(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                client.settimeout(0.5)
                client.sendall(json.dumps(self._answer(client)).encode() + b"\n")

    def _answer(self, client: socket.socket) -> Answer:
        try:
            with client.makefile("rb") as lines:
                request = json.loads(lines.readline(65_536))
            return self._handle(request)
        except (ValueError, KeyError, TypeError) as error:
            return {"error": str(error)}

    def close(self) -> None:
        self._selector.close()
        self._listener.close()
        remove_socket(self.path)


def socket_path(home: Home) -> Path:
    return socket_folder(home.path, SOCKET_NAME) / SOCKET_NAME


def remove_socket(path: Path) -> None:
    """Remove the socket of a supervisor that is gone."""
    path.unlink(missing_ok=True)
    drop_socket_folder(path.parent)


def ask(home: Home, request: Request) -> Answer:
    """Send one request to the supervisor and return its answer."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(REQUEST_SECONDS)
            client.connect(str(socket_path(home)))
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as lines:
                answer: Answer = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise NotRunning(
            f"no stack is running in {home.path}; start one with `make up`, or set FAIRLINE_HOME "
            "to the home of another"
        ) from error
    return answer
