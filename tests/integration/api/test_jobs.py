"""``/jobs`` as clients see it: submitting, polling, cancelling."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.blobs import INLINE_BYTES, open_blobs, payload_key
from models.jobs import cancel
from models.jobs.claim import Claim
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tasks.registry import BUILT_IN, load_types
from tests.integration.api.test_contract import (
    JOB_FIELDS,
    RFC3339_UTC,
    WAYS,
    assert_problem,
    bring,
    put_scored,
)
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture

#: Not all that this process knows: other tests bring types of their own.
BUILT_IN_NAMES = [t.name for t in load_types().values() if t.run.__module__ in BUILT_IN]
MORE_FIELDS = {"attempts", "replays", "slot_seconds", "resubmitted_from"}
FAILED = Ending(
    JobStatus.SCHEDULED, tries_spent=1, error_class=FailureClass.APP_ERROR, error_message="no luck"
)


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)


def start(database: DatabaseFixture, **fields: Any) -> Claim:
    """A running job, however long other tests took."""
    database.leader.run_once(0.0)
    return database.start(priority=100, **fields)


# Submitting


def test_submission_is_answered_by_its_id_and_status(api: ApiServer) -> None:
    answer = api.post({"type": "echo", "payload": {"years": 12}}, path="/jobs")
    assert answer.status == 202
    body = answer.json()
    assert body == {"id": body["id"], "status": "queued"}
    assert answer.headers["location"] == f"/jobs/{body['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["fairline-status"] == "queued"
    assert api.get(answer.headers["location"]).status == 200


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_every_registered_type_is_taken_and_goes_to_its_pool(
    api: ApiServer, api_database: DatabaseFixture, name: str
) -> None:
    known = load_types()[name]
    work = {"candidate": "Ada", "role": "engineer", "payload": {}}
    payload = work if name == "score_application" else {}
    row = api_database.job(api.submit_job(name, payload=payload))
    assert (row.type, row.pool, row.dependency) == (name, known.pool, known.dependency or "")
    assert row.payload == payload


def test_application_submitted_as_a_job_is_an_application(api: ApiServer) -> None:
    work = {"candidate": " Ada ", "payload": {"cv": "First programmer."}}
    answer = api.post({"type": "score_application", "payload": work}, path="/jobs")
    shown = api.get(f"/applications/{answer.json()['id']}").json()
    assert (shown["candidate"], shown["role"], shown["status"]) == ("Ada", "general", "pending")


def test_unknown_type_is_told_the_known_ones(api: ApiServer) -> None:
    answer = api.post({"type": "no_such", "payload": {}}, path="/jobs")
    (error,) = assert_problem(answer, 422, "VALIDATION_FAILED")["errors"]
    assert error["field"] == "type"
    assert {"echo", "count", "score_application"} <= set(re.findall(r"\w+", error["message"]))


@pytest.mark.parametrize("payload", [None, True, 0, 1.5, "text", [], [1, {"a": None}], {"a": "ü"}])
def test_type_without_a_schema_takes_any_json(
    api: ApiServer, api_database: DatabaseFixture, payload: Any
) -> None:
    job_id = api.submit_job(payload=payload)
    (row,) = api_database.query("SELECT payload::text FROM jobs WHERE id = %s", job_id)
    assert json.loads(row[0]) == payload


def test_payload_reaches_the_row_as_it_was_sent_not_as_the_schema_reads_it(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api.submit_job("count", payload={"seconds_each": 0, "to": "5"})
    assert api_database.job(job_id).payload == {"seconds_each": 0, "to": "5"}


def test_every_field_of_a_submission_reaches_the_row(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    start = in_hours(5)
    job_id = api.submit_job(
        "sleep",
        payload={"seconds": 1},
        priority=-7,
        execute_at=start.isoformat(),
        not_after=(start + timedelta(hours=1)).isoformat(),
        jitter=False,
    )
    row = api_database.job(job_id)
    assert (row.status, row.priority, row.tenant_id) == ("scheduled", -7, 1)
    assert (row.execute_at, row.not_after) == (start, start + timedelta(hours=1))
    assert row.payload == {"seconds": 1}


@pytest.mark.parametrize("path", ["/jobs", "/applications"])
def test_far_time_is_jittered_unless_the_caller_opts_out(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    far, near = in_hours(5), in_hours(0.9)
    body: dict[str, Any] = {"type": "echo"}
    if path == "/applications":
        body = {"candidate": "Ada", "payload": {}}

    def kept(at: datetime, **fields: Any) -> float:
        answer = api.post({**body, "execute_at": at.isoformat(), **fields}, path=path)
        stored = api_database.job(answer.json()["id"]).execute_at
        return abs(float((stored - at).total_seconds()))

    moves = [kept(far) for _ in range(5)]
    assert all(0 < move <= 60 for move in moves) and len(set(moves)) == 5
    assert kept(far, jitter=False) == 0
    assert kept(near) == 0


def test_later_is_scheduled_and_a_moment_that_has_passed_is_now(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    for at, status in ((in_hours(1), "scheduled"), (in_hours(-1), "queued")):
        answer = api.post({"type": "echo", "execute_at": at.isoformat()}, path="/jobs")
        assert answer.json()["status"] == answer.headers["fairline-status"] == status
        assert api_database.job(answer.json()["id"]).status == status


# Large payloads


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/applications"])
def test_large_payload_lives_in_the_blob_store(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    # As JSON it has one byte more than a row takes: two quotes, and é is two bytes.
    large = "é" * (INLINE_BYTES // 2 - 1) + "x"
    bodies = {
        "/jobs": {"type": "echo", "payload": large},
        "/jobs/batch": {"jobs": [{"type": "echo", "payload": large}]},
        "/applications": {"candidate": "Ada", "payload": {"x": large}},
    }
    answer = api.post(bodies[path], path=path).json()
    row = api_database.job(answer["id"] if "id" in answer else answer["results"][0]["id"])
    assert row.payload is None
    assert row.payload_blob == payload_key(str(row.id))
    stored = json.loads(open_blobs(str(api.blobs)).get(row.payload_blob))
    assert stored == large or stored["payload"] == {"x": large}


def test_payload_that_just_fits_stays_in_the_row(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    fits = "é" * (INLINE_BYTES // 2 - 1)
    row = api_database.job(api.submit_job(payload=fits))
    assert (row.payload, row.payload_blob) == (fits, None)


def test_without_the_blob_store_nothing_large_is_accepted_and_the_rest_is(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    away = api.blobs.with_suffix(".away")
    api.blobs.rename(away)
    try:
        before = api_database.query("SELECT count(*) FROM jobs")
        large = {"type": "echo", "payload": "x" * 100_000}
        answers = [
            api.post(large, path="/jobs"),
            api.post({"jobs": [{"type": "echo"}, large]}, path="/jobs/batch"),
            api.post({"candidate": "Ada", "payload": large}),
        ]
        for answer in answers:
            assert_problem(answer, 503, "BLOB_STORE_UNAVAILABLE")
            assert int(answer.headers["retry-after"]) >= 1
        assert api_database.query("SELECT count(*) FROM jobs") == before
        api.submit_job()
    finally:
        away.rename(api.blobs)


# Asking


def test_job_shows_every_field_of_the_contract(api: ApiServer) -> None:
    job_id = api.submit_job(priority=3)
    answer = api.get(f"/jobs/{job_id}")
    body = answer.json()
    assert set(body) == JOB_FIELDS | MORE_FIELDS
    assert {name: value for name, value in body.items() if value is not None} == {
        "id": job_id,
        "type": "echo",
        "tenant": "demo",
        "pool": "short",
        "priority": 3,
        "status": "queued",
        "attempt": 0,
        "crashes": 0,
        "created_at": body["created_at"],
        "attempts": [],
        "replays": 0,
        "slot_seconds": 0,
    }
    assert RFC3339_UTC.fullmatch(body["created_at"])
    assert answer.headers["fairline-status"] == "queued"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("status", list(WAYS))
def test_every_status_shows_as_it_is(
    api: ApiServer, api_database: DatabaseFixture, status: str
) -> None:
    job_id = api_database.submit()
    bring(api_database, job_id, status)
    answer = api.get(f"/jobs/{job_id}")
    assert answer.json()["status"] == answer.headers["fairline-status"] == status
    assert ("retry-after" in answer.headers) is not JobStatus(status).terminal


def test_unsuccessful_runs_stay_on_record(api: ApiServer, api_database: DatabaseFixture) -> None:
    claim = start(api_database)
    path = f"/jobs/{claim.ref.id}"
    api_database.settle(claim.ref, FAILED, run_seconds=1.5)
    answer = api.get(path)
    assert b'"attempts":[{"lease":1,' in answer.body, "written as the rest is"
    body = answer.json()
    (attempt,) = body["attempts"]
    assert attempt == {
        "lease": 1,
        "worker": "w1",
        "started_at": attempt["started_at"],
        "ended_at": attempt["ended_at"],
        "status": "scheduled",
        "error": {"class": "APP_ERROR", "message": "no luck"},
    }
    assert RFC3339_UTC.fullmatch(attempt["started_at"])
    assert attempt["started_at"] < attempt["ended_at"]
    assert (body["attempt"], body["slot_seconds"]) == (1, 1.5)


def test_only_the_newest_attempts_are_shown(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api_database.submit()
    api_database.execute("UPDATE jobs SET deferrals = 150 WHERE id = %s", job_id)
    api_database.execute(
        "INSERT INTO attempts (job_id, lease, status)"
        " SELECT %s::uuid, n, 'scheduled' FROM generate_series(1, 150) AS n",
        job_id,
    )
    shown = [attempt["lease"] for attempt in api.get(f"/jobs/{job_id}").json()["attempts"]]
    assert shown == list(range(51, 151))


def test_success_shows_its_result_and_no_attempts(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    claim = start(api_database)
    result = '{"big": 123456789012345678901234567890, "f": 1.0}'
    api_database.settle(claim.ref, Ending(JobStatus.SUCCEEDED, tries_spent=1, result=result))
    body = api.get(f"/jobs/{claim.ref.id}").json()
    assert repr(body["result"]) == repr(json.loads(result))
    assert (body["status"], body["attempts"], body["error"]) == ("succeeded", [], None)


def test_etag_changes_with_everything_that_shows_and_with_nothing_else(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit()
    path = f"/jobs/{job_id}"
    seen = [api.get(path).headers["etag"]]
    assert api.get(path).headers["etag"] == seen[0]
    steps = (
        "status = 'dispatched', dispatched_at = now()",
        "status = 'running', started_at = now()",
        """progress = '{"done": 1, "total": 2}'""",
        """progress = '{"done": 2, "total": 2}'""",
        "cancel_requested_at = now()",
        "status = 'scheduled', attempt = 1",
        "status = 'queued'",
        "crashes = 1",
        "slot_seconds = 2.5",
        "status = 'cancelled', finished_at = now()",
    )
    for step in steps:
        api_database.execute(f"UPDATE jobs SET {step} WHERE id = %s", job_id)
        if step.startswith("crashes"):
            api_database.execute(
                "INSERT INTO attempts (job_id, lease, status) VALUES (%s, 1, 'queued')", job_id
            )
        etag = api.get(path).headers["etag"]
        assert etag not in seen, step
        assert api.get(path, {"If-None-Match": etag}).status == 304
        seen.append(etag)


def test_head_says_the_same_without_a_body(api: ApiServer) -> None:
    path = f"/jobs/{api.submit_job()}"
    got, head = api.get(path), api.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["etag"] == got.headers["etag"]
    assert int(head.headers["content-length"]) == len(got.body)


def test_job_of_an_application_is_a_job(api: ApiServer) -> None:
    body = api.get(f"/jobs/{api.submit('Ada')}").json()
    assert (body["type"], body["status"], body["pool"]) == ("score_application", "queued", "medium")


def test_job_of_another_tenant_is_not_found(api: ApiServer, api_database: DatabaseFixture) -> None:
    path = f"/jobs/{api_database.submit(tenant_id=2)}"
    for method in ("GET", "HEAD", "DELETE"):
        assert api.request(method, path).status == 404
    foreign = assert_problem(api.get(path), 404, "NOT_FOUND")
    assert foreign == assert_problem(api.get(f"/jobs/{new_id()}"), 404, "NOT_FOUND")


# Cancelling


@pytest.mark.parametrize("status", ["scheduled", "queued", "dispatched"])
@pytest.mark.parametrize("kind", ["jobs", "applications"])
def test_waiting_job_is_cancelled_at_once_and_cancelled_again_is_the_same(
    api: ApiServer, api_database: DatabaseFixture, kind: str, status: str
) -> None:
    job_id = api_database.submit_application()
    bring(api_database, job_id, status)
    shown = "cancelled" if kind == "jobs" else "withdrawn"
    for _ in range(2):
        answer = api.request("DELETE", f"/{kind}/{job_id}")
        assert answer.status == 200
        assert answer.json() == {"id": job_id, "status": shown}
        assert answer.headers["fairline-status"] == shown
    row = api_database.job(job_id)
    assert row.status == "cancelled" and row.finished_at and row.lease_expires_at is None
    assert api.get(f"/{kind}/{job_id}").json()["status"] == shown
    assert not api_database.miscounted()


@pytest.mark.parametrize("kind", ["jobs", "applications"])
def test_running_job_is_asked_to_stop_and_ends_cancelled(
    api: ApiServer, api_database: DatabaseFixture, kind: str
) -> None:
    claim = start(
        api_database, type="score_application", candidate="Ada", role="general", payload="{}"
    )
    path = f"/{kind}/{claim.ref.id}"
    first, again = api.request("DELETE", path), api.request("DELETE", path)
    shown = "running" if kind == "jobs" else "scoring"
    assert first.status == again.status == 202
    body = first.json()
    assert body == again.json()
    assert set(body) == {"id", "status", "cancel_requested_at"} and body["status"] == shown
    assert api.get(path).json()["cancel_requested_at"] == body["cancel_requested_at"]
    assert "retry-after" in first.headers
    api_database.settle(claim.ref, FAILED)
    assert api.get(path).json()["status"] == ("cancelled" if kind == "jobs" else "withdrawn")


@pytest.mark.parametrize("status", ["succeeded", "dead", "expired"])
@pytest.mark.parametrize("kind", ["jobs", "applications"])
def test_what_has_ended_cannot_be_cancelled(
    api: ApiServer, api_database: DatabaseFixture, kind: str, status: str
) -> None:
    job_id = api_database.submit_application()
    bring(api_database, job_id, status)
    found = assert_problem(api.request("DELETE", f"/{kind}/{job_id}"), 409, "CONFLICT")
    shown = status if kind == "jobs" else {"succeeded": "scored", "dead": "failed"}.get(status)
    assert (shown or status) in found["detail"]
    assert api_database.job(job_id).status == status


def test_scored_application_whose_job_is_retired_cannot_be_withdrawn(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = put_scored(api_database, "retired", "50.00")
    api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
    assert_problem(api.request("DELETE", f"/applications/{job_id}"), 409, "CONFLICT")
    assert_problem(api.request("DELETE", f"/jobs/{job_id}"), 404, "NOT_FOUND")


def test_job_that_is_no_application_cannot_be_withdrawn(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit()
    assert_problem(api.request("DELETE", f"/applications/{job_id}"), 404, "NOT_FOUND")
    assert api_database.job(job_id).status == "queued"


def test_dead_job_that_is_replayed_while_it_is_being_cancelled_is_cancelled(
    api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = api_database.submit()
    bring(api_database, job_id, "dead")
    replay_in_between = """
        UPDATE jobs SET status = 'queued', ended_xid = NULL
        WHERE id = %(id)s::uuid AND tenant_id = %(tenant)s
        RETURNING status::text, cancel_requested_at
    """
    monkeypatch.setattr(cancel, "READ_STATUS", replay_in_between)
    found = cancel.cancel(api_database.engine, 1, job_id)
    assert found is not None and found.status is JobStatus.CANCELLED
    assert api_database.job(job_id).status == "cancelled"
