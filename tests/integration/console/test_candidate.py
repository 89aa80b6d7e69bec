"""A candidate's page: the score, what it rests on, and why there is none yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from markupsafe import escape

from app.console.leaderboard.candidate import CANDIDATE
from app.console.page import PageRequest, render_parts
from models.jobs.ids import new_id
from tasks.scorers.protocol import ApplicationText
from tests.integration.api.test_contract import bring
from tests.integration.api.test_leaderboard import put
from tests.support.applicants import HOSTILE, LETTER, PATH, Visitor, score, visiting, words
from tests.support.blob_keys import keys_in
from tests.support.database_fixture import DatabaseFixture


@pytest.fixture(scope="module")
def visitor(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visitor]:
    with visiting(api_database, tmp_path_factory.mktemp("blobs")) as found:
        yield found


def test_a_score_shows_the_record_that_it_came_from(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    job_id = score(api_database, "record", LETTER)
    put(api_database, "record", [100, float(api_database_score(api_database, job_id))])
    seen = visitor.see(f"{PATH}/{job_id}")
    document = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert document is not None
    assert "Rank 2nd in this role, tied with 1" in seen
    for mark in document["criteria"]:
        assert f"{mark['title']} weight {mark['weight']} % {mark['mark']:.2f}" in seen
    assert "Built a compiler" in " ".join(q for qs in document["evidence"].values() for q in qs)
    assert f"weighted marks add up to {document['score']:.2f}, the score" in seen
    assert document["record"]["input"] == ApplicationText("Ada", "record", LETTER).fingerprint()
    for value in (document["record"]["rubric"], document["record"]["input"], "simulated"):
        assert value in seen
    assert "its hash matches the record" in seen


@pytest.mark.parametrize("payload", [HOSTILE, {"text": HOSTILE}])
def test_an_application_that_is_a_text_is_shown_as_it_was_sent(
    visitor: Visitor, api_database: DatabaseFixture, payload: str | dict[str, Any]
) -> None:
    job_id = score(api_database, "text", payload)
    page = visitor.get(f"{PATH}/{job_id}").text
    assert f">{escape(HOSTILE)}</pre>" in page
    assert "&#34;text&#34;" not in page
    assert "its hash matches the record" in words(page)


def api_database_score(database: DatabaseFixture, job_id: str) -> Any:
    return database.query("SELECT score FROM applications WHERE id = %s", job_id)[0].score


def test_the_record_outlives_the_job(visitor: Visitor, api_database: DatabaseFixture) -> None:
    job_id = score(api_database, "outlives", LETTER)
    parts = ("score", "criteria", "evidence", "record", "result")
    before = visitor.call(None, "GET", f"/applications/{job_id}").json
    api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
    visitor.services.views._kept.clear()
    after = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert before is not None
    assert after is not None
    assert [after[part] for part in parts] == [before[part] for part in parts]
    seen = visitor.see(f"{PATH}/{job_id}")
    assert after["record"]["input"] in seen
    assert "It was deleted with its job" in seen


def test_a_quote_that_was_dropped_is_told_and_hostile_ones_are_text(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    job_id = score(
        api_database, "quotes", {"cv": HOSTILE}, evidence={"clarity": [HOSTILE]}, dropped_quotes=2
    )
    page = visitor.get(f"{PATH}/{job_id}").text
    assert HOSTILE not in page
    assert "<q>&lt;script&gt;" in page
    assert "2 without a match or without content were dropped" in words(page)


def test_a_score_that_its_marks_do_not_amount_to_is_told(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    job_id = score(api_database, "tampered", LETTER)
    api_database.execute("UPDATE applications SET score = score / 2 + 1 WHERE id = %s", job_id)
    api_database.execute(
        'UPDATE jobs SET payload = \'{"payload": {"letter": "another"}}\' WHERE id = %s', job_id
    )
    seen = visitor.see(f"{PATH}/{job_id}")
    assert "which is not the score" in seen
    assert "Its hash does not match the record" in seen


@pytest.mark.parametrize(
    "result",
    ['{"score": 9, "rationale": "old", "model": "m", "rubric": "r", "usage": null}', None],
)
def test_scores_from_before_records_were_kept_are_shown(
    visitor: Visitor, api_database: DatabaseFixture, result: str | None
) -> None:
    job_id = api_database.submit_application(role="old")
    bring(api_database, job_id, "succeeded")
    api_database.execute("UPDATE jobs SET result = %s WHERE id = %s", result, job_id)
    api_database.execute("UPDATE applications SET score = 9 WHERE id = %s", job_id)
    assert "Score 9.00 of 100" in visitor.see(f"{PATH}/{job_id}")
    document = visitor.call(None, "GET", f"/applications/{job_id}").json
    assert document is not None
    assert (document["criteria"], document["evidence"]) == (None, None)
    nothing = {"input": None, "dropped_quotes": None}
    assert document["record"] == (result and {"model": "m", "rubric": "r", **nothing})


@pytest.mark.parametrize(
    ("status", "changes", "told"),
    [
        ("queued", "attempt = 0", "Queued for scoring."),
        ("running", "started_at = now()", "Being scored."),
        ("dead", "error_class = 'PERMANENT', error_message = '<b>no key</b>'", "PERMANENT: <b>no"),
        ("cancelled", "finished_at = now()", "Withdrawn"),
        ("expired", "not_after = now()", "Expired: scoring had not started by"),
    ],
)
def test_what_is_not_scored_says_why(
    visitor: Visitor, api_database: DatabaseFixture, status: str, changes: str, told: str
) -> None:
    job_id = api_database.submit_application(role="unscored")
    if status != "queued":
        bring(api_database, job_id, status)
    api_database.execute(f"UPDATE jobs SET {changes} WHERE id = %s", job_id)
    page = visitor.get(f"{PATH}/{job_id}").text
    assert told in words(page)
    assert "<b>no key" not in page
    assert "Criteria" not in page


def test_a_retry_is_announced_with_its_reason(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    job_id = api_database.submit_application(role="unscored")
    bring(api_database, job_id, "running")
    api_database.execute(
        "UPDATE jobs SET status = 'scheduled', execute_at = now() + interval '1 minute',"
        " deferrals = 2, error_class = 'DEPENDENCY', error_message = 'overloaded' WHERE id = %s",
        job_id,
    )
    seen = visitor.see(f"{PATH}/{job_id}")
    assert "The last attempt failed. Next attempt:" in seen
    assert "DEPENDENCY: overloaded" in seen


def test_an_application_that_is_not_there_is_not_found(
    visitor: Visitor, api_database: DatabaseFixture
) -> None:
    for text in ("nonsense", new_id(), api_database.submit()):
        assert visitor.get(f"{PATH}/{text}").status_code == 404


def test_a_large_application_is_cut_and_read_only_for_the_whole_page(visitor: Visitor) -> None:
    text = "A word and another. " * 40_000
    target = visitor.send(application=text).headers["Location"]
    answer = visitor.get(target)
    assert len(answer.text) < 60_000
    assert "The first 20 000 of 800 000 characters." in words(answer.text)
    job_id = target.rpartition("/")[2]
    for blob in keys_in(visitor.services.blobs, -1.0):
        visitor.services.blobs.delete(blob)
    assert "The payload is no longer stored." in visitor.see(target)
    with visitor.app.app_context():
        parts = render_parts(CANDIDATE, PageRequest(target, {"application_id": job_id}))
    assert "Queued for scoring" in parts["standing"]


def test_an_application_of_many_brackets_is_shown_in_one_line(visitor: Visitor) -> None:
    deep = "[" * 60 + ",".join(["1"] * 200_000) + "]" * 60
    target = visitor.send(application=f'{{"a": {deep}}}').headers["Location"]
    page = visitor.get(target).text
    assert "[[[[[" in page  # indented it would have 25 MB, and take seconds
    assert len(page) < 60_000
