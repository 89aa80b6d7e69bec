"""What serves the streams of a process: its order, its memory, its rest, its statements."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from app.api.http.problems import problem_of
from app.errors import TenantStreamsExceeded, TooManyStreams
from app.reads.events import Watch
from app.reads.events import watch as watch_module
from app.reads.events.feed import PAGE, READ_ENDS, READ_ENTRIES, read_ends, read_entries
from app.reads.events.job_state import READ_CHANGED
from app.reads.events.position import NO_JOB
from app.reads.events.stream import ROOM
from models.store.session import transaction
from tests.support.api_server import serving
from tests.support.database_fixture import DatabaseFixture
from tests.support.event_reader import feed, follow
from tests.support.event_rows import announce, bring, end, end_in, submit_many


def test_older_transaction_that_commits_later_is_still_told_and_told_first(
    api_database: DatabaseFixture,
) -> None:
    engine = api_database.engine
    early, late = submit_many(api_database, 2)
    here = read_ends(engine, [1])[1].position
    with transaction(engine) as older:
        end_in(older, [early])
        bring(api_database, late, "cancelled")
        announce(api_database, "dependency_circuit_open", 0)
        # A reader who was told of the younger one now would never come to the older one.
        assert read_entries(engine, [(1, here)]) == [[]]
        assert read_ends(engine, [1])[1].position == here
    (page,) = read_entries(engine, [(1, here)])
    assert [entry.position.job_id for entry in page] == [early, late, NO_JOB]
    assert sorted(entry.position for entry in page) == [entry.position for entry in page]


def test_slow_reader_is_not_buffered_for_and_gets_everything_in_the_end(
    api_database: DatabaseFixture,
) -> None:
    watch = Watch(api_database.engine, 1.5)
    messages = watch.open_feed(1, None)
    next(messages)
    (stream,) = watch._feeds
    ids = submit_many(api_database, ROOM + 3 * PAGE)
    with transaction(api_database.engine) as one:
        end_in(one, ids)
    deadline = time.monotonic() + 5
    while stream.has_room() and time.monotonic() < deadline:
        time.sleep(0.01)
    for _ in range(3):
        watch.look()
    assert ROOM <= len(stream._waiting) <= ROOM + PAGE
    told = b""
    while told.count(b"event: job_cancelled") < len(ids):
        told += next(messages)
    lines = [line for line in told.split(b"\n") if line.startswith(b"data: ")]
    assert [json.loads(line[6:])["id"] for line in lines] == ids
    watch.close()
    assert list(messages) == []


def test_nobody_is_asked_for_while_nobody_listens(
    api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)
    watch = Watch(api_database.engine, 1.5)
    look = watch.look
    monkeypatch.setattr(watch, "look", lambda **_: (looks.release(), look())[1])
    job_id = api_database.submit()
    messages = [watch.open_job(1, job_id, None), watch.open_feed(1, None)]
    assert watch.count == 0, "a stream that is never read from takes no place"
    for stream in messages:
        next(stream)
    assert watch.count == 2
    assert looks.acquire(timeout=15) and looks.acquire(timeout=15)
    for stream in messages:
        stream.close()  # type: ignore[attr-defined]  # a generator
    assert (watch.count, watch._jobs, watch._feeds) == (0, {}, set())
    while looks.acquire(timeout=0.6):
        pass  # the one that was under way
    assert not looks.acquire(timeout=0.6)
    with watch._changing:
        assert not watch._has_streams.is_set()
    watch.close()


def test_process_that_has_enough_streams_says_so(api_database: DatabaseFixture) -> None:
    watch = Watch(api_database.engine, 1.5, most_streams=1)
    first = watch.open_feed(1, None)
    next(first)
    with pytest.raises(TooManyStreams) as refusal:
        watch.open_job(1, api_database.submit(), None)
    answer = problem_of(refusal.value)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.json["code"] == "TOO_MANY_STREAMS"
    ended = end(api_database)
    assert len(list(watch.open_job(1, ended, None))) == 1, "one event takes no place"
    watch.close()
    list(first)


def test_one_tenant_has_half_of_the_streams_at_most(api_database: DatabaseFixture) -> None:
    watch = Watch(api_database.engine, 1.5, most_streams=4)
    job_id = api_database.submit()
    streams = [watch.open_feed(1, None), watch.open_job(1, job_id, None)]
    for stream in streams:
        next(stream)
    for opening in (lambda: watch.open_feed(1, None), lambda: watch.open_job(1, job_id, None)):
        with pytest.raises(TenantStreamsExceeded) as refusal:
            opening()
        answer = problem_of(refusal.value)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
        assert answer.mimetype == "application/problem+json"
        assert answer.json["code"] == "TENANT_STREAMS_EXCEEDED"
        assert answer.json["violated-policies"] == ["event-streams"]
    others = [watch.open_feed(2, None), watch.open_feed(2, None)]
    for stream in others:
        next(stream)
    with pytest.raises(TooManyStreams):
        watch.open_feed(3, None)
    streams.pop(0).close()
    again = watch.open_feed(1, None)
    next(again)
    watch.close()
    for stream in (*streams, *others, again):
        list(stream)
    assert not watch._of_tenants


def test_stream_opened_while_the_process_stops_ends_at_once(api_database: DatabaseFixture) -> None:
    watch = Watch(api_database.engine, 1.5)
    watch.close()
    assert b"retry: 1000" in b"".join(watch.open_feed(1, None))
    assert b"event: queued" in b"".join(watch.open_job(1, api_database.submit(), None))


def test_looks_walk_the_indexes_however_long_the_tables_have_grown(engine: Engine) -> None:
    database = DatabaseFixture(engine)
    database.execute("""
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, ended_xid)
        SELECT gen_random_uuid(), 1 + n %% 3, 'echo', 'medium', '{}', 'succeeded',
               (n / 10 + 1)::text::xid8
        FROM generate_series(1, 30000) AS n""")
    database.execute("""
        INSERT INTO events (tenant_id, kind, xid)
        SELECT n %% 3, 'dependency_circuit_open', (n / 10 + 1)::text::xid8
        FROM generate_series(1, 30000) AS n""")
    database.execute("ANALYZE jobs")
    database.execute("ANALYZE events")
    ids = [str(row[0]) for row in database.query("SELECT id FROM jobs LIMIT 500")]
    watched = {"ids": f"{{{','.join(ids)}}}", "seen": f"{{{','.join('1' for _ in ids)}}}"}
    assert "jobs_pkey" in explain(database, READ_CHANGED, watched)
    for places in (1, 20):
        parameters = {
            "shift": 0,
            "tenants": [1] * places,
            "xids": ["2900"] * places,
            "event_ids": [0] * places,
            "job_ids": [NO_JOB] * places,
        }
        for sql in (READ_ENTRIES, READ_ENDS):
            plan = explain(database, sql, parameters)
            assert "jobs_ended" in plan and "events_feed" in plan


def explain(database: DatabaseFixture, sql: str, parameters: dict[str, Any]) -> str:
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN {sql}", parameters)
        plan = "\n".join(row[0] for row in rows)
    assert "Seq Scan" not in plan.replace("Seq Scan on pg_database", ""), plan
    return plan


def test_stop_of_the_process_ends_streams_at_once_and_costs_no_patience(
    api_database: DatabaseFixture, services_home: Path
) -> None:
    url = api_database.engine.url.render_as_string(hide_password=False)
    job_id = api_database.submit()
    with serving(url, services_home / "logs", api_workers=1) as api:
        with follow(api, job_id) as job, feed(api) as tenant:
            job.take(1)
            began = time.monotonic()
            (worker,) = api.workers()
            worker.terminate()
            assert job.rest() == [] and tenant.rest() == []
            assert time.monotonic() - began < 7, "ten seconds are for requests that end"
            worker.wait(8)  # less than the ten it is given to finish requests
        with follow(api, job_id, job.last_event_id) as job:
            bring(api_database, job_id, "cancelled")
            assert [event.name for event in job.rest()] == ["cancelled"]


def test_those_who_wait_for_an_end_are_bounded_in_all_and_by_tenant(
    api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "MOST_WAITERS", 2)
    monkeypatch.setattr(watch_module, "MOST_WAITERS_OF_TENANT", 1)
    watch, job_id = Watch(api_database.engine, 1.5), api_database.submit()
    with ThreadPoolExecutor() as callers:
        first = callers.submit(watch.wait_for_end, 1, job_id, 20.0)
        wait_until(lambda: watch.count == 1)
        assert not watch.wait_for_end(1, job_id, 20.0), "one of a tenant"
        second = callers.submit(watch.wait_for_end, 2, job_id, 20.0)
        wait_until(lambda: watch.count == 2)
        assert not watch.wait_for_end(3, job_id, 20.0), "two in all"
        api_database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", job_id)
        assert first.result(15) and second.result(15)
    assert (watch.count, watch._jobs, watch._waiters) == (0, {}, {})
    watch.close()


def test_a_wait_ends_with_the_process_with_its_key_and_for_a_row_that_is_gone(
    api_database: DatabaseFixture,
) -> None:
    watch = Watch(api_database.engine, 1.5)
    jobs = [api_database.submit() for _ in range(3)]
    with ThreadPoolExecutor() as callers:
        gone, revoked, stopped = (
            callers.submit(watch.wait_for_end, 1, job_id, 20.0, key)
            for job_id, key in zip(jobs, ("a", "b", "c"), strict=True)
        )
        wait_until(lambda: watch.count == 3)
        api_database.execute("DELETE FROM jobs WHERE id = %s", jobs[0])
        assert gone.result(15)
        watch.end_of_keys({"b"})
        assert revoked.result(15)
        watch.close()
        assert stopped.result(15)
    assert watch.wait_for_end(1, jobs[2], 20.0), "at once: it has stopped"


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
