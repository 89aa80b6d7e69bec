"""A client of server-sent events: one connection, one event at a time."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.api_server import ApiServer


@dataclass(frozen=True, slots=True)
class Received:
    """One event."""

    name: str
    data: Any
    id: str


class EventReader:
    """An open stream."""

    def __init__(
        self, port: int, path: str, last_event_id: str | None = None, seconds: float = 20.0
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        self._connection.request("GET", path, headers=headers)
        self.response = self._connection.getresponse()
        #: Where to resume.
        self.last_event_id = last_event_id or ""
        self.retry: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def next(self) -> Received | None:
        """The next event, or None at the end of the stream."""
        while (fields := self._block()) is not None:
            self.last_event_id = fields.get("id", self.last_event_id)
            if "retry" in fields:
                self.retry = int(fields["retry"])
            if "data" in fields:
                return Received(fields["event"], json.loads(fields["data"]), self.last_event_id)
        return None

    def wait_for_place(self) -> str:
        """Where the stream is, once it has said so."""
        while not self.last_event_id:
            fields = self._block()
            assert fields is not None, "the stream ended"
            self.last_event_id = fields.get("id", "")
        return self.last_event_id

    def take(self, count: int) -> list[Received]:
        """So many events, which must come."""
        connection = [self.next() for _ in range(count)]
        assert None not in connection, connection
        return connection  # type: ignore[return-value]  # just asserted

    def rest(self) -> list[Received]:
        """Everything until the server ends the stream."""
        return list(iter(self.next, None))

    def _block(self) -> dict[str, str] | None:
        """The fields up to an empty line."""
        fields: dict[str, str] = {}
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if not text:
                return fields
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        return None


def follow(api: ApiServer, job_id: str, last_event_id: str | None = None) -> EventReader:
    """The stream of one job."""
    return EventReader(api.port, f"/jobs/{job_id}/events", last_event_id)


def feed(api: ApiServer, last_event_id: str | None = None, query: str = "") -> EventReader:
    """An open feed that has said where it is: whatever happens from now on will be told."""
    reader = EventReader(api.port, f"/events{query}", last_event_id)
    assert reader.response.status == 200
    reader.wait_for_place()
    return reader


def subjects(received: list[Received]) -> list[str]:
    """Whom the events are about."""
    return [event.data["id"] for event in received]
