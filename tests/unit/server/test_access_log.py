"""A line of JSON for every request, and nothing at all unless it is asked for."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from app.log_ids import CALLER
from app.server.access_log import AccessLog
from app.tenants.directory import Caller
from app.tenants.tenant import TenantProfile

DEMO = Caller("abcd1234", b"", TenantProfile(1, "demo"))


class Stream:
    """A response in pieces that the server closes."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"one"
        yield b"three"

    def close(self) -> None:
        self.closed = True


def called(answer: Iterable[bytes], **more: Any) -> tuple[Iterable[bytes], io.StringIO]:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        environ[CALLER] = DEMO
        start_response("202 ACCEPTED", [])
        return answer

    written = io.StringIO()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/jobs",
        "QUERY_STRING": "candidate=Zaphod",
        "REMOTE_ADDR": "127.0.0.1",
        **more,
    }
    return AccessLog(app, written)(environ, lambda *_: lambda _: None), written


def test_a_line_has_who_what_and_how_long() -> None:
    pieces, written = called([b'{"id": 1}'], HTTP_X_REQUEST_ID="r-1")
    assert pieces == [b'{"id": 1}'], "as it was: sent with one write"
    line = json.loads(written.getvalue())
    assert line.pop("time").endswith("Z") and line.pop("milliseconds") >= 0
    assert line == {
        "request_id": "r-1",
        "method": "POST",
        "path": "/jobs",
        "status": 202,
        "bytes": 9,
        "tenant": "demo",
        "key": "abcd1234",
        "address": "127.0.0.1",
    }
    assert "Zaphod" not in written.getvalue()


def test_a_stream_is_logged_once_at_its_end() -> None:
    stream = Stream()
    pieces, written = called(stream)
    assert list(pieces) == [b"one", b"three"] and not written.getvalue()
    for _ in range(2):
        pieces.close()  # type: ignore[attr-defined]  # the server calls it
    assert stream.closed
    assert [json.loads(line)["bytes"] for line in written.getvalue().splitlines()] == [8]


def test_a_request_id_that_may_be_anything_is_replaced() -> None:
    _, written = called([], HTTP_X_REQUEST_ID='"} forged')
    assert len(json.loads(written.getvalue())["request_id"]) == 36
    _, forwarded = called([], HTTP_X_FORWARDED_FOR="203.0.113.5")
    assert json.loads(forwarded.getvalue())["address"] == "127.0.0.1 for 203.0.113.5"
