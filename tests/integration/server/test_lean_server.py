"""The fast path answers as gunicorn does, whatever is sent and however it arrives."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gevent
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.log_ids import current_request
from app.server import worker as server
from app.server.connections import ClientSocket
from app.server.request import read_plain
from app.server.strict_request import StrictRequest
from loadtest.attack.corpus.framing import (
    LENGTHS,
    NO_HOST_OR_BARE_LINE_FEED,
    TARGETS,
    TELLING,
)
from tests.support.lean_servers import Servers, read_to_the_end, serving

HEAD = b"POST /echo?a=b%20c HTTP/1.1\r\nHost: fairline\r\nContent-Type: text/plain\r\n"
ONE = HEAD + b"Content-Length: 5\r\n\r\nhello"
GET = b"GET /echo HTTP/1.1\r\nHost: fairline\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\n"

#: Lines of heads: what clients send, what attackers send, and what is only strange.
LINES = st.sampled_from(
    [
        *(b"Host: fairline", b"host: other", b"Content-Type: text/plain", b"Accept: */*"),
        *(b"Content-Length: 0", b"Content-Length: 5", b"content-length: 5", b"Content-Length: 05"),
        *(b"Content-Length: +5", b"Content-Length: 5, 5", b"Content-Length: -1"),
        *(
            b"Content-Length: 0x5",
            b"Content-Length: \xb2",
            b"Content-Length:",
            b"Content-Length: 5 ",
        ),
        *(b"Content-Length: 99999999999999999999", b"Content_Length: 5", b"Content-Length : 5"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"TE: trailers"),
        *(b"transfer-encoding: Chunked", b"Transfer-Encoding: gzip, chunked"),
        *(b"Transfer-Encoding: xchunked", b"Transfer_Encoding: chunked", b"Trailer: x"),
        *(b"Connection: close", b"Connection: keep-alive", b"connection: Close"),
        *(b"Connection: close, TE", b"Connection: upgrade", b"Upgrade: h2c", b"Connection:"),
        *(b"Expect: 100-continue", b"Expect: miracles", b"X-Forwarded-Proto: https"),
        *(b"X-Forwarded-Proto: http", b"X-Forwarded-Ssl: on", b"X-Forwarded-Protocol: ssl"),
        *(
            b"X: a",
            b"X: b",
            b"x: c",
            b"X_Y: a",
            b"X-Y:",
            b"X-Y:  spaced \t",
            b"X: \xe9",
            b"X: \x00",
        ),
        *(b" folded", b"\tfolded", b": nameless", b"no colon", b"X y: z", b"X: a\rb", b"X: a\nb"),
        *(b"SCRIPT_NAME: /x", b"Script-Name: /x", b"X: " + b"y" * 9000, b"X.Y: a", b"\xc3: a"),
        *(b"Cookie: a=b", b"Cookie: c=d", b"If-None-Match: *", b"Authorization: Bearer x"),
    ]
)
STARTS = st.sampled_from(
    [
        *(b"GET /echo HTTP/1.1", b"POST /echo HTTP/1.1", b"HEAD /echo HTTP/1.1", b"PUT / HTTP/1.1"),
        *(b"DELETE /a/b?c=d?e HTTP/1.1", b"GET /echo HTTP/1.0", b"POST /unread HTTP/1.1"),
        *(b"GET //echo HTTP/1.1", b"GET /a//b HTTP/1.1", b"GET /a%2Fb%00%ff?%20 HTTP/1.1"),
        *(b"GET /a#b HTTP/1.1", b"GET /a?b#c HTTP/1.1", b"GET http://x/y HTTP/1.1"),
        *(
            b"GET ?x HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"CONNECT x:1 HTTP/1.1",
            b"GET /\xe9 HTTP/1.1",
        ),
        *(b"get /echo HTTP/1.1", b"G@T /echo HTTP/1.1", b"GET  /echo HTTP/1.1", b"GET /echo"),
        *(
            b"GET /echo HTTP/1.2",
            b"GET /echo HTTP/2.0",
            b"GET /e cho HTTP/1.1",
            b"\r\nGET / HTTP/1.1",
        ),
        *(b"GET /\x7f HTTP/1.1", b"GET /" + b"a" * 5000 + b" HTTP/1.1", b"GET /;x:y[ HTTP/1.1"),
        *(b"PROPFIND /echo HTTP/1.1", b"GET /none HTTP/1.1", b"GET /known HTTP/1.1"),
        *(b"GET /stream HTTP/1.1", b"HEAD /stream HTTP/1.1", b"GET /x/events HTTP/1.1"),
        *(b"GET /stream HTTP/1.0", b"GET /written HTTP/1.1", b"GET /long HTTP/1.1"),
    ]
)
BODIES = st.sampled_from(
    [b"", b"hello", b"hel", b"hello!", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", GET]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, possibly malformed."""
    host = draw(st.sampled_from([b"Host: fairline"] * 9 + [b"X-Host: none"]))
    lines = [draw(STARTS), host, *draw(st.lists(LINES, max_size=5))]
    end = draw(st.sampled_from([b"\r\n"] * 9 + [b"\n"]))
    return end.join([*lines, b"", b""]) + draw(BODIES)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Requests in the chunks in which they arrive."""
    stream = b"".join(draw(st.lists(st.one_of(requests(), st.just(ONE)), min_size=1, max_size=3)))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=2)))
    return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]


PLACES = [
    *(b"/none", b"/known", b"/stream", b"/written", b"/long", b"/unread", b"/x/events", b"/split"),
]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with serving() as started:
        yield started


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams())
@example([HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET])
@example([HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello" + GET])
@example([HEAD + b"X: a\r\n Content-Length: 5\r\n\r\nhello" + GET])
@example([b"\r\n" + GET, b"\r\n\r\n" + GET])
@example([b"GET /echo HTTP/1.1\nX: \x00\nX: " + b"y" * 9000 + b"\n\n" + GET])
@example([GET.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + ONE])
def test_both_ways_answer_the_same(servers: Servers, pieces: list[bytes]) -> None:
    servers.both(*pieces)


@pytest.mark.parametrize("framed", [b"", b"Content-Length: 5\r\n"])
def test_every_header_means_the_same_to_both(servers: Servers, framed: bytes) -> None:
    for lines in TELLING:
        servers.both(POST + framed + lines + b"\r\n\r\nhello" + GET)
        if not lines.startswith(b"Host"):
            servers.both(POST + b"Host: a\r\n" + framed + lines + b"\r\n\r\nhello" + GET)


def test_every_length_means_the_same_to_both(servers: Servers) -> None:
    for text in LENGTHS:
        servers.both(POST + b"Host: a\r\nContent-Length: " + text + b"\r\n\r\nhello" + GET)


@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n", b"\n"])
def test_every_path_means_the_same_to_both(servers: Servers, before: bytes) -> None:
    for target in TARGETS:
        servers.both(before + b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n" + GET)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"CONNECT", b"PROPFIND", b"get"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1", b"1.2"])
def test_every_answer_looks_the_same(servers: Servers, method: bytes, version: bytes) -> None:
    for place in PLACES:
        head = method + b" " + place + b" HTTP/" + version + b"\r\nHost: a\r\n\r\n"
        servers.both(head + GET)


def test_request_may_be_cut_anywhere(servers: Servers) -> None:
    whole = servers.both(ONE + GET)
    assert whole.count(b"HTTP/1.1 200 OK") == 2
    for cut in range(1, len(ONE + GET)):
        pieces = [(ONE + GET)[:cut], (ONE + GET)[cut:]]
        assert servers.exchange(servers.lean, pieces) == whole, cut


def test_requests_that_arrive_together_are_answered_in_order(servers: Servers) -> None:
    stream = b"".join(GET.replace(b"/echo", b"/%d" % number) for number in range(50))
    answers = servers.both(stream).split(b"HTTP/1.1 200 OK")[1:]
    paths = [json.loads(answer.partition(b"\r\n\r\n")[2])[0]["PATH_INFO"] for answer in answers]
    assert paths == [f"/{number}" for number in range(50)]


@pytest.mark.parametrize("head", NO_HOST_OR_BARE_LINE_FEED)
def test_no_host_and_bare_line_feeds_are_a_400_to_both(servers: Servers, head: bytes) -> None:
    answers = servers.both(head + GET)
    assert answers.startswith(b"HTTP/1.1 400 ") and answers.count(b"HTTP/1.1 ") == 1
    assert servers.both(b"GET /echo HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 OK")


def test_large_bodies_come_through_and_the_next_request_too(servers: Servers) -> None:
    for size in (8_192, 16_384, 16_385, 300_000):
        head = HEAD + b"Content-Length: %d\r\n\r\n" % size
        answers = servers.both(head + b"x" * size + GET).split(b"HTTP/1.1 200 OK")[1:]
        assert json.loads(answers[0].partition(b"\r\n\r\n")[2])[1] == "x" * size
        assert len(answers) == 2


def test_body_that_nobody_read_is_not_the_next_request(servers: Servers) -> None:
    for size in (0, 100, 100_000):
        smuggled = GET + b"x" * size
        head = b"POST /unread HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
        for pieces in ([head + smuggled + GET], [head, smuggled, GET]):
            assert servers.both(*pieces).count(b"HTTP/1.1 200 OK") == 2


def test_header_with_a_line_break_is_never_sent(servers: Servers) -> None:
    answer = servers.both(b"GET /split HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"Set-Cookie" not in answer


def test_application_that_fails_is_an_error_and_its_connection_ends(servers: Servers) -> None:
    assert servers.both(b"GET /fails HTTP/1.1\r\nHost: a\r\n\r\n" + GET).count(b"HTTP/1.1 ") == 1
    broken = servers.exchange(servers.lean, [b"GET /breaks HTTP/1.1\r\nHost: a\r\n\r\n" + GET])
    assert broken.count(b"HTTP/1.1 ") == 1
    assert broken.endswith(b"\r\n\r\nhalf")


def test_plain_requests_take_the_short_way(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("gunicorn was asked")

    monkeypatch.setattr(server.Serving, "_by_gunicorn", refuse)
    browser = (
        GET[:-2] + b"Accept: */*\r\nConnection: keep-alive\r\nX-Forwarded-Proto: https\r\n\r\n"
    )
    last = GET[:-2] + b"Connection: close\r\n\r\n"
    sent = [HEAD + b"Content-Length: 5\r\n\r\n", b"hello" + browser + last]
    assert servers.exchange(servers.lean, sent).count(b"HTTP/1.1 200 OK") == 3


def test_a_request_is_known_to_the_log_until_its_answer_is_written(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    between: list[Any] = []
    within: list[Any] = []

    def read(*given: Any) -> Any:
        between.append(current_request.get())
        return read_plain(*given)

    def telling(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        current_request.set(environ)
        start_response("200 OK", [("Content-Length", "2")])

        def pieces() -> Iterator[bytes]:
            for _ in range(2):
                gevent.sleep(0)
                within.append((current_request.get() or {})["PATH_INFO"])
                yield b"x"

        return pieces()

    monkeypatch.setattr(server, "read_plain", read)
    monkeypatch.setattr(servers.lean, "wsgi", telling)
    stream = GET.replace(b"/echo", b"/x/events")  # which takes gunicorn's way
    assert servers.exchange(servers.lean, [GET + stream + GET]).count(b"HTTP/1.1 200 OK") == 3
    assert between == [None, None, None]
    assert within == ["/echo", "/echo", "/x/events", "/x/events", "/echo", "/echo"]


def test_silent_connection_is_closed_in_time() -> None:
    with (
        serving(keepalive=1) as servers,
        servers.connect(servers.lean) as silent,
        servers.connect(servers.lean) as dripping,
    ):
        dripping.sendall(GET[:10])
        began = time.monotonic()
        assert read_to_the_end(silent) == (b"", False)
        assert read_to_the_end(dripping)[0] == b""
        assert time.monotonic() - began < 12


def test_head_that_trickles_in_is_a_408_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StrictRequest, "head_seconds", 1.0)
    with serving() as servers, servers.connect(servers.lean) as wire:
        wire.sendall(GET)
        assert wire.recv(65_536).startswith(b"HTTP/1.1 200 OK")
        began = time.monotonic()
        wire.sendall(GET[:-2])
        wire.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - began < 10:
            wire.sendall(b"X: y\r\n")
            with suppress(TimeoutError):
                answer = wire.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert 0.9 < time.monotonic() - began < 9


def test_endless_head_is_refused_early(servers: Servers) -> None:
    answer = servers.exchange(servers.lean, [GET[:-2] + b"X: y\r\n" * 12_000])
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # which a reset may lose


@pytest.mark.parametrize("path", [b"/echo", b"/x/events"])
def test_stream_that_nobody_reads_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    ended = threading.Event()

    def endless(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        try:
            while True:
                yield b"x" * 65_536
        finally:
            ended.set()

    monkeypatch.setattr(ClientSocket, "write_seconds", 0.5)
    with serving() as servers, servers.connect(servers.lean) as wire:
        monkeypatch.setattr(servers.lean, "wsgi", endless)
        wire.sendall(GET.replace(b"/echo", path))
        assert ended.wait(20)
        with pytest.raises(ConnectionResetError):
            read_until_closed(wire)
        deadline = time.monotonic() + 15  # its greenlet ends after the socket was closed
        while servers.lean.connections.count and time.monotonic() < deadline:
            time.sleep(0.01)
        assert servers.lean.connections.count == 0


def read_until_closed(wire: socket.socket) -> None:
    while wire.recv(65_536):
        pass


def test_process_that_is_to_stop_answers_and_closes() -> None:
    with (
        serving() as servers,
        servers.connect(servers.lean) as silent,
        servers.connect(servers.lean) as busy,
    ):
        busy.sendall(ONE)
        assert b"Connection: keep-alive" in busy.recv(65_536)
        servers.lean.alive = False
        busy.sendall(GET)
        assert b"Connection: close" in read_to_the_end(busy)[0]
        assert read_to_the_end(silent) == (b"", False)


def test_who_sends_thousands_at_once_does_not_keep_others_waiting() -> None:
    many = 20_000

    def flood(wire: socket.socket) -> None:
        with suppress(OSError):
            wire.sendall(GET * many)

    with (
        serving() as servers,
        servers.connect(servers.lean) as greedy,
        servers.connect(servers.lean) as modest,
    ):
        sender = threading.Thread(target=flood, args=(greedy,))
        sender.start()
        answered = greedy.recv(65_536).count(b"HTTP/1.1 200")
        began = time.monotonic()
        modest.sendall(ONE)
        assert modest.recv(65_536)
        waited = time.monotonic() - began
        while answered < many:
            answered += greedy.recv(1_048_576).count(b"HTTP/1.1 200")
        took = time.monotonic() - began
        sender.join(15)
    assert waited < took / 4, f"{waited:.2f} s of {took:.2f} s"
