"""``/applications`` as clients see it: submitting, polling and errors."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from models.jobs.ids import new_id
from models.jobs.states import APPLICATION_STATUS, JobStatus
from tests.support.api_server import Answer, ApiServer
from tests.support.database_fixture import DatabaseFixture

JOB_FIELDS = {
    *("id", "type", "tenant", "pool", "priority", "status", "attempt", "crashes"),
    *("created_at", "execute_at", "not_after", "dispatched_at", "started_at", "finished_at"),
    *("progress", "result", "error", "cancel_requested_at"),
}
APPLICATION_FIELDS = {
    *("candidate", "role", "score", "rank", "rationale"),
    *("criteria", "evidence", "record"),
}
#: The policy that a refusal names, by code.
POLICIES = {
    "TENANT_RATE_LIMIT_EXCEEDED": "default",
    "TENANT_QUEUE_DEPTH_EXCEEDED": "queue-depth",
    "TENANT_IDEMPOTENCY_KEYS_EXCEEDED": "idempotency-keys",
    "TENANT_BLOB_BYTES_EXCEEDED": "blob-bytes",
    "TENANT_REQUEST_RATE_EXCEEDED": "requests",
    "TENANT_STREAMS_EXCEEDED": "event-streams",
}
RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

#: Legal moves from the row a submission makes to each status.
WAYS: dict[str, tuple[str, ...]] = {
    "scheduled": ("dispatched", "running", "scheduled"),
    "queued": (),
    "dispatched": ("dispatched",),
    "running": ("dispatched", "running"),
    "succeeded": ("dispatched", "running", "succeeded"),
    "dead": ("dispatched", "running", "dead"),
    "cancelled": ("cancelled",),
    "expired": ("expired",),
}


def bring(database: DatabaseFixture, job_id: str, status: str) -> None:
    """Move a new job to a status, as the processes would."""
    for step in WAYS[status]:
        database.execute("UPDATE jobs SET status = %s WHERE id = %s", step, job_id)


def put_scored(database: DatabaseFixture, role: str, score: str, tenant_id: int = 1) -> str:
    """An application that has been scored; its id."""
    job_id = database.submit_application(role=role, tenant_id=tenant_id)
    bring(database, job_id, "succeeded")
    database.execute(
        "UPDATE applications SET score = %s, rationale = 'because', scored_at = now()"
        " WHERE id = %s",
        score,
        job_id,
    )
    return job_id


def assert_problem(answer: Answer, status: int, code: str) -> dict[str, Any]:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["code"] == code
    if code in POLICIES:  # as draft-ietf-httpapi-ratelimit-headers-11 has it
        assert body["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
        assert body["violated-policies"] == [POLICIES[code]]
    else:
        assert body["type"] == f"urn:fairline:problem:{code.lower().replace('_', '-')}"
    assert body["title"] and body["detail"]
    return body


def test_submission_is_answered_by_exactly_its_id_and_pending(api: ApiServer) -> None:
    answer = api.post({"candidate": "Ada Lovelace", "payload": {"years": 12}})
    assert answer.status == 202
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body == {"id": body["id"], "status": "pending"}
    assert answer.headers["location"] == f"/applications/{body['id']}"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["fairline-status"] == "pending"
    assert api.get(answer.headers["location"]).status == 200


def test_row_is_visible_to_others_the_moment_the_202_arrives(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    url = api_database.engine.url
    other = psycopg2.connect(
        dbname=url.database, user=url.username, host=url.query["host"], port=url.query["port"]
    )
    other.autocommit = True
    with other.cursor() as cursor:
        for _ in range(20):
            job_id = api.submit(role="durable")
            cursor.execute(
                "SELECT candidate, role, status::text FROM jobs JOIN applications USING (id)"
                " WHERE id = %s",
                (job_id,),
            )
            assert cursor.fetchall() == [("Ada", "durable", "queued")]
    other.close()


def test_every_field_of_a_submission_reaches_the_row(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    job_id = api.submit(
        "  Grace  ",
        role=" compiler ",
        priority=-7,
        execute_at=start.isoformat(),
        not_after=(start + timedelta(hours=1)).isoformat(),
        payload={"z": 1, "a": [None, True, 1.5, "ü"]},
    )
    row = api_database.job(job_id)
    assert row.payload == {
        "candidate": "Grace",
        "role": "compiler",
        "payload": {"z": 1, "a": [None, True, 1.5, "ü"]},
    }
    assert (row.status, row.priority, row.type, row.pool) == (
        "scheduled",
        -7,
        "score_application",
        "medium",
    )
    assert (row.execute_at, row.not_after) == (start, start + timedelta(hours=1))


def test_moment_that_has_passed_means_now(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api.submit(execute_at="1970-01-01T00:00:00Z")
    assert api_database.job(job_id).status == "queued"
    assert api.get(f"/applications/{job_id}").json()["execute_at"] == "1970-01-01T00:00:00.000Z"


def test_application_shows_every_field_of_the_contract(api: ApiServer) -> None:
    job_id = api.submit("Ada", role="fields", priority=3)
    answer = api.get(f"/applications/{job_id}")
    body = answer.json()
    assert set(body) == JOB_FIELDS | APPLICATION_FIELDS
    assert {name: value for name, value in body.items() if value is not None} == {
        "id": job_id,
        "type": "score_application",
        "tenant": "demo",
        "pool": "medium",
        "priority": 3,
        "status": "pending",
        "attempt": 0,
        "crashes": 0,
        "created_at": body["created_at"],
        "candidate": "Ada",
        "role": "fields",
    }
    assert RFC3339_UTC.fullmatch(body["created_at"])
    assert answer.headers["fairline-status"] == "pending"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("status", list(WAYS))
def test_status_of_the_job_shows_as_the_status_of_the_application(
    api: ApiServer, api_database: DatabaseFixture, status: str
) -> None:
    job_id = api_database.submit_application()
    bring(api_database, job_id, status)
    answer = api.get(f"/applications/{job_id}")
    shown = {
        "scheduled": "pending",
        "queued": "pending",
        "dispatched": "pending",
        "running": "scoring",
        "succeeded": "scored",
        "dead": "failed",
        "cancelled": "withdrawn",
        "expired": "expired",
    }[status]
    assert answer.json()["status"] == shown
    assert answer.headers["fairline-status"] == shown
    is_ended = status in ("succeeded", "dead", "cancelled", "expired")
    assert ("retry-after" in answer.headers) is not is_ended


def test_no_status_is_left_out() -> None:
    assert set(WAYS) == {status.value for status in JobStatus} == {*APPLICATION_STATUS}


def test_scored_application_shows_score_rank_rationale_and_result(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    put_scored(api_database, "shown", "99.00")
    job_id = put_scored(api_database, "shown", "87.50")
    result = '{"score": 87.50, "big": 123456789012345678901234567890}'
    api_database.execute("UPDATE jobs SET result = %s::json WHERE id = %s", result, job_id)
    body = api.get(f"/applications/{job_id}").json()
    assert (body["score"], body["rank"], body["rationale"]) == (87.5, 2, "because")
    assert body["result"] == json.loads(result)
    assert body["error"] is None


def test_scored_application_outlives_its_job(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = put_scored(api_database, "outlives", "64.25")
    api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
    answer = api.get(f"/applications/{job_id}")
    body = answer.json()
    assert (body["status"], body["score"], body["rank"]) == ("scored", 64.25, 1)
    assert (body["type"], body["pool"], body["tenant"]) == ("score_application", "medium", "demo")
    assert body["created_at"] is body["started_at"] is body["attempt"] is None
    assert RFC3339_UTC.fullmatch(body["finished_at"])
    assert "retry-after" not in answer.headers
    other = api_database.submit_application()
    api_database.execute("DELETE FROM jobs WHERE id = %s", other)
    assert_problem(api.get(f"/applications/{other}"), 404, "NOT_FOUND")


def test_progress_of_the_run_shows(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api_database.submit_application()
    progress = '{"done": 3, "total": null}'
    api_database.execute("UPDATE jobs SET progress = %s WHERE id = %s", progress, job_id)
    assert api.get(f"/applications/{job_id}").json()["progress"] == {"done": 3, "total": None}


def test_failed_application_says_class_and_message(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit_application()
    bring(api_database, job_id, "dead")
    api_database.execute(
        "UPDATE jobs SET error_class = 'APP_ERROR', error_message = 'no such rubric',"
        " attempt = 3, crashes = 1, finished_at = now() WHERE id = %s",
        job_id,
    )
    body = api.get(f"/applications/{job_id}").json()
    assert body["error"] == {"class": "APP_ERROR", "message": "no such rubric"}
    assert (body["attempt"], body["crashes"], body["score"], body["rank"]) == (3, 1, None, None)
    assert RFC3339_UTC.fullmatch(body["finished_at"])


def test_head_says_the_same_without_a_body(api: ApiServer) -> None:
    path = f"/applications/{api.submit()}"
    got, head = api.get(path), api.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert {k: v for k, v in head.headers.items() if k != "date"} == {
        k: v for k, v in got.headers.items() if k != "date"
    }
    assert int(head.headers["content-length"]) == len(got.body)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("form", ["{}", "W/{}", '"a", {}', '"a",W/{} , "b"', "*", " * "])
def test_who_knows_the_state_gets_304(api: ApiServer, method: str, form: str) -> None:
    path = f"/applications/{api.submit()}"
    etag = api.get(path).headers["etag"]
    answer = api.request(method, path, headers={"If-None-Match": form.format(etag)})
    assert (answer.status, answer.body) == (304, b"")
    assert answer.headers["etag"] == etag
    assert answer.headers["fairline-status"] == "pending"
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("form", ['"other"', "garbage", "", '"*"', "{bare}"])
def test_who_knows_another_state_gets_the_document(api: ApiServer, form: str) -> None:
    path = f"/applications/{api.submit()}"
    etag = api.get(path).headers["etag"]
    sent = form.format(bare=etag.strip('"'))
    assert api.get(path, {"If-None-Match": sent}).status == 200


def test_etag_changes_with_every_step_and_with_nothing_else(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit_application()
    path = f"/applications/{job_id}"
    seen = [api.get(path).headers["etag"]]
    assert api.get(path).headers["etag"] == seen[0]
    steps = (
        "status = 'dispatched', dispatched_at = now()",
        "status = 'running', started_at = now()",
        "status = 'scheduled', execute_at = now() + interval '1 hour', attempt = 1",
        "status = 'queued'",
        "status = 'dispatched', dispatched_at = now()",
        "status = 'running', started_at = now(), crashes = 1",
        """progress = '{"done": 1, "total": 2}'""",
        """progress = '{"done": 2, "total": 2}'""",
        "cancel_requested_at = now()",
        "status = 'succeeded', finished_at = now()",
    )
    for step in steps:
        before = api_database.job(job_id)
        api_database.execute(f"UPDATE jobs SET {step} WHERE id = %s", job_id)
        etag = api.get(path).headers["etag"]
        if (before.status, "queued" in step) != ("scheduled", True):
            assert etag not in seen, step  # from scheduled to queued nothing changes for a client
        seen.append(etag)


def test_id_is_found_in_upper_case_too(api: ApiServer) -> None:
    job_id = api.submit()
    answer = api.get(f"/applications/{job_id.upper()}")
    assert (answer.status, answer.json()["id"]) == (200, job_id)


def test_id_of_another_tenant_is_not_found(api: ApiServer, api_database: DatabaseFixture) -> None:
    job_id = api_database.submit_application(tenant_id=2)
    foreign = assert_problem(api.get(f"/applications/{job_id}"), 404, "NOT_FOUND")
    unknown = assert_problem(api.get(f"/applications/{new_id()}"), 404, "NOT_FOUND")
    assert foreign == unknown


def test_job_that_is_no_application_is_not_found(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    assert_problem(api.get(f"/applications/{api_database.submit()}"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path", ["/nope", "/applications/", "/leaderboard/", "/healthz/", "/applications/a/b"]
)
def test_unknown_path_is_not_found(api: ApiServer, path: str) -> None:
    assert_problem(api.get(path), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/applications", {"POST", "OPTIONS"}),
        ("DELETE", "/applications", {"POST", "OPTIONS"}),
        ("BREW", "/applications", {"POST", "OPTIONS"}),
        (
            "POST",
            "/applications/01a1ddb0-7eae-78c5-9190-3962ec47f04b",
            {"GET", "HEAD", "DELETE", "OPTIONS"},
        ),
        ("PUT", "/jobs", {"GET", "HEAD", "POST", "OPTIONS"}),
        (
            "POST",
            "/jobs/01a1ddb0-7eae-78c5-9190-3962ec47f04b",
            {"GET", "HEAD", "DELETE", "OPTIONS"},
        ),
        ("GET", "/dead-letters/replay", {"POST", "OPTIONS"}),
        ("POST", "/tenant/usage", {"GET", "HEAD", "OPTIONS"}),
        ("PUT", "/leaderboard", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/healthz", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_wrong_method_is_told_the_right_ones(
    api: ApiServer, method: str, path: str, allowed: set[str]
) -> None:
    answer = api.request(method, path)
    assert_problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_redirect_says_where_to(api: ApiServer) -> None:
    job_id = api.submit()
    answer = api.get(f"/applications//{job_id}")  # werkzeug merges slashes by redirecting
    assert answer.status == 308
    assert answer.headers["location"].endswith(f"/applications/{job_id}")


def test_readiness_names_what_is_missing(api: ApiServer) -> None:
    answer = api.get("/readyz")
    assert answer.status == 503
    checks = answer.json()["checks"]
    assert checks["database"]["ok"] is True
    assert checks["broker"]["ok"] is False
    assert checks["broker"]["detail"] == "not reached by the scheduler"
    assert checks["workers.medium"]["ok"] is False
