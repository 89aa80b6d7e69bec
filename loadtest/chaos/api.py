"""The few calls a client makes, over one connection that is opened again when it breaks."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said; status 0 means nothing."""

    status: int
    document: Any = None
    headers: dict[str, str] | None = None

    @property
    def next_page(self) -> str | None:
        """Where the answer goes on, if it does."""
        link = (self.headers or {}).get("link", "")
        return link[link.index("<") + 1 : link.index(">")] if 'rel="next"' in link else None


class Api:
    """One client. Not for concurrent use."""

    def __init__(self, port: int, seconds: float = 10.0) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request; a connection that cannot be made or breaks is an answer of status 0."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data else {}
        try:
            self._connection.request(method, path, data, {**sent, **(headers or {})})
            response = self._connection.getresponse()
            read = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return Answer(0)
        found = {name.lower(): value for name, value in response.getheaders()}
        is_json = "json" in found.get("content-type", "")
        return Answer(response.status, json.loads(read) if read and is_json else None, found)

    def status(self, method: str, path: str) -> int:
        """The status alone."""
        return self.call(method, path).status

    def leaderboard(self, role: str) -> Iterator[dict[str, Any]]:
        """Every entry of a role, page by page."""
        page: str | None = f"/leaderboard?role={role}&limit=500"
        while page:
            answer = self.call("GET", page)
            if answer.status != 200:
                raise ConnectionError(f"{page} answers {answer.status}: {answer.document}")
            yield from answer.document["entries"]
            page = answer.next_page
