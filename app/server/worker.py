"""gunicorn's gevent worker with a fast path for plain requests.

gunicorn spends three quarters of its time for a small request on what a plain one does not need.
Here a plain request (:mod:`app.server.request`) is read, answered by the same application and
written with one send. gunicorn handles all others on the same connection, and event streams.

An idle connection and one with an unread body are closed after ``keepalive`` seconds, the latter
also after ``MOST_UNREAD_BYTES``, one whose head does not end after ``StrictRequest.head_seconds``;
when the process stops, idle connections are closed within two seconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from typing import Any

import gevent
from gevent import socket
from gevent.server import StreamServer
from gunicorn import http, util
from gunicorn.http import wsgi
from gunicorn.http.body import Body, LengthReader
from gunicorn.http.errors import NoMoreData
from gunicorn.http.message import MAX_HEADERS, MAX_REQUEST_LINE, HeaderPolicy, Request
from gunicorn.http.parser import RequestParser
from gunicorn.workers import ggevent

from app.api.http.complete_body import CompleteBody
from app.log_ids import current_request
from app.server.body_reader import MOST_UNREAD_BYTES, PIECE_BYTES, FairUnreader
from app.server.connections import ClientSocket, Connections, bound_unsent, refuse
from app.server.request import HeadLimits, PlainRequest, read_plain
from app.server.response import HttpResponse
from app.server.strict_request import HeadTimeout, StrictRequest

#: Of a socket: host and port.
Address = Any

#: Bytes read at once: most requests are smaller. The same as gunicorn's: its answer to a malformed
#: head may depend on how much of it has arrived.
READ_BYTES = 8_192
#: Connections accepted per loop iteration: more are served sooner, fewer are shared better.
ACCEPTS_PER_ITERATION = 16
#: Interval between checks for idle connections.
SWEEP_SECONDS = 1.0
#: When the process stops, connections idle for longer are closed. Others may be about to send a
#: request; the answer tells them to use another connection next.
STOP_IDLE_SECONDS = 1.0
#: Errors of connections that the client has closed.
GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


class Listener(StreamServer):
    """Accepts several connections per loop iteration, with deadlines for writing.

    gunicorn accepts one, so that processes share connections. But an iteration with a thousand
    busy clients takes a tenth of a second, and new clients would wait for minutes.
    """

    @property
    def max_accept(self) -> int:
        return ACCEPTS_PER_ITERATION

    @max_accept.setter
    def max_accept(self, _: int) -> None:
        """Ignores gunicorn's setting."""

    def do_read(self) -> Any:
        """Accept a connection; None if there is none."""
        try:
            descriptor, address = self.socket._accept()  # type: ignore[attr-defined]  # as gevent
        except BlockingIOError:
            return None
        listener = self.socket
        client = ClientSocket(listener.family, listener.type, listener.proto, fileno=descriptor)
        return client, address


class LeanWorker(ggevent.GeventWorker):  # type: ignore[misc]  # no stubs
    """A worker process with a fast path for plain requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cfg = self.cfg
        #: TLS, proxies and access logs are left to gunicorn.
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
        self.limits = HeadLimits(
            min(cfg.limit_request_line, MAX_REQUEST_LINE),
            min(cfg.limit_request_fields, MAX_HEADERS),
            cfg.limit_request_field_size,
        )
        # gunicorn has no setting for it.
        RequestParser.mesg_class = StrictRequest
        self._names: dict[socket.socket, Address] = {}
        self.connections = Connections()
        #: Idle connections, and since when.
        self.idle: dict[socket.socket, float] = {}

    def run(self) -> None:
        """As in gunicorn, with a greenlet that closes idle connections."""
        ggevent.StreamServer = Listener
        for listener in self.sockets:
            bound_unsent(listener)
        sweeper = gevent.spawn(self.sweep)
        try:
            super().run()
        finally:
            sweeper.kill(block=False)

    def handle(self, listener: socket.socket, client: socket.socket, addr: Address) -> None:
        """Serve one connection, in its own greenlet, unless there are too many."""
        if not isinstance(addr, tuple):
            self.serve(listener, client, addr)
            return
        refused = self.connections.enter(addr[0], is_proxy=self.is_proxy(addr))
        if refused is not None:
            refuse(client, refused)
            util.close(client)
            return
        try:
            self.serve(listener, client, addr)
        finally:
            self.connections.leave(addr[0])

    def is_proxy(self, addr: Address) -> bool:
        """Whether this address speaks for many clients: gunicorn's ``forwarded_allow_ips``."""
        return bool(header_policy(self.cfg, addr)._peer_is_trusted_proxy())

    def serve(self, listener: socket.socket, client: socket.socket, addr: Address) -> None:
        """Serve one connection."""
        if not self._plain_server or not isinstance(addr, tuple):  # a Unix socket has no address
            super().handle(listener, client, addr)
            return
        client.setblocking(True)
        serving = Serving(self, self._name_of(listener), client, addr)
        try:
            serving.serve()
        except (StopIteration, NoMoreData, gevent.GreenletExit):
            pass  # gunicorn's way to end a connection; the graceful timeout is over
        except TimeoutError:
            self.log.info("%s did not read its response in time.", addr[0])
            if isinstance(client, ClientSocket):
                client.reset()
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

    def handle_error(
        self, req: Any, client: socket.socket, addr: Address, exc: BaseException
    ) -> None:
        """As in gunicorn, and 408 for a head that did not arrive in time."""
        if isinstance(exc, HeadTimeout):
            with contextlib.suppress(OSError):
                util.write_error(client, 408, "Request Timeout", str(exc))
            return
        super().handle_error(req, client, addr, exc)

    def handle_request(self, *arguments: Any) -> Any:
        """As in gunicorn; log lines after the end of a stream belong to no request."""
        more = super().handle_request(*arguments)
        current_request.set(None)
        return more

    def _name_of(self, listener: socket.socket) -> Address:
        """Cached: a connection may be accepted just before its listener is closed."""
        if listener not in self._names:
            self._names[listener] = listener.getsockname()
        return self._names[listener]

    def sweep(self) -> None:
        """Close connections that were idle for too long; all idle ones when the process stops.

        To the reading greenlet it looks as if the client had closed the connection.
        """
        while True:
            gevent.sleep(SWEEP_SECONDS)
            since = time.monotonic() - (self._keepalive if self.alive else STOP_IDLE_SECONDS)
            for client, idle_since in list(self.idle.items()):
                if idle_since < since:
                    with contextlib.suppress(OSError):  # it has just ended
                        client.shutdown(socket.SHUT_RD)


