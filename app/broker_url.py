"""Broker URLs that name several nodes of a RabbitMQ cluster, and their parameters for TLS.

PURE. ``amqp://user:password@a:5672,b:5672/vhost`` names two nodes, and so does kombu's own
``amqp://…@a//;amqp://…@b//``, where each has its own user and password. Parameters are kombu's:
``amqps://…@a,b//?ssl_ca_certs=/etc/ca.pem``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ssl import CERT_NONE
from typing import Any
from urllib.parse import parse_qsl

#: As kombu has it: what stands before the last ``@`` of the part before the path is a user.
PARTS = re.compile(r"(?P<scheme>amqps?)://(?P<user>[^/?#]*@)?(?P<nodes>[^/?#]*)(?P<rest>.*)")
NODE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:,;@\[\]\s]+)(?::(?P<port>\d{1,5}))?")
DEFAULT_PORTS = {"amqps": 5671}
#: Parameters of an ``amqps`` URL. kombu and py-amqp fail at any other when they connect.
TLS_PARAMETERS = frozenset(
    ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
)
CERT_REQS = ("required", "optional", "none", "CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE")
SCHEMES = "must be the URL of a broker: amqp://…, amqps://… or filesystem:///folder"
SEVERAL = "names several brokers: each must be host or host:port, as amqp://user:password@a,b//"
ENCODED = "is not a broker URL: in a password write / ? # @ as %2F %3F %23 %40"
PARAMETERS = (
    f"as a broker URL has other parameters than {', '.join(sorted(TLS_PARAMETERS))} (amqps)"
)


def node_urls(text: str) -> list[str]:
    """The URL of each node; errors do not show what was given, which contains passwords."""
    if text.startswith("filesystem:///"):
        return [text]
    if not text.startswith(("amqp://", "amqps://")):
        raise ValueError(SCHEMES)
    urls = [url for part in text.split(";") for url in _one_each(part)]
    return urls if len(urls) == 1 else [_with_port(url) for url in urls]


def _one_each(text: str) -> list[str]:
    found = PARTS.fullmatch(text)
    if found is None:
        raise ValueError(f"is not a broker URL, or {SEVERAL}")
    if "@" in found["rest"]:  # the password began with what looks like a host
        raise ValueError(ENCODED)
    _check_parameters(found["scheme"], found["rest"].partition("?")[2])
    nodes = found["nodes"].split(",")
    if nodes == [""]:  # this machine
        return [text]
    if not all(NODE.fullmatch(node) and _port(node) < 65_536 for node in nodes):
        raise ValueError(SEVERAL if len(nodes) > 1 else "must name a broker as host or host:port")
    start = f"{found['scheme']}://{found['user'] or ''}"
    return [f"{start}{node}{found['rest']}" for node in nodes]


def _check_parameters(scheme: str, query: str) -> None:
    given = dict(parse_qsl(query, keep_blank_values=True))
    known = TLS_PARAMETERS if scheme == "amqps" else frozenset()
    if not given.keys() <= known or given.get("ssl_cert_reqs", CERT_REQS[0]) not in CERT_REQS:
        raise ValueError(PARAMETERS)


def _with_port(url: str) -> str:
    """kombu takes the port of the last node for one without."""
    found = PARTS.fullmatch(url)
    node = NODE.fullmatch(found["nodes"]) if found else None
    if found is None or node is None or node["port"]:
        return url
    port = DEFAULT_PORTS.get(found["scheme"], 5672)
    return f"{found['scheme']}://{found['user'] or ''}{node['host']}:{port}{found['rest']}"


def _port(node: str) -> int:
    found = NODE.fullmatch(node)
    return int(found["port"] or 0) if found else 0


def tls_options(given: Mapping[str, Any], host: str) -> dict[str, Any]:
    """TLS options of a connection to ``host`` as py-amqp takes them.

    ``given`` are those of the URL, which kombu passes on with a prefix that py-amqp refuses. The
    certificate must be the host's: py-amqp alone takes any that an authority has signed.
    """
    options = {name.removeprefix("ssl_"): value for name, value in given.items()}
    checked = options.pop("check_hostname", True) and options.get("cert_reqs") != CERT_NONE
    options.pop("server_hostname", None)  # of the node before
    return {**options, "server_hostname": host} if checked else options


def address(url: str) -> tuple[str, int] | None:
    """Host and port of a URL of :func:`node_urls`, as a connection to it reports them."""
    found = PARTS.fullmatch(url)
    node = NODE.fullmatch(found["nodes"]) if found else None
    if found is None or node is None:
        return None
    port = int(node["port"] or DEFAULT_PORTS.get(found["scheme"], 5672))
    return node["host"].strip("[]").lower(), port
