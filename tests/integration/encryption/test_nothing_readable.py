"""With keys configured, what a client sends and gets back is readable nowhere but through the API.

Real processes: API, scheduler and worker, on a PostgreSQL of their own and a folder of blobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.reads.events.feed import read_entries
from app.reads.events.position import START
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import ApiServer, serving
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.encryption_keys import encrypting, new_key, python_path, readable_in
from tests.support.waiting import wait_for

MARKER = "maple-syrup-7319"
LARGE = f"{MARKER}{'x' * 70_000}{MARKER}"
KEYS = new_key("first")
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was sent in through the API and has ended."""

    api: ApiServer
    blobs: Path
    applications: tuple[str, str]
    repeated: tuple[str, str]
    refused: str
    schedule: str
    tick: str


def ended(api: ApiServer, path: str) -> dict[str, Any]:
    """The job or application at its end."""

    def read() -> dict[str, Any] | None:
        document: dict[str, Any] = api.get(path).json()
        return document if document.get("finished_at") else None

    found: dict[str, Any] = wait_for(read, SECONDS, f"the end of {path}")
    return found


@pytest.fixture(scope="module")
def submitted(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Submitted]:
    folder = tmp_path_factory.mktemp("encrypted")
    for name in ("blobs", "broker"):
        (folder / name).mkdir()
    given = {
        "database_url": api_database.engine.url.render_as_string(hide_password=False),
        "broker_url": f"filesystem://{folder / 'broker'}",
        "blob_url": str(folder / "blobs"),
        "job_modules": "tests.support.secretive_jobs",
        "score_seconds": "0.05",
        "encryption_keys": KEYS,
    }
    env = {f"FAIRLINE_{name.upper()}": value for name, value in given.items()}
    env["PYTHONPATH"] = python_path()
    api_database.leader.resign()
    with ExitStack() as running:
        running.enter_context(command(SCHEDULER, env, folder / "scheduler.log"))
        running.enter_context(command(worker("medium"), env, folder / "worker.log"))
        rest = {name: value for name, value in given.items() if name != "database_url"}
        api = running.enter_context(
            serving(given["database_url"], folder, api_workers=1, console_open="true", **rest)
        )
        yield submit_all(api, folder / "blobs")


def submit_all(api: ApiServer, blobs: Path) -> Submitted:
    """One of everything that holds content, to its end."""
    small, large = (api.submit(payload=f"I know {text}") for text in (MARKER, LARGE))
    repeated = tuple(api.submit_job("repeat", payload={"text": text}) for text in (MARKER, LARGE))
    refused = api.submit_job("refuse", payload=MARKER)
    body = {"name": "yearly", "cron": "0 0 1 1 *", "type": "repeat", "payload": [MARKER]}
    schedule = api.post(body, path="/schedules").json()["id"]
    tick = api.post({}, path=f"/schedules/{schedule}/run").json()["id"]
    for job_id in (*repeated, refused, tick):
        ended(api, f"/jobs/{job_id}")
    for application in (small, large):
        ended(api, f"/applications/{application}")
    # A replay keeps the error of the dead letter in an event.
    assert api.post({"ids": [refused]}, path="/dead-letters/replay").json()["replayed"] == 1
    assert ended(api, f"/jobs/{refused}")["replays"] == 1
    return Submitted(
        api, blobs, (small, large), (repeated[0], repeated[1]), refused, schedule, tick
    )


def test_the_marker_is_in_no_column_and_no_file(
    submitted: Submitted, api_database: DatabaseFixture
) -> None:
    assert readable_in(api_database, MARKER, submitted.blobs) == []
    rows = api_database.query(
        "SELECT payload::text AS payload, payload_blob FROM jobs WHERE tenant_id = 1"
    )
    assert len(rows) == 6 and sum(row.payload_blob is not None for row in rows) == 2
    assert all(row.payload.startswith('"fairline-encrypted:1:first:') for row in rows)


