"""``Prefer: wait``: the ended job in one request, and today's answer where it does not end."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from models.jobs.ids import new_id
from tests.integration.api.test_contract import assert_problem, bring
from tests.integration.api.test_limits import until
from tests.support.api_server import Answer, ApiServer, serving
from tests.support.database_fixture import DatabaseFixture

BODIES: dict[str, dict[str, Any]] = {
    "/jobs": {"type": "echo"},
    "/applications": {"candidate": "alice", "payload": "5 years backend, Go and Python"},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))
ENDED = {"/jobs": "succeeded", "/applications": "scored"}


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(100) as found:
        yield found


def submit(api: ApiServer, path: str, wait: str, **headers: str) -> Answer:
    return api.post(BODIES[path], headers={"Prefer": wait, **headers}, path=path)


def newest(database: DatabaseFixture) -> str | None:
    rows = database.query("SELECT id::text FROM jobs ORDER BY created_at DESC, id DESC LIMIT 1")
    return str(rows[0].id) if rows else None


def arrived(database: DatabaseFixture) -> str:
    until(lambda: newest(database) is not None)
    job_id = newest(database)
    assert job_id is not None
    return job_id


@PATHS
def test_a_submission_is_answered_by_the_job_that_has_ended(
    api: ApiServer, database: DatabaseFixture, callers: ThreadPoolExecutor, path: str
) -> None:
    waiting = callers.submit(submit, api, path, "wait=20")
    job_id = arrived(database)
    time.sleep(0.3)
    assert not waiting.done()
    bring(database, job_id, "succeeded")
    answer = waiting.result(15)
    assert answer.status == 200, answer
    assert answer.headers["preference-applied"] == "wait"
    assert answer.headers["location"] == f"{path}/{job_id}"
    assert answer.headers["fairline-status"] == ENDED[path]
    assert "retry-after" not in answer.headers
    shown = api.get(f"{path}/{job_id}")
    assert (answer.json(), answer.headers["etag"]) == (shown.json(), shown.headers["etag"])


@PATHS
def test_a_submission_that_does_not_end_in_time_is_accepted_as_ever(
    api: ApiServer, database: DatabaseFixture, path: str
) -> None:
    plain = api.post(BODIES[path], path=path)
    answer = submit(api, path, "wait=1")
    assert 0.9 < answer.seconds < 10
    assert answer.status == 202
    assert answer.json()["status"] == plain.json()["status"]
    assert answer.headers["preference-applied"] == "wait"
    assert answer.headers["retry-after"] == plain.headers["retry-after"]
    assert "preference-applied" not in plain.headers


@PATHS
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_waits_for_the_end(
    api: ApiServer,
    database: DatabaseFixture,
    callers: ThreadPoolExecutor,
    path: str,
    method: str,
) -> None:
    job_id = api.post(BODIES[path], path=path).json()["id"]
    before = api.get(f"{path}/{job_id}")
    asked = {"Prefer": "respond-async, wait=20", "If-None-Match": before.headers["etag"]}
    waiting = callers.submit(api.request, method, f"{path}/{job_id}", None, asked)
    time.sleep(0.3)
    assert not waiting.done()
    bring(database, job_id, "dead")
    answer = waiting.result(15)
    assert answer.status == 200
    assert answer.headers["fairline-status"] == ("dead" if path == "/jobs" else "failed")
    assert answer.headers["preference-applied"] == "wait"
    again = api.get(f"{path}/{job_id}", {"Prefer": "wait=20"})
    assert again.seconds < 10 and again.status == 200
    assert again.headers["preference-applied"] == "wait"


@PATHS
def test_a_read_that_is_over_in_time_shows_the_job_as_it_is_then(
    api: ApiServer, database: DatabaseFixture, callers: ThreadPoolExecutor, path: str
) -> None:
    job_id = api.post(BODIES[path], path=path).json()["id"]
    waiting = callers.submit(api.get, f"{path}/{job_id}", {"Prefer": "wait=2"})
    time.sleep(0.3)
    bring(database, job_id, "running")
    answer = waiting.result(15)
    assert answer.seconds > 1.9
    assert answer.json()["status"] == ("running" if path == "/jobs" else "scoring")
    assert "retry-after" in answer.headers


@pytest.mark.parametrize("prefer", ["wait", "wait=-1", "wait=x", "return=minimal", "wait=0"])
def test_what_is_no_wait_is_answered_at_once(
    api: ApiServer, database: DatabaseFixture, prefer: str
) -> None:
    answer = submit(api, "/jobs", prefer)
    assert answer.status == 202 and answer.seconds < 10
    assert ("preference-applied" in answer.headers) is (prefer == "wait=0")


def test_nothing_is_waited_for_that_is_not_ones_own(
    api: ApiServer, database: DatabaseFixture
) -> None:
    for job_id in (new_id(), database.submit(tenant_id=2)):
        answer = api.get(f"/jobs/{job_id}", {"Prefer": "wait=20"})
        assert_problem(answer, 404, "NOT_FOUND")
        assert answer.seconds < 10


def test_a_repetition_waits_for_the_first_ones_job(
    api: ApiServer, database: DatabaseFixture, callers: ThreadPoolExecutor
) -> None:
    key = {"Idempotency-Key": new_id()}
    job_id = api.post(BODIES["/jobs"], headers=key, path="/jobs").json()["id"]
    waiting = callers.submit(lambda: submit(api, "/jobs", "wait=20", **key))
    time.sleep(0.2)
    bring(database, job_id, "cancelled")
    answer = waiting.result(15)
    assert (answer.status, answer.json()["id"]) == (200, job_id)
    assert answer.headers["idempotent-replayed"] == "true"


def test_those_who_wait_hold_no_connection_and_delay_nobody(
    api: ApiServer, database: DatabaseFixture, callers: ThreadPoolExecutor
) -> None:
    count = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
    api.submit_job()
    before = database.query(count)[0].n
    waiting = [callers.submit(submit, api, "/jobs", "wait=20") for _ in range(60)]
    until(lambda: bool(database.query("SELECT count(*) = 61 AS all FROM jobs")[0].all))
    time.sleep(0.5)
    assert database.query(count)[0].n <= before + 6, "pools of two processes"
    assert api.post(BODIES["/jobs"], path="/jobs").seconds < 10
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'queued'")
    answers: list[Answer] = [each.result(10) for each in waiting]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.json()["id"] for answer in answers}) == 60


def test_a_client_that_has_gone_is_not_waited_for(
    api: ApiServer, database: DatabaseFixture, callers: ThreadPoolExecutor
) -> None:
    job_id = api.submit_job()
    request = f"GET /jobs/{job_id} HTTP/1.1\r\nHost: localhost\r\nPrefer: wait=50\r\n\r\n".encode()
    gone = [socket.create_connection(("127.0.0.1", api.port)) for _ in range(1_200)]
    for client in gone:
        client.sendall(request)
    path = f"/jobs/{job_id}"
    # Both processes have as many as one tenant may have.
    until(lambda: "preference-applied" not in api.get(path, {"Prefer": "wait=1"}).headers)
    for client in gone:
        client.close()

    def all_wait() -> bool:
        asked = [callers.submit(api.get, path, {"Prefer": "wait=1"}) for _ in range(20)]
        return all("preference-applied" in each.result(20).headers for each in asked)

    until(all_wait, 25)


def test_a_stopping_process_answers_those_who_wait(
    database: DatabaseFixture, services_home: Path, callers: ThreadPoolExecutor
) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    with serving(url, services_home / "logs", api_workers=1) as server:
        waiting: Future[Answer] = callers.submit(submit, server, "/jobs", "wait=30")
        job_id = arrived(database)
        time.sleep(0.3)
        server.workers()[0].send_signal(signal.SIGTERM)
        answer = waiting.result(20)
        assert (answer.status, answer.json()["id"]) == (202, job_id)
