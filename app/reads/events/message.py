"""The wire format of server-sent events."""

from __future__ import annotations

#: Opens every stream: clients that lose it come back after a second.
OPENING = b"retry: 1000\n\n"
#: Nothing happened; the connection is alive.
KEEP_ALIVE = b":\n\n"


def message(name: str, data: bytes, event_id: str, retry_ms: int | None = None) -> bytes:
    """One event. ``data`` is JSON, where line breaks are only between tokens."""
    retry = b"" if retry_ms is None else b"retry: %d\n" % retry_ms
    return b"%bid: %b\nevent: %b\ndata: %b\n\n" % (
        retry,
        event_id.encode(),
        name.replace("\r", " ").replace("\n", " ").encode(),
        data.translate(None, b"\r\n"),
    )


def place(event_id: str) -> bytes:
    """Sets the position from which a client resumes, without an event."""
    return b"id: %b\n\n" % event_id.encode()
