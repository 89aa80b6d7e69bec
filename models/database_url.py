"""Database URLs that name several servers, of which one is the primary.

PURE. Both forms are taken: ``…@a:5432,b:5433/db``, as libpq has it, and ``…@/db?host=…`` with
several hosts. A URL with several servers connects to the one that takes writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from sqlalchemy import URL

#: As SQLAlchemy has it: a password ends at the first ``@`` and may contain anything else.
PARTS = re.compile(
    r"(?P<start>[\w+]+://(?:[^:/]*(?::[^@]*)?@)?)(?P<servers>[^/?]*)(?P<rest>.*)", re.DOTALL
)
SERVER = re.compile(r"(?P<host>\[[^\[\]@\s]+\]|[^:\[\]@\s]+)(?::(?P<port>\d*))?")
#: What libpq may be told to look for in one of several servers, so that we can write there.
WRITABLE = ("read-write", "primary")
#: … or that a standby is enough.
STANDBY = ("prefer-standby", "standby")
DRIVER = "postgresql+psycopg2"
#: libpq's own limit, for a process that waits without a callback: the least that it takes.
CONNECT_SECONDS = 2
#: One server and nothing unusual: valid as it is, which is known without SQLAlchemy.
USUAL = re.compile(
    r"postgresql\+psycopg2://(\w+(:[\w.~-]*)?@)?[\w.-]*(:\d+)?/\w+(\?host=[\w/.-]+&port=\d+)?",
    re.A,
)


def standby_url(text: str) -> str:
    """The same of the standbys that may be read from: no connection is made to a primary."""
    from sqlalchemy import make_url

    url = make_url(normal_url(text, STANDBY))
    only = {"target_session_attrs": "standby"}
    return url.update_query_dict(only).render_as_string(hide_password=False)


def normal_url(text: str, roles: Sequence[str] = WRITABLE) -> str:
    """The URL with several servers as ``?host=a,b&port=1,2``; any other one as it is."""
    if roles is WRITABLE and USUAL.fullmatch(text):
        return text
    # Not above: a process that only connects, or starts others, needs no SQLAlchemy.
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = PARTS.fullmatch(text)
        servers = found["servers"].split(",") if found else []
        encoded = len(servers) > 1
        if found and encoded:
            text = found["start"] + found["rest"]
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError("is not a database URL") from None  # without the password in it
    if url.drivername != DRIVER:  # plain postgresql:// is another driver in SQLAlchemy 2.1
        raise ValueError(f"must begin with {DRIVER}://")
    if "@" in str(url.host):
        raise ValueError("is not a database URL: in a password write @ as %40")
    if not encoded:
        servers = _words(url.query.get("host", ()))
    wanted = str(url.query.get("target_session_attrs", roles[0]))
    if wanted not in roles and (len(servers) > 1 or roles is STANDBY):
        raise ValueError(f"target_session_attrs must be {' or '.join(roles)}")
    if len(servers) < 2:
        return text
    if "hostaddr" in url.query:  # a list of them would be given to each host
        raise ValueError("names several hosts: write their addresses instead of hostaddr")
    hosts, ports = _split(servers, _words(url.query.get("port", ())))
    if encoded:  # the query was decoded already
        hosts = [unquote(host) for host in hosts]
    query = {"host": ",".join(hosts), "port": ",".join(ports), "target_session_attrs": wanted}
    # What SQLAlchemy renders it can read: an empty host, then the query.
    return url.update_query_dict(query).render_as_string(hide_password=False)


def _words(value: str | Sequence[str]) -> list[str]:
    values = [value] if isinstance(value, str) else value
    return [word for text in values for word in text.split(",")]


def _split(servers: Sequence[str], ports: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hosts and ports, as many of each."""
    pairs = [_host_and_port(server) for server in servers]
    hosts, own = [host for host, _ in pairs], [port for _, port in pairs]
    if len(ports) not in (0, 1, len(hosts)) or (ports and any(own)):
        raise ValueError("names several hosts: give each its own port, or all of them the same")
    all_ports = list(ports) * (len(hosts) // len(ports)) if ports else own
    if not all(port == "" or (port.isdecimal() and 0 < int(port) < 65_536) for port in all_ports):
        raise ValueError("names several hosts: a port must be a number from 1 to 65535")
    return hosts, all_ports


def _host_and_port(server: str) -> tuple[str, str]:
    # A folder of sockets, or an IPv6 address without brackets.
    if server.startswith("/") or (server.count(":") > 1 and "[" not in server):
        return server, ""
    found = SERVER.fullmatch(server)
    if found is None:
        raise ValueError("names several hosts: each must be host, host:port or /folder")
    return found["host"].strip("[]"), found["port"] or ""


def connect_arguments(url: URL) -> dict[str, Any]:
    """The URL as psycopg2 takes it, with the hosts separated by commas."""
    return dict(url.get_dialect()().create_connect_args(url)[1])


def one_server_each(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a connection to each of the servers.

    libpq tries them in turn as well, but without a limit for each when it is polled: one that
    does not answer would take all the time.
    """
    hosts = str(arguments.get("host") or "").split(",")
    if len(hosts) == 1:
        return [dict(arguments)]
    ports = str(arguments.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    return [
        {"connect_timeout": CONNECT_SECONDS, **arguments, "host": host, "port": port or None}
        for host, port in zip(hosts, ports, strict=True)
    ]


def named_server(arguments: Mapping[str, Any]) -> tuple[str, int]:
    """Host and port that these arguments name, as a connection to it reports them."""
    return str(arguments["host"]), int(arguments.get("port") or 5432)
