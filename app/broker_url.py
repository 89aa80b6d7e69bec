"""Broker URLs that name several nodes of a RabbitMQ cluster.

PURE. ``amqp://user:password@a:5672,b:5672/vhost`` names two nodes, and so does kombu's own
``amqp://…@a//;amqp://…@b//``, where each has its own user and password.
"""

from __future__ import annotations

import re

#: As kombu has it: what stands before the last ``@`` of the part before the path is a user.
PARTS = re.compile(r"(?P<scheme>amqps?)://(?P<user>[^/?#]*@)?(?P<nodes>[^/?#]*)(?P<rest>.*)")
NODE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:,;@\[\]\s]+)(?::(?P<port>\d{1,5}))?")
DEFAULT_PORTS = {"amqps": 5671}
SCHEMES = "must be the URL of a broker: amqp://…, amqps://… or filesystem:///folder"
SEVERAL = "names several brokers: each must be host or host:port, as amqp://user:password@a,b//"


def node_urls(text: str) -> list[str]:
    """The URL of each node; errors do not show what was given, which contains passwords."""
    if text.startswith("filesystem:///"):
        return [text]
    if not text.startswith(("amqp://", "amqps://")):
        raise ValueError(SCHEMES)
    return [url for part in text.split(";") for url in _one_each(part)]


def _one_each(text: str) -> list[str]:
    found = PARTS.fullmatch(text)
    if found is None:
        raise ValueError(f"is not a broker URL, or {SEVERAL}")
    nodes = found["nodes"].split(",")
    if nodes == [""]:  # this machine
        return [text]
    if not all(NODE.fullmatch(node) and _port(node) < 65_536 for node in nodes):
        raise ValueError(SEVERAL if len(nodes) > 1 else "must name a broker as host or host:port")
    start = f"{found['scheme']}://{found['user'] or ''}"
    return [f"{start}{node}{found['rest']}" for node in nodes]


def _port(node: str) -> int:
    found = NODE.fullmatch(node)
    return int(found["port"] or 0) if found else 0


def address(url: str) -> tuple[str, int] | None:
    """Host and port of a URL of :func:`node_urls`, as a connection to it reports them."""
    found = PARTS.fullmatch(url)
    node = NODE.fullmatch(found["nodes"]) if found else None
    if found is None or node is None:
        return None
    port = int(node["port"] or DEFAULT_PORTS.get(found["scheme"], 5672))
    return node["host"].strip("[]").lower(), port
