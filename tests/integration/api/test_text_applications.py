"""An application may be a text: it is kept, shown and scored as it was sent."""

from __future__ import annotations

from typing import Any

import pytest

from models.blobs import INLINE_BYTES
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture

TEXT = "5 years backend, Go and Python"


def test_the_first_documented_request_is_accepted_and_kept_as_sent(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    answer = api.request(
        "POST",
        "/applications",
        b'{"candidate": "alice", "payload": "5 years backend, Go and Python"}',
        {"Content-Type": "application/json"},
    )
    assert answer.status == 202, answer
    job = api_database.job(answer.json()["id"])
    assert job.payload == {"candidate": "alice", "role": "general", "payload": TEXT}
    assert api.get(answer.headers["location"]).json()["candidate"] == "alice"


@pytest.mark.parametrize("text", ["", " \r\n\t", '"', "{}", "ü 🎓 \\ \u2028", "x" * INLINE_BYTES])
def test_any_text_is_kept_to_the_letter(
    api: ApiServer, api_database: DatabaseFixture, text: str
) -> None:
    as_application = api.submit(payload=text)
    as_job = api.submit_job("score_application", payload={"candidate": "Ada", "payload": text})
    for job_id in (as_application, as_job):
        job = api_database.job(job_id)
        if job.payload_blob is None:
            assert job.payload["payload"] == text
        else:
            assert (api.blobs / job.payload_blob).read_text().endswith(f'"{text}"}}')


@pytest.mark.parametrize("payload", [None, True, 1, 1.5, [], ["text"]])
def test_anything_else_is_refused_with_one_clear_reason(api: ApiServer, payload: Any) -> None:
    work = {"candidate": "Ada", "payload": payload}
    direct = api.post(work)
    as_job = api.post({"type": "score_application", "payload": work}, path="/jobs")
    for answer, field in ((direct, "payload"), (as_job, "payload.payload")):
        problem = assert_problem(answer, 422, "VALIDATION_FAILED")
        expected = {"field": field, "message": "Input should be a text or an object"}
        assert problem["errors"] == [expected]


def test_a_nul_in_a_text_is_refused(api: ApiServer) -> None:
    problem = assert_problem(
        api.post(b'{"candidate":"Ada","payload":"a\\u0000b"}'), 422, "VALIDATION_FAILED"
    )
    assert problem["errors"][0]["field"] == "payload"


def test_the_document_shows_a_text_first(api: ApiServer) -> None:
    document = api.get("/openapi.json").json()
    payload = document["components"]["schemas"]["SubmitApplication"]["properties"]["payload"]
    assert [each["type"] for each in payload["anyOf"]] == ["string", "object"]
    assert payload["examples"] == [TEXT]
