"""Live pages: one look for all who watch, each told what it was not told before."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from flask import Flask
from jinja2 import DictLoader

from app.api.http.state import wants_newest
from app.console.live import KEEP_ALIVE, OPENING, LivePages, has_left, rest_seconds
from app.console.page import LivePage, PageRequest
from app.errors import NotFound, TooManyStreams
from models.store.errors import StateStoreUnavailable

TEMPLATE = (
    "<title>{% block title %}x{% endblock %}</title>"
    '<p data-live="one">{% block live_one %}{{ one }}{% endblock %}</p>'
    '<p data-live="two">{% block live_two %} {{ two }} {% endblock %}</p>'
)


class Source:
    """What a page reads; each read waits for the test to let it happen."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"one": 1, "two": "<b>"}
        self.error: Exception | None = None
        self.reads = 0

    def read(self, asked: PageRequest) -> dict[str, Any]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.values


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def page(source: Source) -> LivePage:
    return LivePage("/x", "x.html", source.read, every_seconds=0.02)


@pytest.fixture
def app() -> Flask:
    made = Flask("x")
    made.jinja_loader = DictLoader({"x.html": TEMPLATE})
    return made


@pytest.fixture
def live_pages(app: Flask) -> Iterator[LivePages]:
    made = LivePages(app, most_viewers=3)
    yield made
    made.close()


def always() -> bool:
    return True


def watch(
    live_pages: LivePages, page: LivePage, url: str = "/x", allowed: Callable[[], bool] = always
) -> Iterator[bytes]:
    stream = live_pages.watch(page, PageRequest(url), allowed)
    assert next(stream) == OPENING
    return stream


def next_event(stream: Iterator[bytes]) -> tuple[str, Any]:
    """Its name and data; on a busy machine there may be a comment before it."""
    message = next(message for message in stream if message != KEEP_ALIVE)
    head, _, data = message.partition(b"\ndata: ")
    return head.removeprefix(b"event: ").decode(), orjson.loads(data)


