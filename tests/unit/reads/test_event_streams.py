"""What a client's stream does with fast, slow and vanished readers."""

from __future__ import annotations

import socket
import threading

import pytest

from app.reads.events import stream as module
from app.reads.events.message import KEEP_ALIVE, OPENING, message, place
from app.reads.events.position import of_end, of_event
from app.reads.events.stream import ROOM, FeedStream, JobStream, Stream
from models.jobs.ids import new_id


def test_data_can_not_break_out_of_its_line() -> None:
    sent = message("a\nb", b'{"one":\r\n1}', "7")
    assert sent == b'id: 7\nevent: a b\ndata: {"one":1}\n\n'


def test_what_waits_is_sent_together_and_in_order_before_the_end() -> None:
    stream = Stream()
    stream.send(b"1", b"2")
    stream.send(b"3")
    stream.end()
    assert list(stream.messages()) == [OPENING + b"123"]


def test_reader_is_woken_by_what_happens() -> None:
    stream = JobStream(new_id(), "")
    messages = stream.messages()
    assert next(messages) == OPENING
    threading.Timer(0.05, stream.send, [b"news"]).start()
    assert next(messages) == b"news"


def test_quiet_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.01)
    messages = Stream().messages()
    assert [next(messages) for _ in range(3)] == [OPENING, KEEP_ALIVE, KEEP_ALIVE]


def test_feed_names_its_place_at_once_and_whenever_a_filter_moved_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.01)
    stream = FeedStream(1, of_event(5, 1), "echo")
    messages = stream.messages()
    assert next(messages) == OPENING + place("5-1")
    assert next(messages) == KEEP_ALIVE
    stream.position = of_end(6, new_id())  # left out by the filter
    assert next(messages) == place(str(stream.position))
    assert next(messages) == KEEP_ALIVE


def test_stream_whose_filter_lets_nothing_pass_is_kept_alive_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEEP_ALIVE_SECONDS", 0.1)
    stream = FeedStream(1, of_event(5, 1), "echo")
    messages = stream.messages()
    next(messages)
    said = threading.Event()

    def go_on() -> None:
        for xid in range(6, 1000):
            stream.send()
            stream.position = of_event(xid, 1)
            if said.wait(0.01):
                return

    busy = threading.Thread(target=go_on)
    busy.start()
    kept_alive = next(messages)
    said.set()
    busy.join()
    assert kept_alive.startswith(b"id: ")
    assert stream.position.xid < 900


def test_place_is_not_named_before_what_waits_is_sent() -> None:
    stream = FeedStream(1, of_event(5, 1))
    stream.position = of_event(6, 1)
    assert stream.keep_alive() == KEEP_ALIVE


def test_full_mailbox_has_no_room_until_it_is_taken() -> None:
    stream = Stream()
    messages = stream.messages()
    next(messages)
    for _ in range(ROOM):
        assert stream.has_room()
        stream.send(b"x")
    assert not stream.has_room()
    assert next(messages) == b"x" * ROOM
    assert stream.has_room()


def test_reader_that_stands_still_is_cut_off_in_the_middle_of_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.1)
    near, far = socket.socketpair()
    stream = Stream(wire=near)
    failed = threading.Event()

    def serve() -> None:
        try:
            for sent in stream.messages():
                near.sendall(sent)
        except BrokenPipeError:
            failed.set()

    with near, far:
        server = threading.Thread(target=serve)
        server.start()
        while not failed.wait(0.001):
            if stream.has_room():
                stream.send(b"x" * 10_000)
        server.join(15)
    assert not server.is_alive()


def test_connection_that_failed_in_silence_ends_the_stream() -> None:
    near, far = socket.socketpair()
    with far:
        messages = Stream(wire=near).messages()
        assert next(messages) == OPENING
        near.close()
        assert list(messages) == []
