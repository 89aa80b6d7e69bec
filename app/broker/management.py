"""Client of RabbitMQ's management API, with the user of the broker's URL: reads and sets policies.

It is looked for at its usual port, and only if the broker is at its own: what listens there beside
a broker at another port may belong to somebody else.
"""

from __future__ import annotations

import json
from base64 import b64encode
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from ssl import create_default_context
from typing import Any, Self
from urllib.parse import quote

from kombu.utils.url import url_to_parts

from app.broker_url import DEFAULT_PORTS, address

#: By the port of the broker.
PORTS = {5672: 15672, 5671: 15671}
ANSWER_SECONDS = 1.0


class ManagementApi:
    """That of one node."""

    def __init__(self, url: str, port: int) -> None:
        scheme, host, _, user, password, path, query = url_to_parts(url)
        self._https = scheme in DEFAULT_PORTS
        self._authorities = query.get("ssl_ca_certs")
        self.host, self.port = str(host), port
        self.vhost = path or "/"
        credentials = f"{user or 'guest'}:{password or 'guest'}".encode()
        self._headers = {
            "Authorization": f"Basic {b64encode(credentials).decode()}",
            "Content-Type": "application/json",
        }

    @classmethod
    def of(cls, url: str) -> Self | None:
        """That of the node with this broker URL; None if it is not known where it is."""
        found = address(url)
        port = PORTS.get(found[1]) if found else None
        return None if port is None else cls(url, port)

    def version(self) -> str:
        """That of RabbitMQ; empty if the user may not see it."""
        return str(self.ask("GET", "/api/overview")[1].get("rabbitmq_version", ""))

    def keep_policy(self, policy: dict[str, Any]) -> HTTPStatus:
        """Set the policy unless it is the same already; the answer, which may be a refusal."""
        path = f"/api/policies/{quote(policy['vhost'], safe='')}/{policy['name']}"
        status, known = self.ask("GET", path)
        if status == HTTPStatus.OK and policy.items() <= known.items():
            return status
        if status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            status, _ = self.ask("PUT", path, policy)
        return status

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        connection = self._connection()
        try:
            connection.request(method, path, json.dumps(body) if body else None, self._headers)
            answer = connection.getresponse()
            text = answer.read()
            found = json.loads(text) if answer.status == HTTPStatus.OK else {}
            return HTTPStatus(answer.status), found if isinstance(found, dict) else {}
        finally:
            connection.close()

    def _connection(self) -> HTTPConnection:
        if not self._https:
            return HTTPConnection(self.host, self.port, timeout=ANSWER_SECONDS)
        trusted = create_default_context(cafile=self._authorities)
        return HTTPSConnection(self.host, self.port, timeout=ANSWER_SECONDS, context=trusted)
