"""gunicorn's green worker with a short way for plain requests.

Three quarters of what gunicorn spends on a small request goes into objects that a plain one does
not need: a timeout, a configuration that is asked dozens of times, a send for the head and one
for the body. Here a plain request (:mod:`app.server.request`) is read, answered by the same
application and written in one piece. Any other goes gunicorn's way on the same connection, with
the bytes that were read; so do streams of events, which end with their connection.

Bounds: a connection that says nothing, a head or an unwanted body that does not end, for
``keepalive`` seconds each; the body of a request by whoever reads it. When the process is to
stop, connections that wait for a request are closed within two seconds.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Any

import gevent
from gevent import socket
from gevent.server import StreamServer
from gunicorn import http, util  # type: ignore[import-untyped]  # no stubs
from gunicorn.http import wsgi  # type: ignore[import-untyped]  # no stubs
from gunicorn.http.body import Body, LengthReader  # type: ignore[import-untyped]  # no stubs
from gunicorn.http.errors import NoMoreData  # type: ignore[import-untyped]  # no stubs
from gunicorn.http.message import (  # type: ignore[import-untyped]  # no stubs
    MAX_HEADERS,
    MAX_REQUEST_LINE,
    HeaderPolicy,
    Request,
)
from gunicorn.http.unreader import SocketUnreader  # type: ignore[import-untyped]  # no stubs
from gunicorn.workers import ggevent  # type: ignore[import-untyped]  # no stubs

from app.api.http.body import Arrived
from app.log_ids import current_request
from app.server.request import HeadLimits, PlainRequest, read_plain
from app.server.response import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    Address = Any

#: Bytes asked of a connection at once: most requests are smaller. As many as gunicorn asks for:
#: what it says to a broken head may depend on how much of it has arrived.
READ_BYTES = 8_192
#: Connections accepted in one turn of the loop: many arrive sooner, few are shared better.
ACCEPTS_A_TURN = 16
#: How often silent connections are looked for.
SWEEP_SECONDS = 1.0
#: Whoever was silent for so long when the process is to stop is not waited for. Others may be
#: about to ask something; the answer tells them to come back on another connection.
STOP_SILENT_SECONDS = 1.0
#: A client that is gone is nobody's error.
GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


class Listener(StreamServer):
    """Accepts some connections in a turn of the loop.

    gunicorn has it accept one, so that processes share them. But a turn with a thousand busy
    clients takes a tenth of a second, and whoever comes then waits for minutes.
    """

    @property
    def max_accept(self) -> int:
        return ACCEPTS_A_TURN

    @max_accept.setter
    def max_accept(self, _: int) -> None:
        """gunicorn's wish."""