def test_a_viewer_is_told_all_parts_first_and_then_what_changed(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    stream = watch(live_pages, page)
    assert next_event(stream) == ("parts", {"one": "1", "two": "&lt;b&gt;"})
    source.values = {"one": 2, "two": "<b>"}
    assert next_event(stream) == ("parts", {"one": "2"})


def test_all_viewers_of_one_address_share_the_reads(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    streams = [watch(live_pages, page) for _ in range(3)]
    for stream in streams:
        assert next_event(stream)[0] == "parts"
    before, began = source.reads, time.monotonic()
    source.values = {"one": 2, "two": ""}
    for stream in streams:
        assert next_event(stream)[1]["one"] == "2"
    looks = (time.monotonic() - began) / page.every_seconds + 2
    assert source.reads - before <= looks  # and not three times as many


def test_viewers_of_different_addresses_see_their_own(live_pages: LivePages, app: Flask) -> None:
    page = LivePage("/x", "x.html", lambda asked: {"one": asked.url, "two": ""}, every_seconds=0.02)
    first, second = watch(live_pages, page, "/x?a"), watch(live_pages, page, "/x?b")
    assert next_event(first)[1]["one"] == "/x?a"
    assert next_event(second)[1]["one"] == "/x?b"


def test_one_viewer_too_many_is_refused_and_a_place_is_freed(
    live_pages: LivePages, page: LivePage
) -> None:
    streams = [watch(live_pages, page) for _ in range(3)]
    with pytest.raises(TooManyStreams):
        live_pages.watch(page, PageRequest("/x"), always)
    streams[0].close()  # type: ignore[attr-defined]  # it is a generator
    assert live_pages.viewers == 2
    watch(live_pages, page)


def test_a_stream_that_nobody_reads_leaves_no_viewer(live_pages: LivePages, page: LivePage) -> None:
    live_pages.watch(page, PageRequest("/x"), always).close()  # type: ignore[attr-defined]  # a generator
    assert live_pages.viewers == 0
    live_pages.watch(page, PageRequest("/x"), always)  # forgotten at once
    assert live_pages.viewers == 0


def test_nobody_reads_when_nobody_watches(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    of_others = set(threading.enumerate())
    stream = watch(live_pages, page)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    deadline = time.monotonic() + 5
    while any(thread.name == "live page" for thread in {*threading.enumerate()} - of_others):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reads = source.reads
    time.sleep(3 * page.every_seconds)
    assert source.reads == reads


def test_a_store_that_is_away_is_told_once_and_so_is_its_return(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    stream = watch(live_pages, page)
    next(stream)
    source.error = StateStoreUnavailable()
    assert next_event(stream) == ("away", {})
    source.error = None
    # Nothing has changed, but the viewer has to hear that what it sees is true again.
    assert next_event(stream) == ("parts", {})


def test_a_page_that_is_no_more_ends_the_stream(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    stream = watch(live_pages, page)
    next(stream)
    source.error = NotFound()
    assert next_event(stream) == ("gone", {})
    assert next(stream, None) is None


def test_who_may_no_longer_look_is_told_nothing_more(
    live_pages: LivePages, page: LivePage, source: Source
) -> None:
    allowed = [True]
    stream = watch(live_pages, page, allowed=lambda: allowed[0])
    next(stream)
    allowed[0] = False
    source.values = {"one": "secret", "two": ""}
    assert next(stream, None) is None
    assert live_pages.viewers == 0


def test_streams_end_with_the_process(live_pages: LivePages, page: LivePage) -> None:
    stream = watch(live_pages, page)
    next(stream)
    live_pages.close()
    assert next(stream, None) is None
    with pytest.raises(TooManyStreams):
        live_pages.watch(page, PageRequest("/x"), always)


def test_a_fault_in_a_page_is_no_end(
    live_pages: LivePages, page: LivePage, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    stream = watch(live_pages, page)
    next(stream)
    source.error = ZeroDivisionError()
    assert next_event(stream) == ("away", {})
    source.error = None
    assert next_event(stream) == ("parts", {})
    assert "cannot be rendered" in caplog.text


def test_a_quiet_stream_is_kept_alive(
    live_pages: LivePages, app: Flask, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.live.KEEP_ALIVE_SECONDS", 0.01)
    slow = LivePage("/x", "x.html", source.read, every_seconds=30)
    stream = watch(live_pages, slow)
    assert next(stream) == KEEP_ALIVE


def test_a_page_that_never_changes_is_kept_alive_so_that_who_left_is_noticed(
    live_pages: LivePages, page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.live.KEEP_ALIVE_SECONDS", 5 * page.every_seconds)
    stream = watch(live_pages, page)
    assert next_event(stream)[0] == "parts"
    assert [next(stream), next(stream)] == [KEEP_ALIVE] * 2, "looked at five times each"


def test_a_costly_page_is_looked_at_less_often_and_never_forgotten() -> None:
    assert rest_seconds(2.0, 0.001) == 2.0
    assert rest_seconds(2.0, 0.01) == 10.0
    assert rest_seconds(2.0, 10.0) == 20.0
    assert rest_seconds(30.0, 10.0) == 30.0


def test_who_has_closed_the_connection_is_noticed_without_a_write() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not has_left(ours)
        theirs.sendall(b"GET")
        assert not has_left(ours)
        ours.recv(3)
        theirs.close()
        assert has_left(ours)
        ours.close()
        assert has_left(ours)
    assert not has_left(None)


def test_rights_are_asked_for_again_when_keys_were_revoked(
    live_pages: LivePages, source: Source
) -> None:
    allowed = [True]
    slow = LivePage("/x", "x.html", source.read, every_seconds=30)
    stream = watch(live_pages, slow, allowed=lambda: allowed[0])
    allowed[0] = False
    live_pages.check_rights()
    assert next(stream, None) is None


def test_who_comes_is_never_shown_what_is_older_than_its_page(
    live_pages: LivePages, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an action, whose page shows the change: the stream must not take it back."""
    monkeypatch.setattr("app.console.live.rest_seconds", lambda every, took: 60.0)
    costly = LivePage("/x", "x.html", source.read, every_seconds=0.02)
    first = watch(live_pages, costly)
    assert next_event(first)[1]["one"] == "1"
    source.values, began = {"one": 2, "two": ""}, time.monotonic()
    assert next_event(watch(live_pages, costly))[1]["one"] == "2"
    assert time.monotonic() - began < 30, "it does not wait as long as the page rests"
    assert next_event(first)[1]["one"] == "2"


def test_rendering_that_began_before_a_viewer_came_is_not_for_it(
    live_pages: LivePages, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.live.rest_seconds", lambda every, took: 60.0)
    reading, changed = threading.Event(), threading.Event()

    def read(asked: PageRequest) -> dict[str, Any]:
        values = source.values
        reading.set()
        assert changed.wait(10)
        return values

    page = LivePage("/x", "x.html", read, every_seconds=0.02)
    first = watch(live_pages, page)
    assert reading.wait(10)
    second = watch(live_pages, page)
    source.values = {"one": 2, "two": ""}
    changed.set()
    began = time.monotonic()
    assert next_event(second)[1]["one"] == "2"
    assert time.monotonic() - began < 30, "its coming is not forgotten"
    first.close()  # type: ignore[attr-defined]  # it is a generator


def test_page_shows_what_its_viewer_has_just_changed(live_pages: LivePages, app: Flask) -> None:
    """However far a standby is behind: else the change would disappear for a moment."""
    page = LivePage("/x", "x.html", lambda _: {"one": wants_newest()}, every_seconds=0.02)
    stream = live_pages.watch(page, PageRequest("/x"), always)
    assert next(stream) == OPENING
    assert b'"one":"False"' in next(stream)
    changed = live_pages.watch(page, PageRequest("/x"), always, newest_seconds=1.5)
    assert b'"one":"True"' in next(stream)
    assert b'"one":"False"' in next(stream)
    for one in (stream, changed):
        one.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("headers", "newest"),
    [
        ({}, False),
        ({"Cache-Control": "no-cache"}, True),
        ({"Cookie": "fairline_notice=done"}, False),
        ({"Cookie": "fairline_changed=1"}, True),
    ],
)
def test_request_that_follows_a_change_is_for_the_newest(
    app: Flask, headers: dict[str, str], newest: bool
) -> None:
    with app.test_request_context(headers=headers):
        assert wants_newest() == newest
