"""``POST /jobs/batch``: a result for each item, one commit for all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from loadtest.attack.corpus.bodies import UNFIT_JOBS
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import Answer, ApiServer
from tests.support.database_fixture import DatabaseFixture

GOOD: dict[str, Any] = {"type": "echo", "payload": {"n": 1}}


def post(api: ApiServer, *jobs: Any) -> Answer:
    return api.post({"jobs": list(jobs)}, path="/jobs/batch")


def test_thousand_jobs_are_taken_in_one_commit_in_their_order(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    answer = post(api, *({"type": "echo", "payload": n, "priority": n % 7} for n in range(1000)))
    body = answer.json()
    assert answer.status == 202
    assert (body["accepted"], body["rejected"], len(body["results"])) == (1000, 0, 1000)
    ids = [result["id"] for result in body["results"]]
    rows = api_database.query(
        "SELECT id::text, payload, priority, xmin::text FROM jobs WHERE id = ANY (%s::uuid[])", ids
    )
    found = {row[0]: row for row in rows}
    assert [found[job_id][1] for job_id in ids] == list(range(1000))
    assert [found[job_id][2] for job_id in ids] == [n % 7 for n in range(1000)]
    assert len({row[3] for row in rows}) == 1
    assert not api_database.miscounted()


def test_result_of_an_item_is_its_id_and_status(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    answer = post(api, GOOD, {"type": "count", "execute_at": later})
    assert int(answer.headers["retry-after"]) >= 1
    first, second = answer.json()["results"]
    assert [set(first), set(second)] == [{"id", "status"}] * 2
    assert (first["status"], second["status"]) == ("queued", "scheduled")
    row = api_database.job(second["id"])
    assert (row.type, row.pool, row.status) == ("count", "long", "scheduled")


def test_bad_item_rejects_only_itself(api: ApiServer, api_database: DatabaseFixture) -> None:
    bad = {"type": "count", "payload": {"to": -1, "of": 2}}
    body = post(api, GOOD, {"type": "nope"}, GOOD, bad).json()
    assert (body["accepted"], body["rejected"]) == (2, 2)
    first, unknown, second, unfit = body["results"]
    assert api_database.job(first["id"]).status == api_database.job(second["id"]).status == "queued"
    assert set(unknown) == {"error"}
    assert unknown["error"]["index"] == 1
    assert unknown["error"]["code"] == "VALIDATION_FAILED"
    assert unknown["error"]["status"] == 422
    assert unknown["error"]["title"] and unknown["error"]["detail"]
    assert [error["field"] for error in unknown["error"]["errors"]] == ["type"]
    assert unfit["error"]["index"] == 3
    fields = {error["field"] for error in unfit["error"]["errors"]}
    assert fields == {"payload.to", "payload.of"}


@pytest.mark.parametrize("name", list(UNFIT_JOBS))
def test_whatever_is_wrong_with_an_item_its_neighbours_are_taken(api: ApiServer, name: str) -> None:
    sent, field = UNFIT_JOBS[name]
    good = b'{"type":"echo"}'
    answer = api.post(b'{"jobs":[%b,%b,%b]}' % (good, sent, good), path="/jobs/batch")
    body = answer.json()
    assert (answer.status, body["accepted"], body["rejected"]) == (202, 2, 1)
    assert field in [error["field"] for error in body["results"][1]["error"]["errors"]]
    assert len(answer.body) < 3_000


def test_batch_without_any_good_item_is_refused_with_what_is_wrong_where(api: ApiServer) -> None:
    answer = post(api, {"type": "nope"}, {"type": "count", "payload": {"to": "x"}}, 7)
    found = assert_problem(answer, 422, "VALIDATION_FAILED")["errors"]
    fields = [error["field"] for error in found]
    assert fields == ["jobs.0.type", "jobs.1.payload.to", "jobs.2"]


def test_thousand_bad_items_make_no_endless_answer(api: ApiServer) -> None:
    bad = {"type": "count", "payload": {f"f{n}": n for n in range(40)}}
    answer = post(api, *[bad] * 999, GOOD)
    assert (answer.status, answer.json()["rejected"]) == (202, 999)
    assert len(answer.body) < 1_048_576
    answer = post(api, *[bad] * 1000)
    assert len(assert_problem(answer, 422, "VALIDATION_FAILED")["errors"]) == 20
