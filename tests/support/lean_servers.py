"""Two servers of one small application: gunicorn's own worker, and ours with its fast path.

They run in a thread with its own hub, so that tests can use plain sockets.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gevent
import gevent.socket
from gunicorn.config import Config
from gunicorn.workers.ggevent import GeventWorker

from app.server.worker import LeanWorker, Listener

#: What differs between two answers that say the same.
DATE = re.compile(rb"Date: [^\r]*\r\n")
#: What a request is to the application; the rest is the server's affair.
TOLD = re.compile(r"HTTP_|CONTENT_|REQUEST_|PATH_|QUERY_|RAW_|SERVER_PROTOCOL|SCRIPT_|wsgi.url_s")


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Say what was asked; the path chooses how."""
    match environ["PATH_INFO"]:
        case "/none":
            start_response("204 No Content", [("Content-Length", "7")])
            return [b"ignored"]
        case "/known":
            start_response("304 Not Modified", [("ETag", '"x"')])
            return []
        case "/stream":
            start_response("200 OK", [("Content-Type", "text/plain")])
            return (piece for piece in (b"", b"one", b"", b"two"))
        case "/written":
            start_response("200 OK", [("Content-Length", "6")])(b"one")
            return iter([b"two"])
        case "/long":
            start_response("200 OK", [("Content-Length", "3"), ("Connection", "close")])
            return iter([b"on", b"etwo"])
        case "/unread":
            start_response("200 OK", [("Content-Length", "2")])
            return [b"ok"]
        case "/split":
            start_response("200 OK", [("X", "a\r\nSet-Cookie: b")])
            return [b"ok"]
        case "/fails":
            raise ValueError("on purpose")
        case "/breaks":
            start_response("200 OK", [("Content-Length", "20")])
            return breaking()
    body = environ["wsgi.input"].read()
    told = {name: value for name, value in environ.items() if TOLD.match(name)}
    document = json.dumps([told, body.decode("latin-1")], sort_keys=True).encode()
    start_response("200 OK", [("Content-Length", str(len(document)))])
    return [document]


def breaking() -> Iterator[bytes]:
    """An answer that ends before its end."""
    yield b"half"
    raise ValueError("on purpose")


class QuietLog:
    """Hears what gunicorn's log is told."""

    def quiet(self, *_: object, **__: object) -> None:
        pass

    debug = info = warning = error = exception = access = quiet


class Servers:
    """Both, and the way to ask them."""

    def __init__(self, **settings: Any) -> None:
        cfg = Config()
        given = {"http_parser": "python", "keepalive": 75, **settings}
        for name, value in given.items():
            cfg.set(name, value)
        self.lean = LeanWorker(1, os.getppid(), [], None, 30, cfg, QuietLog())
        self.plain = GeventWorker(1, os.getppid(), [], None, 30, cfg, QuietLog())
        self.lean.wsgi = self.plain.wsgi = echo
        self._ports: dict[GeventWorker, int | None] = {}
        self._was_reset = False
        self._ready = threading.Event()
        self._stop = threading.Event()

    def run(self) -> None:
        """Serve until told to stop; for the thread."""
        started = []
        for worker in (self.lean, self.plain):
            listener = gevent.socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            server = Listener(listener, partial(worker.handle, listener))
            server.start()
            self._ports[worker] = server.server_port
            started.append(server)
        sweeper = gevent.spawn(self.lean.sweep)
        self._ready.set()
        while not self._stop.is_set():
            gevent.sleep(0.01)
        sweeper.kill()
        for server in started:
            server.stop()
        for worker in (self.lean, self.plain):
            worker.tmp.close()

    def connect(self, worker: GeventWorker) -> socket.socket:
        """A connection to one of them."""
        return socket.create_connection(("127.0.0.1", self._ports[worker]), timeout=20)

    def exchange(self, worker: GeventWorker, pieces: Sequence[bytes]) -> bytes:
        """All that it answers to these pieces, sent one after the other, until it closes."""
        with self.connect(worker) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for place, piece in enumerate(pieces):
                    if place:
                        time.sleep(0.001)  # so that they arrive as pieces
                    wire.sendall(piece)
                wire.shutdown(socket.SHUT_WR)
            except OSError:
                self._was_reset = True  # refused before the end; the answer is there to be read
            answer, was_reset = read_to_the_end(wire)
            self._was_reset |= was_reset
            return DATE.sub(b"", answer)

    def both(self, *pieces: bytes) -> bytes:
        """What both answer; they must agree.

        Who closes a connection on which more arrives resets it, and what was answered may be
        lost on its way. Then they are asked again.
        """
        for _ in range(10):
            self._was_reset = False
            lean, plain = (self.exchange(worker, pieces) for worker in (self.lean, self.plain))
            if sorted_heads(lean) == sorted_heads(plain) or not self._was_reset:
                break
        assert sorted_heads(lean) == sorted_heads(plain), pieces
        return lean


def read_to_the_end(wire: socket.socket) -> tuple[bytes, bool]:
    """What arrives until the other side closes, and whether it did so with a reset."""
    chunks = []
    try:
        while chunk := wire.recv(65_536):
            chunks.append(chunk)
    except ConnectionResetError:
        return b"".join(chunks), True
    return b"".join(chunks), False


def sorted_heads(stream: bytes) -> list[bytes]:
    """The lines of an answer; the order of headers means nothing."""
    return sorted(stream.split(b"\r\n"))


@contextmanager
def serving(**settings: Any) -> Iterator[Servers]:
    """Both servers, ready."""
    servers = Servers(**settings)
    thread = threading.Thread(target=servers.run, name="lean servers", daemon=True)
    thread.start()
    assert servers._ready.wait(10)
    try:
        yield servers
    finally:
        servers._stop.set()
        thread.join(10)
