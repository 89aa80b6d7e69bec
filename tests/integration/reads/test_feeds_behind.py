"""Feeds that begin far back cost the others of a process no more than a few pages at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine

from app.reads.events import Watch
from app.reads.events import feed as feed_module
from app.reads.events import watch as watch_module
from app.reads.events.feed import PAGE, FeedEntry, Place, read_entries
from app.reads.events.position import START, Position
from app.reads.events.stream import FeedStream
from models.store.session import transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.event_rows import announce, end_in, submit_many

#: Places of a tenant that are behind and may be read in one pass.
MOST_OF_TENANT = 5
#: Documents that may be written without a pause.
MOST_AT_ONCE = 50


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def watch(database: DatabaseFixture) -> Iterator[Watch]:
    """Without its thread: the test looks."""
    watch = Watch(database.engine, 1.5)
    watch._reader = threading.current_thread()
    yield watch
    watch.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Place]]:
    """The places of every statement so far."""
    asked: list[list[Place]] = []

    def reading(engine: Engine, places: Sequence[Place]) -> list[list[FeedEntry]]:
        asked.append(list(places))
        return read_entries(engine, places)

    monkeypatch.setattr(watch_module, "read_entries", reading)
    return asked


def ended(database: DatabaseFixture, count: int) -> list[Position]:
    """Ends of so many jobs, as the feed has them."""
    with transaction(database.engine) as connection:
        end_in(connection, submit_many(database, count))
    place, found = START, list[Position]()
    while len(found) < count:
        [page] = read_entries(database.engine, [(1, place)])
        found += [entry.position for entry in page]
        place = found[-1]
    return found


def follow(watch: Watch, after: Position | None, **fields: Any) -> tuple[FeedStream, Any]:
    """A stream that was opened, and its messages."""
    known, tenant_id = set(watch._feeds), fields.pop("tenant_id", 1)
    messages = watch.open_feed(tenant_id, None if after is None else str(after), **fields)
    next(messages)
    [stream] = watch._feeds - known
    return stream, messages


def test_what_the_only_reader_does_not_want_is_not_written(
    database: DatabaseFixture, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ended(database, PAGE // 2)
    announce(database, "tenant_throttled", 1)
    written = []
    message = feed_module.message
    monkeypatch.setattr(
        feed_module, "message", lambda name, *rest: (written.append(name), message(name, *rest))[1]
    )
    stream, messages = follow(watch, START, job_type="another")
    watch.look()
    assert written == ["tenant_throttled"]
    assert stream.position > found[-1]
    assert b"event: tenant_throttled" in next(messages)


def test_others_have_their_turn_between_parts_of_a_page(
    database: DatabaseFixture, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(database, PAGE)
    steps = []
    message = feed_module.message
    monkeypatch.setattr(
        feed_module, "message", lambda *given: (steps.append("written"), message(*given))[1]
    )
    monkeypatch.setattr(watch_module.time, "sleep", lambda _: steps.append("pause"))
    _, messages = follow(watch, START)
    watch.look()
    first = steps.index("pause")
    assert steps[:first] == ["written"] * MOST_AT_ONCE
    assert steps.count("written") == PAGE
    assert steps.index("pause", first + 1) <= first + 1 + MOST_AT_ONCE
    assert next(messages).count(b"event: job_cancelled") == PAGE


def test_a_few_places_that_are_behind_are_read_of_a_tenant_in_turn(
    database: DatabaseFixture, watch: Watch, asked: list[list[Place]]
) -> None:
    found = ended(database, 3 * PAGE)
    # None of them gets anything, so that all of them always have room.
    behind = [follow(watch, position, job_type="another") for position in found[:12]]
    at_end, _ = follow(watch, None)
    begun = [stream.position for stream, _ in behind]
    for looks in (1, 2, 3):
        asked.clear()
        assert watch.look(), "there is more"
        places = [place for statement in asked for place in statement]
        assert (1, at_end.position) in places, "in every pass"
        assert len(places) <= MOST_OF_TENANT + 1
        moved = [stream.position != start for (stream, _), start in zip(behind, begun, strict=True)]
        assert sum(moved) == min(MOST_OF_TENANT * looks, len(behind)), "none twice before all"
    for _ in range(20):
        watch.look()
    assert {stream.position for stream, _ in behind} == {found[-1]}
    assert not watch.look()


def test_places_of_other_tenants_do_not_wait_for_those_of_one(
    database: DatabaseFixture, watch: Watch, asked: list[list[Place]]
) -> None:
    found = ended(database, 2 * PAGE)
    many = [follow(watch, position, job_type="another") for position in found[:20]]
    assert len(many) > MOST_OF_TENANT
    other, messages = follow(watch, found[0], tenant_id=2)
    announce(database, "dependency_circuit_open", 2)
    watch.look()
    assert other.position > found[0]
    assert b"event: dependency_circuit_open" in next(messages)
    assert sum(map(len, asked)) <= MOST_OF_TENANT + 1


def test_jobs_are_looked_at_between_two_statements_about_feeds(
    database: DatabaseFixture,
    watch: Watch,
    asked: list[list[Place]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ended(database, PAGE)
    followed = [follow(watch, None), follow(watch, found[0], job_type="another")]
    looked_at = []
    look_at_jobs = watch._look_at_jobs
    monkeypatch.setattr(watch_module, "REST_SECONDS", 0.0)
    monkeypatch.setattr(
        watch, "_look_at_jobs", lambda: (looked_at.append(len(asked)), look_at_jobs())[1]
    )
    watch.look()
    assert len(asked) == len(followed)
    assert {0, 1} <= set(looked_at), "before the first and before the second"
