"""``Idempotency-Key``: a repeated request is accepted once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.blobs import open_blobs
from models.jobs.ids import new_id
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import Answer, ApiServer
from tests.support.blob_keys import keys_in
from tests.support.database_fixture import DatabaseFixture

BODIES: dict[str, dict[str, Any]] = {
    "/applications": {"candidate": "Ada", "payload": {"a": 1, "b": [2]}, "role": "once"},
    "/jobs": {"type": "echo", "payload": {"a": 1, "b": [2]}, "priority": 1},
    "/jobs/batch": {"jobs": [{"type": "echo"}, {"type": "nope"}, {"type": "sleep"}]},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))


def send(api: ApiServer, path: str, key: str, body: Any = None) -> Answer:
    return api.post(body or BODIES[path], headers={"Idempotency-Key": key}, path=path)


def count(database: DatabaseFixture) -> int:
    return int(database.query("SELECT count(*) FROM jobs")[0][0])


@PATHS
def test_same_key_and_body_is_the_same_reply_and_no_second_job(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    key = new_id()
    first = send(api, path, key)
    before = count(api_database)
    again = send(api, path, key)
    assert count(api_database) == before
    assert (first.status, again.status) == (202, 202)
    assert first.body == again.body
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("location", "retry-after", "fairline-status"):
        assert first.headers.get(name) == again.headers.get(name)


@PATHS
def test_other_body_under_the_key_is_refused(
    api: ApiServer, api_database: DatabaseFixture, path: str
) -> None:
    key = new_id()
    send(api, path, key)
    before = count(api_database)
    other = json.loads(json.dumps(BODIES[path]).replace('"echo"', '"crash"').replace("Ada", "Eve"))
    assert_problem(send(api, path, key, other), 422, "IDEMPOTENCY_KEY_REUSED")
    assert count(api_database) == before


def test_spelling_of_a_body_does_not_matter_but_every_digit_does(api: ApiServer) -> None:
    key = new_id()
    first = send(api, "/jobs", key, b'{"type":"echo","payload":{"a":1,"n":18446744073709551617}}')
    spelled = b' {"payload": {"n": 18446744073709551617,\n"\\u0061": 1}, "type": "echo"}'
    assert send(api, "/jobs", key, spelled).json() == first.json()
    # Both would be the same float.
    digit = b'{"type":"echo","payload":{"a":1,"n":18446744073709551618}}'
    assert_problem(send(api, "/jobs", key, digit), 422, "IDEMPOTENCY_KEY_REUSED")
    other = b'{"type":"echo","payload":{"a":1.0,"n":18446744073709551617}}'
    assert_problem(send(api, "/jobs", key, other), 422, "IDEMPOTENCY_KEY_REUSED")


def test_key_belongs_to_one_door(api: ApiServer) -> None:
    key = new_id()
    send(api, "/jobs", key)
    assert_problem(send(api, "/applications", key), 422, "IDEMPOTENCY_KEY_REUSED")


@PATHS
def test_fifty_at_once_are_one(api: ApiServer, api_database: DatabaseFixture, path: str) -> None:
    key, before = new_id(), count(api_database)
    with ThreadPoolExecutor(50) as callers:
        answers = list(callers.map(lambda _: send(api, path, key), range(50)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert count(api_database) == before + (2 if path == "/jobs/batch" else 1)
    assert not api_database.miscounted()


def test_reply_stays_the_same_when_the_job_has_moved_on(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    key = new_id()
    soon = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
    first = send(api, "/jobs", key, {"type": "echo", "execute_at": soon})
    assert first.json()["status"] == "scheduled"
    api_database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", first.json()["id"])
    assert send(api, "/jobs", key, {"type": "echo", "execute_at": soon}).body == first.body


def test_reply_is_as_of_the_first_request(api: ApiServer, api_database: DatabaseFixture) -> None:
    """Half an hour after its time a job that was scheduled for it was scheduled still."""
    key = new_id()
    body = {"type": "echo", "execute_at": (datetime.now(UTC) - timedelta(minutes=30)).isoformat()}
    send(api, "/jobs", key, body)
    api_database.execute(
        "UPDATE idempotency_keys SET created_at = now() - interval '1 hour' WHERE key = %s", key
    )
    assert send(api, "/jobs", key, body).json()["status"] == "scheduled"


def test_refused_request_uses_up_no_key(api: ApiServer) -> None:
    key = new_id()
    bad = {**BODIES["/jobs"], "type": "nope"}
    assert_problem(send(api, "/jobs", key, bad), 422, "VALIDATION_FAILED")
    assert send(api, "/jobs", key).status == 202


def test_keys_of_any_printable_characters_are_taken(api: ApiServer) -> None:
    for key in ("k", "k" * 255, "'; DROP TABLE jobs; --", '"quoted"', "a b", "%s %(keys)s {}"):
        first, again = send(api, "/jobs", key), send(api, "/jobs", key)
        assert first.status == again.status == 202
        assert first.json() == again.json()


@PATHS
@pytest.mark.parametrize(
    ("plain", "quoted"), [("k", '"k"'), ("a b;c=1,d", '"a b;c=1,d"'), ('x"y\\z', '"x\\"y\\\\z"')]
)
def test_a_quoted_key_is_the_key_inside_the_quotes(
    api: ApiServer, path: str, plain: str, quoted: str
) -> None:
    mark = new_id()
    plain, quoted = f"{mark}{plain}", f'"{mark}{quoted[1:]}'
    first = send(api, path, quoted)
    assert first.status == 202, first
    again = send(api, path, plain)
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(
    "key",
    ['"', '""', '"open', '"a"b"', '"a\\b"', '"a" "b"', '"a";p=1', f'"{"k" * 256}"', "k" * 256],
)
def test_a_key_that_is_not_a_structured_string_is_refused(api: ApiServer, key: str) -> None:
    (error,) = assert_problem(send(api, "/jobs", key), 422, "VALIDATION_FAILED")["errors"]
    assert error["field"] == "Idempotency-Key"


def test_repetition_leaves_no_blob_behind(api: ApiServer, api_database: DatabaseFixture) -> None:
    key, body = new_id(), {"type": "echo", "payload": "x" * 100_000}
    first = send(api, "/jobs", key, body)
    blobs = open_blobs(str(api.blobs))
    kept = set(keys_in(blobs, 0))
    assert api_database.job(first.json()["id"]).payload_blob in kept
    assert send(api, "/jobs", key, body).json() == first.json()
    other = {"type": "echo", "payload": "y" * 100_000}
    assert_problem(send(api, "/jobs", key, other), 422, "IDEMPOTENCY_KEY_REUSED")
    assert set(keys_in(blobs, 0)) == kept
