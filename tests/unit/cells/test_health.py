"""Which cells are away: found out by a question, and only after a suspicion."""

from __future__ import annotations

import threading

import pytest

from app.cells.health import CellHealth
from models.store.errors import StateStoreUnavailable
from tests.support.waiting import wait_for


class Databases:
    """Databases that answer or not; counts questions."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.failures = 0
        self.asked: list[str] = []
        self.answer = threading.Event()
        self.answer.set()

    def probe(self, cell: str) -> None:
        self.asked.append(cell)
        self.answer.wait(5)
        if self.failures:
            self.failures -= 1
            raise StateStoreUnavailable("once")
        if cell in self.down:
            raise StateStoreUnavailable("down")


@pytest.fixture
def databases() -> Databases:
    return Databases()


@pytest.fixture
def health(databases: Databases) -> CellHealth:
    return CellHealth(databases.probe, probe_seconds=0.01)


def test_a_cell_that_nobody_suspects_is_not_asked(databases: Databases, health: CellHealth) -> None:
    databases.down = {"b"}
    assert not health.is_away("b") and not databases.asked


def test_a_suspicion_alone_makes_no_cell_go_away(databases: Databases, health: CellHealth) -> None:
    health.suspect("a")
    wait_for(lambda: databases.asked == ["a"])
    assert not health.is_away("a")
    wait_for(lambda: not health._probed)
    assert databases.asked == ["a"], "it answered, and is asked no more"


def test_a_cell_is_away_until_it_answers(
    databases: Databases, health: CellHealth, caplog: pytest.LogCaptureFixture
) -> None:
    databases.down = {"b"}
    health.suspect("b")
    wait_for(lambda: health.is_away("b"))
    assert not health.is_away("a")
    databases.down = set()
    wait_for(lambda: not health.is_away("b"))
    assert caplog.messages == ["cell b is away: down", "cell b is back"]


def test_a_cell_that_does_not_answer_once_is_not_away(
    databases: Databases, health: CellHealth, caplog: pytest.LogCaptureFixture
) -> None:
    databases.failures = 1
    health.suspect("a")
    wait_for(lambda: len(databases.asked) == 2)
    wait_for(lambda: not health._probed)
    assert not caplog.messages


def test_a_cell_that_is_silent_is_away_at_once(
    databases: Databases, health: CellHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cells.health.SILENT_SECONDS", 0.0)
    monkeypatch.setattr("app.cells.health.AGAIN_SECONDS", 60.0)
    databases.down = {"b"}
    health.suspect("b")
    wait_for(lambda: health.is_away("b"))
    databases.down = set()
    wait_for(lambda: not health.is_away("b"))


def test_many_suspicions_are_one_question(databases: Databases, health: CellHealth) -> None:
    databases.answer.clear()
    for _ in range(20):
        health.suspect("a")
    databases.answer.set()
    wait_for(lambda: not health._probed)
    assert databases.asked == ["a"]


def test_nothing_is_asked_after_the_end(databases: Databases, health: CellHealth) -> None:
    databases.down = {"b"}
    health.suspect("b")
    wait_for(lambda: health.is_away("b"))
    health.close()
    wait_for(lambda: not health._probed)
    asked = len(databases.asked)
    health.suspect("b")
    assert len(databases.asked) == asked
