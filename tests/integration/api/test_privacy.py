"""``/applications/{id}/export`` and ``/erase`` as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.api.routes import privacy
from app.reads.events.feed import read_entries
from app.reads.events.position import parse_position
from app.reads.export import MOST_BYTES, MOST_COPIES, MOST_EVENTS, MOST_IDS
from app.tenants.changes import create_tenant, issue_key
from models.blobs import checkpoint_key, payload_key
from models.jobs.checkpoint import Saving, save_group
from models.jobs.claim import Claim, JobRef
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.run_logs import Logged, keep_logs
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tests.integration.api.test_contract import bring, put_scored
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient, opened

FAILED = Ending(
    JobStatus.DEAD, 1, error_class=FailureClass.APP_ERROR, error_message="no Zaphod here"
)
SENT = {"candidate": "Zaphod", "payload": "Two heads are better than one."}


@pytest.fixture(scope="module")
def client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    blobs = tmp_path_factory.mktemp("blobs")
    with opened(api_database, blobs, anonymous="demo") as app:
        yield HttpClient(app)


@pytest.fixture(scope="module")
def operator(api_database: DatabaseFixture) -> str:
    return issue_key(api_database.engine, None).key


def submit(client: HttpClient, key: str | None = None) -> str:
    answer = client.call(key, "POST", "/applications", SENT)
    assert answer.status_code == 202
    return str(document(answer)["id"])


def document(answer: TestResponse) -> dict[str, Any]:
    found: dict[str, Any] = answer.json  # type: ignore[assignment]  # it is JSON
    return found


def assert_gone(answer: TestResponse) -> None:
    assert answer.status_code == 410, answer.text
    assert answer.mimetype == "application/problem+json"
    assert document(answer)["code"] == "ERASED"
    assert "Zaphod" not in answer.text


def test_erased_application_is_gone_for_every_reader(client: HttpClient) -> None:
    job_id = submit(client)
    path = f"/applications/{job_id}"
    answer = client.call(None, "POST", f"{path}/erase")
    assert answer.status_code == 200, answer.text
    erased = document(answer)
    assert (erased["id"], erased["status"]) == (job_id, "erased")
    assert erased["requested_at"] <= erased["erased_at"]
    for method, gone in (("GET", path), ("DELETE", path), ("GET", f"/jobs/{job_id}")):
        assert_gone(client.call(None, method, gone))
    assert client.call(None, "HEAD", path).status_code == 410
    assert job_id not in client.call(None, "GET", "/jobs").text
    assert document(client.call(None, "POST", f"{path}/erase")) == erased


def test_scored_application_leaves_the_leaderboard_and_the_answers_that_are_kept(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    role = new_id()
    job_id = put_scored(api_database, role, "91")
    path = f"/applications/{job_id}"
    assert client.call(None, "GET", path).status_code == 200, "and is kept for a second"
    assert client.call(None, "POST", f"{path}/erase").status_code == 200
    assert_gone(client.call(None, "GET", path))
    board = client.call(None, "GET", f"/leaderboard?role={role}")
    assert document(board)["entries"] == []


def test_running_application_is_gone_at_once_and_being_erased(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    bring(api_database, job_id, "running")
    answer = client.call(None, "POST", f"/applications/{job_id}/erase")
    assert answer.status_code == 202
    assert (document(answer)["status"], document(answer)["erased_at"]) == ("erasing", None)
    assert "Retry-After" in answer.headers
    assert_gone(client.call(None, "GET", f"/applications/{job_id}"))


def test_operator_erases_what_a_tenant_has_and_others_see_nothing_of_it(
    client: HttpClient, api_database: DatabaseFixture, operator: str
) -> None:
    keys = {}
    for name in ("erasing", "watching"):
        create_tenant(api_database.engine, name)
        keys[name] = issue_key(api_database.engine, name).key
    job_id = submit(client, keys["erasing"])
    path = f"/applications/{job_id}"
    assert client.call(operator, "POST", f"/operator{path}/erase").status_code == 200
    assert client.call(operator, "POST", f"/operator{path}/erase").status_code == 200
    assert_gone(client.call(keys["erasing"], "GET", path))
    assert client.call(keys["watching"], "GET", path).status_code == 404
    assert client.call(keys["watching"], "POST", f"{path}/erase").status_code == 404
    assert client.call(operator, "POST", f"/operator/applications/{new_id()}/erase").json == (
        client.call(operator, "POST", "/operator/applications/nonsense/erase").json
    )


def test_waiting_for_an_erased_application_is_answered_at_once(client: HttpClient) -> None:
    job_id = submit(client)
    client.call(None, "POST", f"/applications/{job_id}/erase")
    answer = client.open("GET", f"/applications/{job_id}", {"Prefer": "wait=5"})
    assert_gone(answer)


def test_export_has_every_row_of_every_table(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    claim = start(api_database)
    path = f"/applications/{claim.ref.id}/export"
    key = checkpoint_key(claim.ref.id, 1, 1)
    client.services.blobs.put(key, b'{"read": "half"}')
    assert save_group(api_database.engine, "w1", [Saving(claim.ref, None, key)])[0].ours
    assert keep_logs(api_database.engine, "w1", [(claim.ref, Logged('[{"message": "read"}]'))])
    assert api_database.settle(claim.ref, FAILED)
    assert replay_dead(api_database.engine, 1, [claim.ref.id])
    api_database.submit(payload='{"edited": 1}', resubmitted_from=claim.ref.id)
    answer = client.call(None, "GET", path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    found = document(answer)
    assert found["id"] == found["job"]["id"] == claim.ref.id
    assert found["application"]["candidate"] == "Zaphod"
    assert found["job"]["payload"]["candidate"] == "Zaphod"
    assert found["checkpoint"]["state"] == {"read": "half"}
    [attempt], [log], [event] = found["attempts"], found["logs"], found["events"]
    assert attempt["error_message"] == "no Zaphod here"
    assert log["log"] == [{"message": "read"}]
    assert event["detail"]["error"]["message"] == "no Zaphod here"
    assert [copy["payload"] for copy in found["resubmitted"]] == [{"edited": 1}]


def test_export_of_a_large_payload_with_its_key(client: HttpClient) -> None:
    text = "long " * 20_000
    answer = client.open(
        "POST",
        "/applications",
        {"Idempotency-Key": '"large"'},
        {"candidate": "Zaphod", "payload": text},
    )
    path = f"/applications/{document(answer)['id']}"
    found = document(client.call(None, "GET", f"{path}/export"))
    assert found["job"]["payload_blob"] is not None
    assert found["job"]["payload"]["payload"] == text
    assert [used["key"] for used in found["idempotency_keys"]] == ["large"]
    assert (found["checkpoint"], found["attempts"], found["logs"]) == (None, [], [])
    assert client.call(None, "POST", f"{path}/erase").status_code == 202, "its blob is left"
    assert_gone(client.call(None, "GET", f"{path}/export"))


def test_export_of_a_scored_application_whose_job_is_retired(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = put_scored(api_database, "general", "77")
    api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    assert (found["job"], found["application"]["score"]) == (None, 77)


def add_copies(database: DatabaseFixture, origin: str, count: int) -> list[str]:
    """Jobs that were submitted in the place of another one, oldest first."""
    ids = [new_id() for _ in range(count)]
    database.execute(
        """
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, resubmitted_from)
        SELECT id, 1, 'echo', 'medium', '"edited"', 'cancelled', %s::uuid
        FROM unnest(%s::uuid[]) AS given (id)""",
        origin,
        ids,
    )
    return ids


def copies_in(found: dict[str, Any]) -> list[str]:
    return [copy["id"] for copy in found["resubmitted"]]


def test_an_export_has_the_oldest_of_many_copies_and_names_the_others(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    ids = add_copies(api_database, job_id, MOST_COPIES + 3)
    api_database.submit(tenant_id=2, resubmitted_from=job_id)
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    assert copies_in(found) == ids[:MOST_COPIES]
    assert found["more_resubmitted"] == {"count": 3, "at_least": False, "ids": ids[MOST_COPIES:]}
    for copy in found["more_resubmitted"]["ids"]:
        own = document(client.call(None, "GET", f"/applications/{copy}/export"))
        assert (own["application"], own["job"]["payload"]) == (None, "edited")


def test_an_export_names_a_bounded_number_of_copies(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    add_copies(api_database, job_id, MOST_COPIES + MOST_IDS + 50)
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    more = found["more_resubmitted"]
    assert (more["count"], more["at_least"], len(more["ids"])) == (MOST_IDS, True, MOST_IDS)
    assert len(found["resubmitted"]) == MOST_COPIES


def test_rows_of_copies_beyond_some_bytes_are_left_out_and_exported_by_their_own_ids(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    ids = add_copies(api_database, job_id, 5)
    # As large as results can be, and small while they are compressed.
    result = json.dumps("x" * (MOST_BYTES // 3))
    api_database.execute("UPDATE jobs SET result = %s WHERE id = ANY (%s::uuid[])", result, ids)
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    assert copies_in(found) == ids[:2]
    assert found["more_resubmitted"] == {"count": 3, "at_least": False, "ids": ids[2:]}
    own = document(client.call(None, "GET", f"/applications/{ids[4]}/export"))
    assert own["job"]["result"] == json.loads(result)


def put_payloads(client: HttpClient, database: DatabaseFixture, ids: list[str], text: str) -> None:
    """Payloads in the blob store."""
    for job_id in ids:
        client.services.blobs.put(payload_key(job_id), json.dumps(text).encode())
        database.execute(
            "UPDATE jobs SET payload_blob = %s WHERE id = %s", payload_key(job_id), job_id
        )


def test_blobs_of_copies_beyond_some_bytes_are_left_out_and_exported_by_their_own_ids(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    ids = add_copies(api_database, job_id, MOST_COPIES + 2)
    text = "x" * (MOST_BYTES // 2 - 2)
    put_payloads(client, api_database, ids[1:5], text)
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    assert copies_in(found) == ids[:3]
    assert [copy["payload"] for copy in found["resubmitted"]] == ["edited", text, text]
    assert found["more_resubmitted"]["ids"] == ids[3:]
    assert found["more_resubmitted"]["count"] == MOST_COPIES - 1
    own = document(client.call(None, "GET", f"/applications/{ids[3]}/export"))
    assert own["job"]["payload"] == text


def test_copies_are_left_out_where_the_blob_store_takes_too_long_for_all(
    client: HttpClient, api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(client)
    ids = add_copies(api_database, job_id, 3)
    put_payloads(client, api_database, ids[1:], "large")
    path = f"/applications/{job_id}/export"
    assert copies_in(document(client.call(None, "GET", path))) == ids
    monkeypatch.setattr(privacy, "COPIES_SECONDS", 0.0)
    found = document(client.call(None, "GET", path))
    assert copies_in(found) == ids[:1]
    assert found["more_resubmitted"]["ids"] == ids[1:]


def test_an_export_has_the_newest_of_many_events_and_the_feed_the_older_ones(
    client: HttpClient, api_database: DatabaseFixture
) -> None:
    job_id = submit(client)
    api_database.execute(
        """
        INSERT INTO events (tenant_id, kind, job_id, detail)
        SELECT 1, 'job_replayed', %s, json_build_object('number', number)
        FROM generate_series(1, %s) AS number""",
        job_id,
        MOST_EVENTS + 2,
    )
    found = document(client.call(None, "GET", f"/applications/{job_id}/export"))
    told = [event["detail"]["number"] for event in found["events"]]
    assert told == list(range(3, MOST_EVENTS + 3))
    assert found["older_events"] == 2
    beginning = parse_position("0-0")
    assert beginning is not None
    [entries] = read_entries(api_database.engine, [(1, beginning)])
    assert b'"number" : 1}' in b"".join(entry.event for entry in entries)


def start(database: DatabaseFixture) -> Claim:
    """An application that is being scored."""
    job_id = database.submit_application("Zaphod")
    sent = [JobRef(one.id, one.lease) for one in database.dispatch() if one.id == job_id]
    [claim] = database.claim(*sent)
    return claim
