"""Looking up the addresses of database servers, in a thread and within a time.

libpq looks a host name up for as long as the resolver takes: ten seconds for each server if it does
not answer, say because it was on the machine that was lost. In a gevent process nothing else would
run meanwhile, no request and no heartbeat.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import psycopg2


def is_name(server: Mapping[str, Any]) -> bool:
    """Whether a server has to be looked up: it is neither an address nor a folder of sockets."""
    host = str(server.get("host") or "/")
    known = host.startswith(("/", "@")) or ":" in host or host.replace(".", "").isdigit()
    return not known and not server.get("hostaddr")


def with_addresses(server: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The arguments of a connection to this server, with its addresses.

    Its name stays, for TLS and for errors. All addresses are tried, as libpq does.
    """
    if not is_name(server):
        return dict(server)
    host = str(server["host"])
    try:
        addresses = look_up(host, seconds)
    except OSError as error:
        reason = str(error) or "the resolver did not answer"
        raise psycopg2.OperationalError(f"{host} has no address: {reason}") from error
    named = ",".join([host] * len(addresses))
    return {**server, "host": named, "hostaddr": ",".join(addresses)}


def look_up(host: str, seconds: float) -> list[str]:
    """Its addresses in the order of the system; the thread, or greenlet, ends by itself."""
    found: Future[list[str]] = Future()

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found.set_exception(OSError(str(error)))
        else:
            found.set_result(list(dict.fromkeys(str(address[0]) for *_, address in answers)))

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    return found.result(seconds)