class LeanWorker(ggevent.GeventWorker):  # type: ignore[misc]  # no stubs
    """A worker process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cfg = self.cfg
        #: Whoever wants more than plain HTTP, or every request in a log, gets gunicorn's way.
        self._plain_server = not (
            cfg.is_ssl
            or cfg.accesslog
            or cfg.statsd_host
            or cfg.proxy_protocol != "off"
            or getattr(cfg, "protocol", "http") != "http"
            or not cfg.keepalive
            or min(cfg.limit_request_line, cfg.limit_request_fields) <= 0
            or cfg.limit_request_field_size <= 0
            or os.environ.get("SCRIPT_NAME")
        )
        self._keepalive = cfg.keepalive
        self.limits = limits(cfg)
        self._names: dict[socket.socket, Address] = {}
        #: Connections that wait for a request, and since when.
        self.silent: dict[socket.socket, float] = {}

    def run(self) -> None:
        """As gunicorn does, with somebody who looks after the silent."""
        ggevent.StreamServer = Listener
        sweeper = gevent.spawn(self.sweep)
        try:
            super().run()
        finally:
            sweeper.kill(block=False)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Address) -> None:
        """Serve one connection; runs in a greenlet of its own."""
        if not self._plain_server or not isinstance(addr, tuple):  # a Unix socket has no address
            super().handle(listener, client, addr)
            return
        client.setblocking(True)
        serving = Serving(self, self._name_of(listener), client, addr)
        try:
            serving.serve()
        except (StopIteration, NoMoreData):
            pass  # as gunicorn says that a connection is over
        except gevent.GreenletExit:
            pass  # the time to stop in is over
        except OSError as error:
            if error.errno not in GONE:
                self.log.exception("Socket error processing request.")
        except BaseException as error:
            if serving.begun:
                self.log.exception("Error handling request")
            else:
                self.handle_error(serving.request, client, addr, error)
        finally:
            util.close(client)

    def handle_request(self, *given: Any) -> Any:
        """As gunicorn does, a stream to its end; what is logged after that is of no request."""
        more = super().handle_request(*given)
        current_request.set(None)
        return more

    def _name_of(self, listener: socket.socket) -> Address:
        """Asked once: a connection may be accepted just before its listener is closed."""
        if listener not in self._names:
            self._names[listener] = listener.getsockname()
        return self._names[listener]

    def sweep(self) -> None:
        """End what was silent for too long; all that is silent, when the process is to stop.

        To who reads, it looks as if the client had ended the connection.
        """
        while True:
            gevent.sleep(SWEEP_SECONDS)
            since = time.monotonic() - (self._keepalive if self.alive else STOP_SILENT_SECONDS)
            for client, silent_since in list(self.silent.items()):
                if silent_since < since:
                    try:
                        client.shutdown(socket.SHUT_RD)
                    except OSError:
                        continue  # it has just ended


class Serving:
    """One connection being served."""

    def __init__(
        self,
        worker: LeanWorker,
        listener_name: Address,
        client: socket.socket,
        addr: Address,
    ) -> None:
        self._worker = worker
        self._client = client
        self._addr = addr
        self._listener_name = listener_name
        self._surroundings = surroundings(worker.cfg, self._listener_name, client, addr)
        self._schemes = scheme_headers(worker.cfg, addr)
        self._limits = worker.limits
        #: The request that gunicorn read and is being answered.
        self.request: Request | None = None
        #: An answer is on its way that cannot be taken back.
        self.begun = False

    def serve(self) -> None:
        """Requests, one after the other, until one side wants no more."""
        data = b""
        while data := data or self._next_bytes():
            plain = read_plain(data, self._surroundings, self._limits, self._schemes)
            if plain is None or plain.environ["PATH_INFO"].endswith("/events"):
                left = self._by_gunicorn(data)
            else:
                left = self._answer(plain, data)
            if left is None:
                return
            data = left
            if data:
                gevent.sleep(0)  # who sends many at once must not keep the others waiting

    def _next_bytes(self) -> bytes:
        silent = self._worker.silent
        silent[self._client] = time.monotonic()
        try:
            received: bytes = self._client.recv(READ_BYTES)
        finally:
            del silent[self._client]
        return received

    def _answer(self, plain: PlainRequest, data: bytes) -> bytes | None:
        """Answer a plain request; what was read beyond it, None if it was the last."""
        worker, environ = self._worker, plain.environ
        end = plain.body_at + plain.length
        body: Body | None = None
        if len(data) >= end:
            environ["wsgi.input"] = Arrived(data[plain.body_at : end])
        else:
            unreader = SocketUnreader(self._client)
            unreader.unread(data[plain.body_at :])
            environ["wsgi.input"] = body = Body(LengthReader(unreader, plain.length))
        worker.nr += 1
        if worker.nr >= worker.max_requests and worker.alive:
            worker.log.info("Autorestarting worker after current request.")
            worker.alive = False
        answer = HttpResponse(
            self._client, environ["REQUEST_METHOD"], plain.last or not worker.alive
        )
        pieces = worker.wsgi(environ, answer.start)
        try:
            more = answer.send(pieces)
        finally:
            self.begun = answer.begun
            close = getattr(pieces, "close", None)
            if close is not None:
                close()
        self.begun = False
        current_request.set(None)
        if not more:
            return None
        return data[end:] if body is None else self._rest(body, unreader)

    def _rest(self, body: Body, unreader: SocketUnreader) -> bytes | None:
        """What follows a body that nobody read to its end; None if that cannot be found."""
        ended = False
        with self._worker.timeout_ctx():
            while not body.failed and body.read(READ_BYTES):
                pass
            ended = not body.failed
        buffered: bytes = unreader.take_buffered()
        return buffered if ended else None

    def _by_gunicorn(self, data: bytes) -> bytes | None:
        """Read and answer the request that ``data`` begins with as gunicorn does."""
        worker = self._worker
        parser = http.get_parser(worker.cfg, self._client, self._addr)
        parser.unreader.unread(data)
        self.request = None
        with worker.timeout_ctx():
            self.request = next(parser)
        if self.request is None:
            return None
        self.request.proxy_protocol_info = {}
        worker.handle_request(self._listener_name, self.request, self._client, self._addr)
        ended = False
        with worker.timeout_ctx():
            ended = not self.request.should_close() and parser.finish_body()
        self.request = None
        buffered: bytes = parser.unreader.take_buffered()
        return buffered if ended else None


def surroundings(cfg: Any, server: Address, client: socket.socket, addr: Address) -> dict[str, Any]:
    """What all requests of a connection have in common."""
    common: dict[str, Any] = {
        **wsgi.base_environ(cfg),
        "wsgi.multithread": True,
        "wsgi.url_scheme": "http",
        "gunicorn.socket": client,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SCRIPT_NAME": "",
    }
    common["REMOTE_ADDR"], common["REMOTE_PORT"] = addr[0], str(addr[1])
    return common


def scheme_headers(cfg: Any, addr: Address) -> Mapping[str, str]:
    """The headers by which this client may say ``https``, as they stand in the environment."""
    policy = HeaderPolicy()
    policy.cfg, policy.peer_addr = cfg, addr
    trusted, _ = policy._peer_trusted_for_forwarded()
    return {f"HTTP_{name.replace('-', '_')}": value for name, value in trusted.items()}


def limits(cfg: Any) -> HeadLimits:
    """What gunicorn is configured to take; beyond, it says no by itself."""
    return HeadLimits(
        min(cfg.limit_request_line, MAX_REQUEST_LINE),
        min(cfg.limit_request_fields, MAX_HEADERS),
        cfg.limit_request_field_size,
    )