def test_the_search_for_it_does_find_it(api_database: DatabaseFixture, tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("so-readable")
    api_database.execute(
        "INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)"
        " VALUES (7, 'so-readable', 'so-readable'::bytea, '{}')"
    )
    api_database.execute(
        "INSERT INTO events (tenant_id, kind, detail) VALUES (7, 'x', '[\"so-readable\"]')"
    )
    found = readable_in(api_database, "so-readable", tmp_path)
    api_database.execute("DELETE FROM idempotency_keys WHERE tenant_id = 7")
    api_database.execute("DELETE FROM events WHERE tenant_id = 7")
    expected = ["events.detail", "idempotency_keys.digest", "idempotency_keys.key"]
    assert found == sorted([*expected, str(tmp_path / "blob")])


def test_the_api_returns_what_was_stored(submitted: Submitted) -> None:
    api = submitted.api
    for job_id, text in zip(submitted.repeated, (MARKER, LARGE), strict=True):
        job = api.get(f"/jobs/{job_id}").json()
        assert job["result"] == {"payload": {"text": text}, "saved": {"text": text}}
        assert MARKER in job["attempts"][0]["error"]["message"]
        (failed, _) = api.get(f"/jobs/{job_id}/runs").json()["runs"]
        assert MARKER in failed["traceback"] and MARKER in failed["log"][0]["message"]
    assert api.get(f"/jobs/{submitted.tick}").json()["result"]["payload"] == [MARKER]
    assert api.get(f"/schedules/{submitted.schedule}").json()["payload"] == [MARKER]
    (letter,) = api.get("/dead-letters").json()["dead_letters"]
    assert letter["error"]["message"] == f"refused: {MARKER}"
    assert letter["attempts"][0]["error"]["message"] == f"refused: {MARKER}"
    listed = {job["id"]: job for job in api.get("/jobs").json()["jobs"]}
    assert listed[submitted.refused]["error"]["message"] == f"refused: {MARKER}"


def test_applications_have_their_score_rationale_and_record(submitted: Submitted) -> None:
    api = submitted.api
    board = {one["id"]: one for one in api.get("/leaderboard").json()["entries"]}
    assert board.keys() == set(submitted.applications)
    for application_id, text in zip(submitted.applications, (MARKER, LARGE), strict=True):
        found = api.get(f"/applications/{application_id}").json()
        assert found["status"] == "scored" and found["rank"] and found["rationale"]
        assert found["record"]["input"] and found["result"]["score"] == found["score"]
        assert board[application_id]["rationale"] == found["rationale"]
        export = api.get(f"/applications/{application_id}/export").json()
        assert export["job"]["payload"]["payload"] == f"I know {text}"
        assert export["job"]["result"] == export["application"]["record"] == found["result"]


def test_feeds_and_pages_are_readable(submitted: Submitted, api_database: DatabaseFixture) -> None:
    with encrypting(KEYS):
        [entries] = read_entries(api_database.engine, [(1, START)])
        told = b"".join(entry.event for entry in entries).decode()
    assert told.count(f"refused: {MARKER}") == 2, "the end and the event of the replay"
    assert "fairline-encrypted" not in told
    for path in (
        f"/console/jobs/{submitted.repeated[0]}",
        f"/console/jobs/{submitted.repeated[0]}/payload",
        f"/console/jobs/{submitted.repeated[1]}/payload",
        f"/console/jobs/{submitted.repeated[0]}/result",
        f"/console/jobs/{submitted.refused}/resubmit",
        "/console/jobs?status=dead",
        "/console/dead-letters",
        f"/console/leaderboard/{submitted.applications[0]}",
        f"/console/schedules/{submitted.schedule}",
    ):
        page = submitted.api.get(path)
        assert page.status == 200 and MARKER in page.body.decode(), path
        assert "fairline-encrypted" not in page.body.decode(), path
    page = submitted.api.get("/console/leaderboard").body.decode()
    assert "fairline-encrypted" not in page


def test_idempotency_keys_still_tell_requests_apart(submitted: Submitted) -> None:
    api, key = submitted.api, {"Idempotency-Key": "once"}
    body = {"candidate": "Ada", "payload": "another text", "role": "keyed"}
    first, again = (api.post(body, headers=key) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = api.post({**body, "payload": "other"}, headers=key)
    assert_problem(other, 422, "IDEMPOTENCY_KEY_REUSED")


def test_payloads_cannot_be_searched_and_that_is_said(submitted: Submitted) -> None:
    problem = assert_problem(submitted.api.get("/jobs?payload=text=x"), 422, "VALIDATION_FAILED")
    assert problem["errors"][0]["message"] == "is stored encrypted and cannot be searched"
    page = submitted.api.get("/console/jobs?text=maple").body.decode()
    assert "is stored encrypted and cannot be searched" in page


@pytest.mark.parametrize(
    "keys", [new_key("first"), new_key("second"), ""], ids=["of the same id", "other", "none"]
)
def test_another_key_is_a_clear_problem_and_never_a_500(
    submitted: Submitted, api_database: DatabaseFixture, tmp_path: Path, keys: str
) -> None:
    url = api_database.engine.url.render_as_string(hide_password=False)
    given = {"encryption_keys": keys, "blob_url": str(submitted.blobs), "console_open": "true"}
    with serving(url, tmp_path, api_workers=1, **given) as api:
        for path in (
            f"/jobs/{submitted.repeated[0]}",
            f"/applications/{submitted.applications[0]}",
            f"/applications/{submitted.applications[1]}/export",
            f"/schedules/{submitted.schedule}",
        ):
            problem = assert_problem(api.get(path), 503, "CONTENT_UNREADABLE")
            assert "'first'" in problem["detail"], problem
        for path in ("/jobs", "/dead-letters", "/leaderboard", f"/jobs/{submitted.refused}/runs"):
            found = api.get(path)
            assert found.status == 200 and "the key 'first'" in found.body.decode(), path
        for path in (
            f"/console/jobs/{submitted.repeated[0]}",
            "/console/dead-letters",
            f"/console/leaderboard/{submitted.applications[0]}",
        ):
            page = api.get(path)
            assert page.status == 200 and "the key" in page.body.decode(), path
