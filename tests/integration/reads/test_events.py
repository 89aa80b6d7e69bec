"""``/jobs/{id}/events`` and ``/events``: pushed as it happens, resumed without a gap."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest

from app.reads.events.feed import PAGE
from app.reads.events.job_state import MOST_RESULT_BYTES
from app.reads.events.position import NO_JOB
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.jobs.claim import JobRef
from models.jobs.heartbeat import RunReport, beat, report
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.store.session import transaction
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.event_reader import EventReader, Received, feed, follow, subjects
from tests.support.event_rows import (
    announce,
    bring,
    end,
    end_in,
    locked_out,
    start,
    submit_many,
)

SUCCEEDED = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{\n"score": 7}')


def test_stream_tells_the_state_now_then_every_change_and_ends_with_the_job(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit()
    with follow(api, job_id) as reader:
        first = reader.next()
        assert first is not None
        assert (first.name, first.data["status"]) == ("queued", "queued")
        assert reader.retry == 1000
        api_database.leader.run_once(0.0)
        (dispatch,) = [d for d in api_database.dispatch() if d.id == job_id]
        (dispatched,) = reader.take(1)
        ref = JobRef(dispatch.id, dispatch.lease)
        (claim,) = api_database.claim(ref)
        (running,) = reader.take(1)
        report(api_database.engine, "w1", [RunReport(claim.ref, '{"done":1,"total":2}')])
        (progress,) = reader.take(1)
        beat(api_database.engine, "w1", [claim.ref])  # a write that nobody sees
        assert api_database.settle(claim.ref, SUCCEEDED)
        (last,) = reader.rest()
    names = [event.name for event in (dispatched, running, progress, last)]
    assert names == ["dispatched", "running", "progress", "succeeded"]
    assert progress.data["progress"] == {"done": 1, "total": 2}
    assert "result" not in progress.data
    assert last.data == {
        "id": job_id,
        "type": "echo",
        "status": "succeeded",
        "attempt": 1,
        "crashes": 0,
        "cancel_requested_at": None,
        "progress": {"done": 1, "total": 2},
        "error": None,
        "at": last.data["at"],
        "result": {"score": 7},
    }
    headers = reader.response.headers
    assert headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Accel-Buffering"] == "no"
    assert headers["Connection"] == "close"


@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled", "expired"])
def test_ended_job_is_one_event_and_nothing_more_for_who_has_heard_it(
    api: ApiServer, api_database: DatabaseFixture, status: str
) -> None:
    job_id = end(api_database, status)
    with follow(api, job_id) as reader:
        (event,) = reader.rest()
    assert (event.name, event.data["status"]) == (status, status)
    again = api.get(f"/jobs/{job_id}/events", {"Last-Event-ID": event.id})
    assert (again.status, again.body) == (204, b""), "a browser stops asking"


def test_client_that_knows_the_state_hears_only_what_comes_next(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit()
    with follow(api, job_id) as reader:
        (queued,) = reader.take(1)
    with follow(api, job_id, queued.id) as knowing, follow(api, job_id, "?") as ignorant:
        (again,) = ignorant.take(1)
        assert (again.name, again.id) == ("queued", queued.id)
        bring(api_database, job_id, "cancelled")
        for reader in (knowing, ignorant):
            assert [event.name for event in reader.rest()] == ["cancelled"]
    path = f"/jobs/{job_id}/events?last_event_id=whatever"
    assert EventReader(api.port, path).rest()[0].name == "cancelled"


def test_error_stands_in_the_event_and_a_large_result_does_not(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ref = start(api_database)
    fault = Ending(JobStatus.DEAD, 1, error_class=FailureClass.PERMANENT, error_message="no\n")
    assert api_database.settle(ref, fault)
    (dead,) = follow(api, ref.id).rest()
    assert dead.data["error"] == {"class": "PERMANENT", "message": "no\n"}
    ref = start(api_database)
    large = json.dumps("x" * MOST_RESULT_BYTES)
    assert api_database.settle(ref, Ending(JobStatus.SUCCEEDED, 1, result=large))
    (succeeded,) = follow(api, ref.id).rest()
    assert succeeded.data["result"] is None
    assert succeeded.data["result_omitted"] is True


def test_request_to_cancel_a_running_job_is_a_change(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ref = start(api_database)
    with follow(api, ref.id) as reader:
        (running,) = reader.take(1)
        assert running.data["cancel_requested_at"] is None
        api_database.execute("UPDATE jobs SET cancel_requested_at = now() WHERE id = %s", ref.id)
        (asked,) = reader.take(1)
    assert asked.name == "running" and asked.data["cancel_requested_at"] is not None


def test_row_that_is_removed_ends_the_stream(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api_database.submit()
    with follow(api, job_id) as reader:
        reader.take(1)
        api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
        assert reader.rest() == []


def test_job_of_nobody_and_of_others_is_not_found(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    for job_id in (new_id(), api_database.submit(tenant_id=2), "x", "x" * 36):
        assert_problem(api.get(f"/jobs/{job_id}/events"), 404, "NOT_FOUND")


def test_other_methods_get_sane_answers(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api_database.submit()
    for path in (f"/jobs/{job_id}/events", "/events"):
        head = api.request("HEAD", path)
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert "content-length" not in head.headers
        refused = api.request("POST", path, b"{}", {"Content-Type": "application/json"})
        assert_problem(refused, 405, "METHOD_NOT_ALLOWED")
        assert_problem(api.get(f"{path}?colour=red"), 422, "VALIDATION_FAILED")


def test_clients_that_leave_are_noticed_and_leave_nothing_behind(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ref = start(api_database)

    def connections() -> int:
        return sum(
            one.laddr.port == api.port and bool(one.raddr)
            for worker in api.workers()
            for one in worker.net_connections("tcp")
        )

    with follow(api, ref.id) as witness:
        witness.take(1)
        before = connections()
        leaving = [follow(api, ref.id) for _ in range(20)]
        for reader in leaving:
            reader.take(1)
        assert connections() >= before + 20
        for reader in leaving:
            reader.close()
        # The first write is answered with a reset, which the second one meets.
        for done in (1, 2):
            report(api_database.engine, "w1", [RunReport(ref, f'{{"done":{done},"total":null}}')])
            witness.take(1)
        deadline = time.monotonic() + 10
        while connections() > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert connections() <= before


def test_all_watchers_of_one_job_hear_its_end(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit()
    readers = [follow(api, job_id) for _ in range(50)]
    for reader in readers:
        reader.take(1)
    bring(api_database, job_id, "expired")
    for reader in readers:
        assert [event.name for event in reader.rest()] == ["expired"]
        reader.close()


def test_feed_tells_ends_and_events_of_the_tenant_and_of_everybody_but_no_others(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    with feed(api) as reader:
        ids = [end(api_database, status) for status in ("succeeded", "dead", "cancelled")]
        end(api_database, "succeeded", tenant_id=2)
        announce(api_database, "tenant_throttled", 2)
        announce(api_database, "tenant_throttled", 1, '{"pool":\n"medium"}')
        announce(api_database, "dependency_circuit_open", 0, '{"dependency":"claude"}')
        ids.append(end(api_database, "expired"))
        received = reader.take(6)
    assert [event.name for event in received] == [
        *("job_succeeded", "job_dead", "job_cancelled"),
        *("tenant_throttled", "dependency_circuit_open", "late_execution"),
    ]
    assert subjects([*received[:3], received[5]]) == ids
    assert received[0].data == {
        "event": "job_succeeded",
        "id": ids[0],
        "type": "echo",
        "status": "succeeded",
        "attempt": 0,
        "crashes": 0,
        "error": None,
        "at": received[0].data["at"],
    }
    assert received[3].data["detail"] == {"pool": "medium"}
    assert received[4].data["detail"] == {"dependency": "claude"}


def test_feed_without_a_position_starts_now(api: ApiServer, api_database: DatabaseFixture) -> None:
    end(api_database)
    with feed(api) as reader:
        job_id = end(api_database)
        assert subjects(reader.take(1)) == [job_id]


def test_place_is_known_before_the_first_event(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    with feed(api) as reader:
        place = reader.last_event_id
    job_id = end(api_database)
    with feed(api, place) as reader:
        assert subjects(reader.take(1)) == [job_id]
    with EventReader(api.port, f"/events?last_event_id={place}") as reader:
        assert subjects(reader.take(1)) == [job_id]


def test_filter_leaves_out_other_types_but_no_events(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    with feed(api, query="?type=sleep") as reader:
        end(api_database, type="echo")
        job_id = end(api_database, type="sleep")
        announce(api_database, "dependency_circuit_open", 0)
        received = reader.take(2)
    assert received[0].data["id"] == job_id
    assert received[1].name == "dependency_circuit_open"


@pytest.mark.parametrize("position", ["x", "1-", "99999999999-1", f"1-{NO_JOB}", "1-1%00"])
def test_position_that_was_never_given_out_is_refused(api: ApiServer, position: str) -> None:
    answer = api.get(f"/events?last_event_id={position}")
    problem = assert_problem(answer, 422, "VALIDATION_FAILED")
    assert problem["errors"][0]["field"] == "Last-Event-ID"


def test_reader_older_than_retention_starts_with_the_oldest_kept(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    with feed(api) as reader:
        place = reader.last_event_id
    gone, kept = end(api_database), end(api_database)
    api_database.execute("DELETE FROM jobs WHERE id = %s", gone)
    with feed(api, place) as reader:
        assert subjects(reader.take(1)) == [kept]


def test_nothing_is_missed_or_repeated_by_a_reader_who_resumes_while_transactions_interleave(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ids, rolled_back = submit_many(api_database, 60), submit_many(api_database, 10)
    chance = random.Random(9)
    stop = threading.Event()

    def write(mine: list[str]) -> None:
        while mine and not stop.is_set():
            with transaction(api_database.engine) as open_one:
                for _ in range(min(len(mine), chance.randint(1, 4))):
                    end_in(open_one, [mine.pop()])
                    time.sleep(chance.random() * 0.02)  # so that the others overtake

    def change_their_mind() -> None:
        for job_id in rolled_back:
            with transaction(api_database.engine) as open_one:
                end_in(open_one, [job_id])
                time.sleep(0.01)
                open_one.get_transaction().rollback()

    received: list[Received] = []
    with feed(api) as reader:
        position = reader.last_event_id
    writers = [threading.Thread(target=write, args=(ids[n::3],)) for n in range(3)]
    for thread in (*writers, doubter := threading.Thread(target=change_their_mind)):
        thread.start()
    try:
        while len(received) < len(ids):
            with feed(api, position) as reader:
                received += reader.take(min(chance.randint(1, 15), len(ids) - len(received)))
                position = reader.last_event_id
    finally:
        stop.set()
        for thread in (*writers, doubter):
            thread.join()
    assert sorted(subjects(received)) == sorted(ids)
    with feed(api, position) as reader:
        last = end(api_database)
        assert subjects(reader.take(1)) == [last]


def test_one_transaction_that_ends_more_than_a_page_is_told_whole(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ids = submit_many(api_database, 2 * PAGE + 7)
    with feed(api) as reader:
        place = reader.last_event_id
    with transaction(api_database.engine) as one:
        end_in(one, ids)
    with feed(api, place) as reader:
        received = reader.take(PAGE + 3)
    with feed(api, received[-1].id) as reader:
        received += reader.take(len(ids) - len(received))
    assert subjects(received) == ids


def test_reader_that_is_slower_than_the_feed_blocks_nobody_else(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    with feed(api) as reader:
        place = reader.last_event_id
    ids = submit_many(api_database, 1500)
    with api.connect() as wire:
        wire.sendall(
            f"GET /events?last_event_id={place} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        with transaction(api_database.engine) as one:
            end_in(one, ids)
        with feed(api, place) as reader:
            assert subjects(reader.take(len(ids))) == ids
        seen = b""
        while seen.count(b"event: job_cancelled") < len(ids):
            seen += wire.recv(65_536)


def test_streams_outlive_an_outage_and_are_told_what_happened(
    api: ApiServer, api_database: DatabaseFixture, postgres: Running[EmbeddedPostgres]
) -> None:
    job_id = api_database.submit()
    with follow(api, job_id) as job, feed(api) as tenant:
        job.take(1)
        with locked_out(api_database, postgres):
            answer = api.get(f"/jobs/{job_id}/events")
            assert_problem(answer, 503, "STATE_STORE_UNAVAILABLE")
        bring(api_database, job_id, "cancelled")
        assert [event.name for event in job.rest()] == ["cancelled"]
        assert subjects(tenant.take(1)) == [job_id]
