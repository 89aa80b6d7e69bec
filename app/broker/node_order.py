"""The order in which a process tries the nodes of a RabbitMQ cluster."""

from __future__ import annotations

from typing import Any

from app.broker_url import DEFAULT_PORTS, address


def try_last(urls: Any, connection: Any) -> None:
    """Try the node of this connection after all others, next time.

    ``urls`` is the list that connections are opened from. It is replaced in one step: other
    threads read it.
    """
    if isinstance(urls, list) and connection is not None:
        scheme = str(connection.transport_cls)
        port = connection.port or DEFAULT_PORTS.get(scheme, 5672)
        last = (str(connection.hostname).lower(), int(port))
        urls[:] = sorted(urls, key=lambda url: address(url) == last)
