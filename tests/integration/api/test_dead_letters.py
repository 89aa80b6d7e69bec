"""``/dead-letters``: jobs that failed for good, why, and their replay."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.cli.commands import replay_dead_letters
from app.config import Settings
from app.scheduler.maintenance.replayer import Replayer
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.replay_requests import MOST_RUNNING
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tests.integration.api.test_contract import JOB_FIELDS, bring
from tests.integration.api.test_job_list import walk
from tests.integration.api.test_jobs import MORE_FIELDS, start
from tests.support.api_server import Answer, ApiServer
from tests.support.database_fixture import DatabaseFixture


def make_dead(database: DatabaseFixture, failure: str = "APP_ERROR", **fields: Any) -> str:
    """A job that was run once and is dead; its id."""
    claim = start(database, **fields)
    message = f"{failure} it is"
    ending = Ending(
        JobStatus.DEAD,
        tries_spent=1,
        error_class=FailureClass(failure),
        error_message=message,
    )
    assert database.settle(claim.ref, ending)
    return claim.ref.id


def replay(api: ApiServer, **body: Any) -> Answer:
    return api.post(body, path="/dead-letters/replay")


def listed(api: ApiServer, query: str) -> list[str]:
    pages = walk(api, f"/dead-letters?{query}", "dead_letters")
    return [letter["id"] for page in pages for letter in page]


def test_dead_letter_says_why_and_what_was_tried(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = make_dead(api_database, "TIMEOUT", type="reasons")
    (letter,) = api.get("/dead-letters?type=reasons").json()["dead_letters"]
    assert set(letter) == (JOB_FIELDS - {"result"}) | MORE_FIELDS
    assert (letter["id"], letter["status"], letter["attempt"]) == (job_id, "dead", 1)
    assert letter["error"] == {"class": "TIMEOUT", "message": "TIMEOUT it is"}
    assert letter["finished_at"]
    (attempt,) = letter["attempts"]
    assert (attempt["status"], attempt["error"]) == ("dead", letter["error"])


def test_dead_letters_are_listed_by_type_and_class_newest_first(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = [
        make_dead(api_database, failure, type="both")
        for failure in ("TIMEOUT", "POISON", "TIMEOUT")
    ]
    make_dead(api_database, "TIMEOUT", type="other")
    foreign = api_database.submit(type="both", tenant_id=2)
    bring(api_database, foreign, "dead")
    api_database.submit(type="both")
    for limit in (1, 2, 200):
        assert listed(api, f"type=both&limit={limit}") == made[::-1]
        assert listed(api, f"type=both&error_class=TIMEOUT&limit={limit}") == [made[2], made[0]]
    assert listed(api, "type=nobody") == []


def test_replayed_job_waits_in_line_with_a_fresh_count(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = make_dead(api_database, type="fresh", not_after=datetime(2100, 1, 1, tzinfo=UTC))
    before = api_database.job(job_id)
    assert before.attempt == 1
    assert api.get(f"/jobs/{job_id}").json()["status"] == "dead"
    answer = replay(api, ids=[job_id])
    assert (answer.status, answer.json()) == (
        200,
        {"replayed": 1, "skipped": 0, "ids": [job_id]},
    )
    body = api.get(f"/jobs/{job_id}").json()
    assert (body["status"], body["attempt"], body["crashes"], body["replays"]) == (
        "queued",
        0,
        0,
        1,
    )
    assert body["error"] is body["finished_at"] is body["not_after"] is None
    assert len(body["attempts"]) == 1  # what happened stays on record
    row = api_database.job(job_id)
    assert (row.lease, row.ended_xid) == (before.lease, None)
    assert listed(api, "type=fresh") == []
    assert not api_database.settle(JobRef(job_id, 1), Ending(JobStatus.SUCCEEDED))
    assert not api_database.miscounted()


def test_what_is_not_dead_or_not_ours_is_skipped(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    dead = make_dead(api_database)
    foreign = api_database.submit(tenant_id=2)
    bring(api_database, foreign, "dead")
    waiting = api_database.submit()
    asked = [dead, foreign, waiting, new_id(), dead.upper()]
    assert replay(api, ids=asked).json() == {"replayed": 1, "skipped": 3, "ids": [dead]}
    assert replay(api, ids=asked).json() == {"replayed": 0, "skipped": 4, "ids": []}
    assert api_database.job(foreign).status == "dead"


def test_dead_letters_are_replayed_by_what_they_have_in_common(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    timeouts = [make_dead(api_database, "TIMEOUT", type="common") for _ in range(3)]
    poison = make_dead(api_database, "POISON", type="common")
    (row,) = api_database.query("SELECT finished_at FROM jobs WHERE id = %s", timeouts[0])
    asked = {"type": "common", "error_class": "TIMEOUT"}
    early = {**asked, "before": row[0].isoformat()}
    assert replay(api, filter=early).json()["ids"] == [timeouts[0]]
    assert replay(api, filter=asked, limit=1).json()["ids"] == [timeouts[1]]
    assert replay(api, filter=asked).json() == {
        "replayed": 1,
        "skipped": 0,
        "ids": [timeouts[2]],
    }
    assert listed(api, "type=common") == [poison]


@pytest.mark.parametrize("by", ["ids", "filter"])
def test_job_is_replayed_once_however_many_ask(
    api: ApiServer, api_database: DatabaseFixture, by: str
) -> None:
    jobs = 200 if by == "ids" else 1200  # the filter goes by the thousand
    rows = api_database.query(
        """
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, finished_at)
        SELECT gen_random_uuid(), 1, %s, 'long', '{}', 'dead', 1, now()
        FROM generate_series(1, %s) RETURNING id::text
        """,
        f"once-{by}",
        jobs,
    )
    made = [row[0] for row in rows]
    body = {"ids": made} if by == "ids" else {"filter": {"type": f"once-{by}"}}
    with ThreadPoolExecutor(8) as callers:
        answers = [a.json() for a in callers.map(lambda _: replay(api, **body), range(8))]
    replayed = [job_id for answer in answers for job_id in answer["ids"]]
    assert sorted(replayed) == sorted(made)
    rows = api_database.query(
        "SELECT DISTINCT status::text, replays FROM jobs WHERE type = %s", f"once-{by}"
    )
    assert [tuple(row) for row in rows] == [("queued", 1)]
    assert not api_database.miscounted()


def test_unknown_letters_are_no_error(api: ApiServer) -> None:
    assert replay(api, filter={"type": "nobody"}).json() == {
        "replayed": 0,
        "skipped": 0,
        "ids": [],
    }


def test_operator_replays_by_the_command_after_a_look_at_the_count(
    api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = make_dead(api_database, type="cli"), make_dead(api_database, type="cli-other")
    foreign = api_database.submit(type="cli", tenant_id=2)
    bring(api_database, foreign, "dead")
    api_database.execute("UPDATE jobs SET finished_at = now() WHERE id = %s", foreign)
    url = api_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setattr("app.config.settings", lambda: Settings(database_url=url))
    run = CliRunner().invoke
    asked = run(replay_dead_letters, ["--type", "cli"], input="n\n")
    assert asked.exit_code == 1 and "demo: 1 dead letters" in asked.output
    assert "Replay 2?" in asked.output and api_database.job(mine).status == "dead"
    done = run(replay_dead_letters, ["--type", "cli", "--tenant", "demo", "--yes"])
    assert done.exit_code == 0 and "1 of 1 replayed" in done.output
    assert api_database.job(mine).status == "queued"
    assert api_database.job(foreign).status == api_database.job(other).status == "dead"
    assert "No dead letters" in run(replay_dead_letters, ["--type", "nobodys"]).output


@pytest.fixture
def slow_tenant(api_database: DatabaseFixture) -> Iterator[None]:
    """Tenant 1 may submit ten at once."""
    terms = "UPDATE tenants SET submit_per_second = %s, submit_burst = %s WHERE id = 1"
    api_database.execute(terms, 0.001, 10)
    yield
    api_database.execute(terms, None, None)
    api_database.execute("UPDATE tenants SET changed_at = now()")  # the API may have seen it


def test_a_replay_without_room_goes_on_in_the_background(
    api: ApiServer, api_database: DatabaseFixture, slow_tenant: None
) -> None:
    made = [make_dead(api_database, type="many") for _ in range(12)]
    few = [make_dead(api_database, type="few") for _ in range(2)]
    assert replay(api, filter={"type": "few"}).json() == {
        "replayed": 2,
        "skipped": 0,
        "ids": sorted(few),
    }
    answer = replay(api, filter={"type": "many"})
    assert answer.status == 202 and answer.headers["retry-after"] == "1"
    begun = answer.json()
    assert (begun["state"], begun["total"], begun["done"]) == ("running", 12, 0)
    path = answer.headers["location"]
    assert path == f"/dead-letters/replays/{begun['id']}"
    assert replay(api, filter={"type": "many"}).json()["id"] == begun["id"]
    by_ids = replay(api, ids=made)
    assert by_ids.status == 202 and by_ids.json()["id"] != begun["id"]
    api_database.leader.run_once(0.0)
    limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
    role = Replayer(
        api_database.engine, api_database.leader, TenantLimits(api_database.engine, limits)
    )
    assert role.run_once(0.0) == 3, "eight are left, five of them for submissions"
    assert api.get(path).json()["reason"] == "TENANT_RATE_LIMIT_EXCEEDED"
    ended = api.request("DELETE", path)
    assert (ended.status, ended.json()["state"]) == (200, "cancelled")
    assert api.request("DELETE", path).json() == ended.json(), "once more changes nothing"
    assert "retry-after" not in api.get(path).headers
    api.request("DELETE", by_ids.headers["location"])
    assert role.run_once(100.0) == 0
    assert sum(api_database.job(one).status == "queued" for one in made) == 3


def test_one_replay_too_many_is_refused(
    api: ApiServer,
    api_database: DatabaseFixture,
    slow_tenant: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(30):
        make_dead(api_database, type="crowd")
    running = [replay(api, filter={"type": "crowd"}, limit=11 + n) for n in range(MOST_RUNNING)]
    assert {one.status for one in running} == {202}
    refused = replay(api, filter={"type": "crowd"})
    assert (refused.status, refused.json()["code"]) == (409, "CONFLICT")
    assert "10 replays of dead letters are running" in refused.json()["detail"]
    url = api_database.engine.url.render_as_string(hide_password=False)
    monkeypatch.setattr("app.config.settings", lambda: Settings(database_url=url))
    by_command = CliRunner().invoke(replay_dead_letters, ["--type", "crowd", "--yes"])
    assert by_command.exit_code == 0 and "demo: nothing replayed. 10" in by_command.output
    api.request("DELETE", running[0].headers["location"])
    running[0] = replay(api, filter={"type": "crowd"})
    assert running[0].status == 202, "there is room again"
    for one in running:
        api.request("DELETE", one.headers["location"])


@pytest.mark.parametrize("replay_id", ["nonsense", "0192f0c1-0000-7000-8000-000000000000"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_unknown_replay_is_not_found(api: ApiServer, method: str, replay_id: str) -> None:
    assert api.request(method, f"/dead-letters/replays/{replay_id}").status == 404


def discard(api: ApiServer, **body: Any) -> Answer:
    return api.post(body, path="/dead-letters/discard")


def test_a_discarded_dead_letter_stays_on_record_and_is_not_replayed(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    job_id = make_dead(api_database, type="unwanted")
    foreign = make_dead(api_database, type="unwanted", tenant_id=2)
    answer = discard(api, ids=[job_id, foreign, new_id()])
    assert answer.status == 200
    assert answer.json() == {"discarded": 1, "skipped": 2, "ids": [job_id]}
    assert listed(api, "type=unwanted") == []
    job = api.get(f"/jobs/{job_id}").json()
    assert (job["status"], job["error"]["class"]) == ("cancelled", "APP_ERROR")
    assert job["cancel_requested_at"] > job["finished_at"] and len(job["attempts"]) == 1
    assert replay(api, ids=[job_id]).json()["replayed"] == 0
    assert discard(api, ids=[job_id]).json() == {"discarded": 0, "skipped": 1, "ids": []}
    assert api_database.job(foreign).status == "dead"
    assert not api_database.miscounted()


def test_dead_letters_are_discarded_by_a_filter_up_to_a_limit(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = [make_dead(api_database, "TIMEOUT", type="piled") for _ in range(3)]
    other = make_dead(api_database, type="piled")
    chosen = {"type": "piled", "error_class": "TIMEOUT"}
    assert discard(api, filter=chosen, limit=2).json()["ids"] == made[:2]
    assert discard(api, filter=chosen).json()["ids"] == made[2:]
    assert discard(api, filter=chosen).json()["discarded"] == 0
    assert listed(api, "type=piled") == [other]


def test_a_replay_and_a_discard_at_the_same_time_move_a_dead_letter_once(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    for _ in range(5):
        job_id = make_dead(api_database)
        with ThreadPoolExecutor(2) as both:
            replayed = both.submit(replay, api, ids=[job_id])
            discarded = both.submit(discard, api, ids=[job_id])
        moved = (replayed.result().json()["replayed"], discarded.result().json()["discarded"])
        assert sum(moved) <= 1
        status = api_database.job(job_id).status
        assert status == {(1, 0): "queued", (0, 1): "cancelled", (0, 0): "dead"}[moved]


def test_a_discard_says_what_to_discard(api: ApiServer) -> None:
    for body in ({}, {"ids": ["x"]}, {"ids": [new_id()], "filter": {}}, {"filter": {}, "limit": 0}):
        assert discard(api, **body).status == 422
