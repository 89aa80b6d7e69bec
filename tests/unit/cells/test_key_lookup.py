"""Keys are looked for in all cells at once; one that does not answer delays its own keys alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest
from flask import Flask

from app.cells.key_lookup import AskedKey, CellsToAsk, FoundKey, KeyLookup, KeyQuestion
from app.errors import CellUnavailable, Unauthenticated
from app.tenants.directory import Caller
from app.tenants.keys import new_key, presented
from app.tenants.tenant import TenantProfile
from models.store.errors import StateStoreUnavailable

#: How long a question may take: a thread of a busy machine begins to ask by then.
SECONDS = 5.0


class FakeDirectory:
    """The keys of a cell, which answers unless it is frozen or down."""

    def __init__(self) -> None:
        self.keys: dict[str, Caller] = {}
        self.down = False
        self.groups: list[int] = []
        self.answering = threading.Event()
        self.answering.set()

    def add(self, tenant: str, key: str | None = None) -> str:
        key = key or new_key()
        sent = presented(key)
        assert sent is not None
        self.keys[sent.id] = Caller(sent.id, sent.digest, TenantProfile(1, tenant))
        return f"Bearer {key}"

    def look_up(self, keys: Sequence[str]) -> list[Caller | None]:
        self.groups.append(len(keys))
        assert self.answering.wait(30)
        if self.down:
            raise StateStoreUnavailable
        return [self.keys.get(key) for key in keys]


class FakeCells:
    """Two cells, of which the first is home."""

    def __init__(self) -> None:
        self.directories = {"a": FakeDirectory(), "b": FakeDirectory()}
        self.apps = {
            name: SimpleNamespace(
                extensions={"fairline": SimpleNamespace(tenants=SimpleNamespace(directory=one))}
            )
            for name, one in self.directories.items()
        }
        self.suspected: list[str] = []
        self.suspect = self.suspected.append

    @property
    def home(self) -> Flask:
        return cast(Flask, self.apps["a"])

    def app_of(self, cell: str) -> Any:
        return self.apps[cell]

    def is_away(self, cell: str) -> bool:
        return False

    def cell_names(self) -> Sequence[str]:
        return ("a", "b")

    def placement_of(self, tenant: str) -> None:
        return None


@pytest.fixture
def cells() -> Iterator[FakeCells]:
    made = FakeCells()
    yield made
    for directory in made.directories.values():
        directory.answering.set()


@pytest.fixture
def lookup(cells: FakeCells) -> KeyLookup:
    # Its clock stands: what is remembered stays so, however long a test takes.
    return KeyLookup(cast(CellsToAsk, cells), SECONDS, clock=lambda: 0.0)


def place_of(found: FoundKey | None) -> tuple[str, str | None]:
    assert found is not None
    return found.cell, found.tenant


def test_a_key_is_found_in_its_cell_and_asked_for_once(cells: FakeCells, lookup: KeyLookup) -> None:
    key = cells.directories["b"].add("acme")
    for _ in range(3):
        assert place_of(lookup.find(key)) == ("b", "acme")
    assert cells.directories["b"].groups == [1]


def test_an_unknown_key_is_remembered(cells: FakeCells, lookup: KeyLookup) -> None:
    key = f"Bearer {new_key()}"
    assert lookup.find(key) is None
    assert lookup.find(key) is None
    assert cells.directories["a"].groups == cells.directories["b"].groups == [1]
    assert not cells.suspected


def test_keys_of_a_frozen_cell_delay_no_key_of_another(cells: FakeCells, lookup: KeyLookup) -> None:
    keys = [cells.directories["a"].add(f"quick {n}") for n in range(5)]
    cells.directories["b"].answering.clear()
    refused: list[float] = []

    def ask_for_a_frozen_one() -> None:
        began = time.monotonic()
        with pytest.raises(CellUnavailable):
            lookup.find(cells.directories["b"].add("slow"))
        refused.append(time.monotonic() - began)

    threads = [threading.Thread(target=ask_for_a_frozen_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    took = []
    for key in keys:
        began = time.monotonic()
        assert place_of(lookup.find(key))[0] == "a"
        took.append(time.monotonic() - began)
    assert min(took) < SECONDS / 2, "else all of them would have waited"
    for thread in threads:
        thread.join(30)
    assert len(refused) == 4 and min(refused) > SECONDS / 2 and max(refused) < 3 * SECONDS
    assert set(cells.suspected) == {"b"}
    assert len(cells.directories["b"].groups) == 1, "one connection, however many ask"
    cells.directories["b"].answering.set()
    assert place_of(lookup.find(cells.directories["b"].add("back"))) == ("b", "back")
    assert cells.directories["b"].groups[1:] == [1], "whom nobody waits for is not looked for"


def test_an_answer_after_the_deadline_leaves_the_key_open() -> None:
    key = AskedKey("abcdefgh", b"digest")
    question = KeyQuestion(key, ("a", "b"))
    question.answer("a", None)
    found, missing = question.wait(0.0)
    question.answer("b", Caller(key.id, b"digest", TenantProfile(1, "acme")))
    assert (found, missing) == ((), {"b"}), "not: nobody has it"
    assert question.over


def test_the_application_of_a_cell_that_was_made_anew_is_asked(
    cells: FakeCells, lookup: KeyLookup
) -> None:
    assert lookup.find(f"Bearer {new_key()}") is None
    fresh = FakeDirectory()
    cells.apps["b"].extensions["fairline"].tenants.directory = fresh
    assert place_of(lookup.find(fresh.add("acme"))) == ("b", "acme")


def test_many_threads_may_ask_for_more_keys_than_are_remembered(
    lookup: KeyLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cells.key_lookup.MOST_UNKNOWN", 10)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: lookup.find(f"Bearer {new_key()}"), range(400)))
    assert found == [None] * 400
    assert len(lookup._unknown) <= 10


def test_a_key_that_a_cell_which_is_down_may_know_is_open(
    cells: FakeCells, lookup: KeyLookup
) -> None:
    key = cells.directories["b"].add("acme")
    cells.directories["b"].down = True
    with pytest.raises(CellUnavailable):
        lookup.find(key)
    with pytest.raises(CellUnavailable):
        lookup.find(key)
    assert cells.directories["b"].groups == [1], "and not asked for at each request"
    assert cells.suspected == ["b"]


def test_an_id_without_its_key_must_be_unique_in_all_cells(
    cells: FakeCells, lookup: KeyLookup
) -> None:
    key, other = new_key(), new_key()
    short = key.split("_")[1]
    cells.directories["a"].add("one", key)
    cells.directories["b"].add("two", f"fair_{short}_{other.split('_')[2]}")
    assert place_of(lookup.find(f"Bearer {key}")) == ("a", "one")
    assert place_of(lookup.find(f"Bearer fair_{short}_{other.split('_')[2]}")) == ("b", "two")
    with pytest.raises(Unauthenticated, match="Two API keys"):
        lookup.of_id(short)