class Serving:
    """One connection being served."""

    def __init__(
        self, worker: LeanWorker, listener_name: Address, client: socket.socket, addr: Address
    ) -> None:
        self._worker = worker
        self._client = client
        self._addr = addr
        self._listener_name = listener_name
        self._base_environ = base_environ(worker.cfg, self._listener_name, client, addr)
        self._schemes = scheme_headers(worker.cfg, addr)
        self._limits = worker.limits
        #: The request being handled by gunicorn.
        self.request: Request | None = None
        #: Part of an answer has been sent: no error can be answered any more.
        self.begun = False

    def serve(self) -> None:
        """Handle requests one after the other until either side closes."""
        data = b""
        while data := data or self._next_bytes():
            plain = read_plain(data, self._base_environ, self._limits, self._schemes)
            if plain is None or plain.environ["PATH_INFO"].endswith("/events"):
                left = self._by_gunicorn(data)
            else:
                left = self._answer(plain, data)
            if left is None:
                return
            data = left
            if data:
                gevent.sleep(0)  # a client with pipelined requests must not block the others

    def _next_bytes(self) -> bytes:
        idle = self._worker.idle
        idle[self._client] = time.monotonic()
        try:
            received: bytes = self._client.recv(READ_BYTES)
        finally:
            del idle[self._client]
        return received

    def _answer(self, plain: PlainRequest, data: bytes) -> bytes | None:
        """Answer a plain request; returns the bytes after it, None to close the connection."""
        worker, environ = self._worker, plain.environ
        end = plain.body_at + plain.length
        body: Body | None = None
        if len(data) >= end:
            environ["wsgi.input"] = CompleteBody(data[plain.body_at : end])
        else:
            unreader = FairUnreader(self._client)
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

    def _rest(self, body: Body, unreader: FairUnreader) -> bytes | None:
        """The bytes after a body that was not read completely; None to close the connection."""
        ended, left = False, MOST_UNREAD_BYTES
        with self._worker.timeout_ctx():
            while left > 0 and not body.failed and (piece := body.read(PIECE_BYTES)):
                left -= len(piece)
            ended = left > 0 and not body.failed
        buffered: bytes = unreader.take_buffered()
        return buffered if ended else None

    def _by_gunicorn(self, data: bytes) -> bytes | None:
        """Let gunicorn handle the request that begins with ``data``."""
        worker = self._worker
        parser = http.get_parser(worker.cfg, self._client, self._addr)
        parser.unreader = FairUnreader(self._client)
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
            ended = not self.request.should_close() and parser.finish_body(
                max_bytes=MOST_UNREAD_BYTES
            )
        self.request = None
        buffered: bytes = parser.unreader.take_buffered()
        return buffered if ended else None


def base_environ(cfg: Any, server: Address, client: socket.socket, addr: Address) -> dict[str, Any]:
    """The WSGI environment shared by all requests of a connection."""
    return {
        **wsgi.base_environ(cfg),
        "wsgi.multithread": True,
        "wsgi.url_scheme": "http",
        "gunicorn.socket": client,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SCRIPT_NAME": "",
        "REMOTE_ADDR": addr[0],
        "REMOTE_PORT": str(addr[1]),
    }


def scheme_headers(cfg: Any, addr: Address) -> Mapping[str, str]:
    """Headers by which this client may announce ``https``, by their key in the environment."""
    trusted, _ = header_policy(cfg, addr)._peer_trusted_for_forwarded()
    return {f"HTTP_{name.replace('-', '_')}": value for name, value in trusted.items()}


def header_policy(cfg: Any, addr: Address) -> HeaderPolicy:
    """What gunicorn lets this client say about others."""
    policy = HeaderPolicy()
    policy.cfg, policy.peer_addr = cfg, addr
    return policy
