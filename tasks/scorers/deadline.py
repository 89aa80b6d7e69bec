"""A deadline for a whole HTTP call, for a client that only limits each wait.

``httpx2`` restarts its read timeout with every byte that arrives. Every wait on a socket is
therefore capped by what is left of the call. Under gevent a timer also interrupts the greenlet: a
green TLS socket restarts its own timeout on every partial record.

Not guaranteed: in a plain thread, name resolution takes as long as the system's resolver does.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpcore2
import httpx2
from gevent import Timeout

from tasks.process import is_green

if TYPE_CHECKING:
    import ssl

_ends_at: ContextVar[float | None] = ContextVar("call_ends_at", default=None)

#: Written at once, so that the time left is checked often while a large body is sent.
_WRITE_BYTES = 16_384


class DeadlinePassed(Exception):
    """The call took too long."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Let the HTTP calls made inside take ``seconds`` together, on clients given to ``hold``."""
    token = _ends_at.set(time.monotonic() + seconds)
    timer = Timeout(seconds) if is_green() else None
    try:
        with timer or nullcontext():
            yield
    except BaseException as raised:
        if raised is timer:
            raise DeadlinePassed from None
        raise
    finally:
        _ends_at.reset(token)


def hold(client: httpx2.Client) -> None:
    """Make this client, its proxies included, obey ``deadline``.

    The backend is swapped where ``httpx2`` keeps it, because its transport takes none and a
    transport of our own would lose the proxies, socket options and certificates of the SDK's.
    """
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            pool = transport._pool  # type: ignore[attr-defined]  # private, see above
            pool._network_backend = _DeadlineBackend(pool._network_backend)


def _left(timeout: float | None, expired: type[Exception]) -> float | None:
    """The timeout, or what is left of the call if that is less."""
    ends_at = _ends_at.get()
    if ends_at is None:
        return timeout
    left = ends_at - time.monotonic()
    if left <= 0:
        raise expired("the call has used up its time")
    return left if timeout is None else min(timeout, left)


class _DeadlineBackend(httpcore2.NetworkBackend):
    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Try the host's addresses, which share the timeout instead of having it each."""
        began = time.monotonic()
        addresses = _addresses(host, port)
        for tried, address in enumerate(addresses, start=1):
            rest = None if timeout is None else max(0.001, began + timeout - time.monotonic())
            rest = _left(rest, httpcore2.ConnectTimeout)
            share = None if rest is None else rest / (len(addresses) - tried + 1)
            try:
                stream = self._backend.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if tried == len(addresses):
                    raise
            else:
                return _DeadlineStream(stream)
        raise httpcore2.ConnectError(f"{host} has no address")


class _DeadlineStream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            part = buffer[start : start + _WRITE_BYTES]
            self._stream.write(part, _left(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        rest = _left(timeout, httpcore2.ConnectTimeout)
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, rest))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
