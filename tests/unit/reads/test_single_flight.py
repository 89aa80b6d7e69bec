"""A page for everybody is read once for all who ask at about the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.reads import single_flight
from app.reads.single_flight import SingleFlight


class Clock:
    """Goes on with every look at it, and says when it was looked at so often."""

    def __init__(self, looks: int) -> None:
        self._left = looks
        self._now = 0.0
        self._guard = threading.Lock()
        self.all_asked = threading.Event()

    def monotonic(self) -> float:
        with self._guard:
            self._left -= 1
            self._now += 0.001
            if self._left == 0:
                self.all_asked.set()
            return self._now


def ask_together(
    monkeypatch: pytest.MonkeyPatch, page: SingleFlight[str], make: Callable[[], str], count: int
) -> list[str]:
    """What each is told; all have asked before the first is answered."""
    clock = Clock(count)
    monkeypatch.setattr(single_flight, "time", clock)

    def wait_and_make() -> str:
        assert clock.all_asked.wait(15)
        return make()

    def ask() -> str:
        try:
            return page.read(wait_and_make)
        except ConnectionError as error:
            return str(error)

    with ThreadPoolExecutor(count) as threads:
        return [answer.result(15) for answer in [threads.submit(ask) for _ in range(count)]]


class Store:
    """Counts its reads."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reads = 0
        self._error = error

    def read(self) -> str:
        self.reads += 1
        if self._error is not None:
            raise self._error
        return f"page {self.reads}"


def test_who_asks_together_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight, "FRESH_SECONDS", 0.0)
    store = Store()
    assert ask_together(monkeypatch, SingleFlight(), store.read, 20) == ["page 1"] * 20
    assert store.reads == 1


def test_page_is_told_again_while_it_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    page, store = SingleFlight(), Store()
    assert [page.read(store.read) for _ in range(3)] == ["page 1"] * 3
    monkeypatch.setattr(single_flight, "FRESH_SECONDS", 0.0)
    assert [page.read(store.read) for _ in range(2)] == ["page 2", "page 3"]


def test_how_old_a_value_may_be_is_up_to_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(single_flight.time, "monotonic", lambda: now[0])
    keys, store = SingleFlight[str](), Store()
    assert keys.read(store.read, 3600.0) == "page 1"
    now[0] += 10.0
    assert keys.read(store.read, 3600.0) == "page 1"
    assert keys.read(store.read, 5.0) == "page 2"
    assert keys.read(store.read, 5.0) == keys.read(store.read, 3600.0) == "page 2"


def test_error_is_for_those_who_waited_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page, away, back = SingleFlight(), Store(ConnectionError("away")), Store()
    assert ask_together(monkeypatch, page, away.read, 5) == ["away"] * 5
    assert away.reads == 1
    assert page.read(back.read) == "page 1"
