"""``/schedules``: created, listed, changed, paused and removed; and one live tick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from app.tenants import schedules
from models.jobs.ids import new_id
from models.store.session import transaction
from tests.integration.scheduler.test_recurring_jobs import role
from tests.support.api_server import Answer, ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock

FIELDS = {
    "id", "name", "cron", "timezone", "overlap", "catch_up", "type", "priority", "paused",
    "next_at", "last_at", "last_job_id", "made", "skipped", "created_at",
}  # fmt: skip
NOON = {"cron": "0 12 * * *", "type": "echo"}


@pytest.fixture(autouse=True)
def none_left(api_database: DatabaseFixture) -> Iterator[None]:
    yield
    api_database.execute("TRUNCATE schedules")


def send(api: ApiServer, method: str, path: str, body: Any = None) -> Answer:
    sent = None if body is None else json.dumps(body)
    return api.request(method, path, sent, {"Content-Type": "application/json"})


def create(api: ApiServer, **body: Any) -> dict[str, Any]:
    answer = send(api, "POST", "/schedules", {"name": new_id(), **NOON, **body})
    assert answer.status == 201, answer
    made: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/schedules/{made['id']}"
    return made


def patch(api: ApiServer, schedule_id: str, **body: Any) -> Answer:
    return send(api, "PATCH", f"/schedules/{schedule_id}", body)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_schedule_is_kept_and_says_when_it_comes(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = create(
        api,
        name=" Daily ",
        timezone="Asia/Tokyo",
        overlap="skip",
        payload={"a": 10**20},
        priority=3,
    )
    assert set(made) == FIELDS | {"payload"}
    assert (made["name"], made["overlap"], made["catch_up"]) == ("Daily", "skip", "one")
    assert made["next_at"].endswith("T03:00:00.000Z") and made["payload"] == {"a": 10**20}
    now = api_database.query("SELECT now()")[0][0]
    assert now < moment(made["next_at"]) <= now + timedelta(days=1)
    assert api.get(f"/schedules/{made['id']}").json() == made
    assert api.get(f"/schedules/{made['id'].upper()}").status == 200


def test_name_is_used_once(api: ApiServer) -> None:
    with ThreadPoolExecutor(8) as callers:
        body = {"name": "once", **NOON}
        answers = list(callers.map(lambda _: send(api, "POST", "/schedules", body), range(8)))
    assert sorted(answer.status for answer in answers) == [201] + [409] * 7
    refused = next(answer for answer in answers if answer.status == 409)
    assert refused.json()["code"] == "CONFLICT" and "once" in refused.json()["detail"]
    other = create(api)
    assert patch(api, other["id"], name="once").status == 409
    assert patch(api, other["id"], name="twice").json()["name"] == "twice"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"cron": "* * * * * *"}, "cron", "five fields"),
        ({"cron": "@hourly"}, "cron", "five fields"),
        ({"cron": "0 0 31 2 *"}, "cron", "no such time ever comes"),
        ({"cron": "61 * * * *"}, "cron", "minute"),
        ({"cron": "0 0 */20 * 1L"}, "cron", "no such time ever comes"),
        ({"cron": "1," * 200 + "1 * * * *"}, "cron", "at most 200"),
        ({"timezone": "Mars/Olympus"}, "timezone", "IANA"),
        ({"timezone": "../../etc/passwd"}, "timezone", "IANA"),
        ({"timezone": ""}, "timezone", "IANA"),
        ({"overlap": "maybe"}, "overlap", "'allow' or 'skip'"),
        ({"catch_up": 1}, "catch_up", "'none', 'one' or 'all'"),
        ({"catch_up": "all", "overlap": "skip"}, "catch_up", "overlap"),
        ({"type": "nobody"}, "type", "not registered"),
        ({"type": "score_application", "payload": {}}, "payload.candidate", "required"),
        ({"priority": 101}, "priority", "100"),
        ({"paused": None}, "paused", "boolean"),
        ({"next_at": "2030-01-01T00:00:00Z"}, "next_at", "not permitted"),
        ({"name": "\x00"}, "name", "NUL"),
    ],
)
def test_schedule_that_cannot_be_is_refused_whole(
    api: ApiServer, body: dict[str, Any], field: str, message: str
) -> None:
    made = create(api)
    fresh = send(api, "POST", "/schedules", {"name": "x", **NOON, **body})
    for answer in (fresh, patch(api, made["id"], **body)):
        assert answer.status == 422, answer
        errors = {error["field"]: error["message"] for error in answer.json()["errors"]}
        assert message in errors[field], errors
    assert api.get(f"/schedules/{made['id']}").json() == made
    assert len(api.get("/schedules").json()["schedules"]) == 1


def test_large_payload_is_refused(api: ApiServer) -> None:
    made = create(api, payload="x" * 65_000)
    large = {"payload": "x" * 65_536}
    for answer in (
        send(api, "POST", "/schedules", {"name": "x", **NOON, **large}),
        patch(api, made["id"], **large),
    ):
        assert (answer.status, answer.json()["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_schedules_are_listed_by_name_page_by_page(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    names = [f"s{number}" for number in range(5)]
    for name in reversed(names):
        create(api, name=name)
    api_database.execute("UPDATE schedules SET tenant_id = 2 WHERE name = 's2'")
    found, path = [], "/schedules?limit=2"
    while path:
        page = api.get(path)
        listed = page.json()["schedules"]
        assert len(listed) <= 2 and all(set(each) == FIELDS for each in listed)
        found += [each["name"] for each in listed]
        path = page.headers.get("link", "").partition(">")[0].lstrip("<")
    assert found == ["s0", "s1", "s3", "s4"]
    for query in ("limit=0", "limit=201", "cursor=%21", "cursor=AA", "name=s1"):
        assert api.get(f"/schedules?{query}").status == 422, query


def test_pause_and_resume_count_from_now_on(api: ApiServer, api_database: DatabaseFixture) -> None:
    made = create(api, cron="* * * * *")
    paused = patch(api, made["id"], paused=True).json()
    assert paused["paused"] and paused["next_at"] is None
    api_database.execute("UPDATE schedules SET next_at = now() - interval '1 day'")
    before = api_database.query("SELECT now()")[0][0]
    resumed = patch(api, made["id"], paused=False).json()
    now = api_database.query("SELECT now()")[0][0]
    assert before < moment(resumed["next_at"]) <= now + timedelta(minutes=1)
    # What says nothing about time leaves the next tick as it is, even if it is due.
    api_database.execute("UPDATE schedules SET next_at = now() - interval '1 day'")
    for change in ({"priority": 9}, {"payload": None}, {"paused": False}, {}):
        assert moment(patch(api, made["id"], **change).json()["next_at"]) < now
    noon = patch(api, made["id"], cron="0 12 * * *").json()
    assert noon["next_at"].endswith("T12:00:00.000Z") and moment(noon["next_at"]) > now
    assert (noon["priority"], noon["payload"]) == (9, None)
    there = patch(api, made["id"], timezone="Asia/Tokyo").json()
    assert there["next_at"].endswith("T03:00:00.000Z")


def last_event(database: DatabaseFixture) -> tuple[str, dict[str, Any]] | None:
    rows = database.query("SELECT kind, detail FROM events ORDER BY id DESC LIMIT 1")
    return (rows[0].kind, rows[0].detail) if rows else None


def test_what_is_due_stays_due_if_the_times_are_sent_again(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    """A client that sends the whole schedule back has not changed its times."""
    made = create(api, cron="*/5 * * * *", timezone="Europe/Berlin")
    api_database.execute("UPDATE schedules SET next_at = now() - interval '1 hour'")
    due = api.get(f"/schedules/{made['id']}").json()["next_at"]
    for same in (
        {"cron": "*/5 * * * *", "timezone": "Europe/Berlin", "priority": 2},
        {"cron": " */5  *  * * * "},
        {"timezone": "Europe/Berlin"},
    ):
        assert patch(api, made["id"], **same).json()["next_at"] == due, same
    api_database.leader.run_once(0.0)
    role(api_database).run_once(0.0)
    assert api.get(f"/schedules/{made['id']}").json()["made"] == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"cron": "0 12 * * *"}, "retimed"), ({"timezone": "Asia/Tokyo"}, "retimed"),
     ({"paused": True}, "paused")],
)  # fmt: skip
def test_due_tick_that_a_change_drops_is_counted_and_reported(
    api: ApiServer, api_database: DatabaseFixture, change: dict[str, Any], reason: str
) -> None:
    api_database.execute("TRUNCATE events")
    made = create(api, cron="0 * * * *")
    api_database.execute(
        "UPDATE schedules SET next_at = date_trunc('hour', now()) - interval '2 hours'"
    )
    due = api.get(f"/schedules/{made['id']}").json()["next_at"]
    assert patch(api, made["id"], **change).json()["skipped"] == 3
    kind, detail = last_event(api_database) or ("", {})
    assert (kind, detail["first"], detail["reason"]) == ("schedule_missed", due, reason)
    assert moment(detail["last"]) == moment(due) + timedelta(hours=2)
    # Nothing is due any more, and what comes during a pause is no tick.
    api_database.execute("UPDATE schedules SET next_at = now() - interval '1 day' WHERE paused")
    patch(api, made["id"], cron="1 12 * * *")
    assert patch(api, made["id"], paused=False).json()["skipped"] == 3
    assert len(api_database.query("SELECT 1 FROM events WHERE kind = 'schedule_missed'")) == 1


def test_change_of_a_schedule_whose_zone_is_gone_counts_its_due_tick(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = create(api)
    api_database.execute("UPDATE schedules SET timezone = 'Mars/Olympus', next_at = now()")
    assert patch(api, made["id"], paused=True).json()["skipped"] == 1


def test_change_that_waits_too_long_is_told_so_and_not_made(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = create(api)
    with transaction(api_database.engine) as connection:
        connection.exec_driver_sql("SELECT 1 FROM schedules FOR UPDATE")
        answer = patch(api, made["id"], paused=True)
    assert (answer.status, answer.json()["code"]) == (503, "STATE_STORE_UNAVAILABLE")
    assert api.get(f"/schedules/{made['id']}").json() == made


def test_changed_type_must_take_the_payload_that_is_there(api: ApiServer) -> None:
    made = create(api, payload={"candidate": "Ada", "payload": {}})
    changed = patch(api, made["id"], type="score_application").json()
    assert changed["payload"]["role"] == "general", "as the type reads it"
    assert patch(api, create(api)["id"], type="score_application").status == 422


def test_schedule_of_another_tenant_is_none(api: ApiServer, api_database: DatabaseFixture) -> None:
    made = create(api)
    api_database.execute("UPDATE schedules SET tenant_id = 2")
    for schedule_id in (made["id"], new_id(), "x"):
        path = f"/schedules/{schedule_id}"
        answers = [
            send(api, "GET", path),
            send(api, "PATCH", path, {"paused": True}),
            send(api, "DELETE", path),
            send(api, "POST", f"{path}/run"),
        ]
        assert [answer.status for answer in answers] == [404] * 4
    assert api_database.query("SELECT paused FROM schedules")[0].paused is False


def test_removed_schedule_is_gone_and_its_name_free(api: ApiServer) -> None:
    made = create(api, name="again")
    assert send(api, "DELETE", f"/schedules/{made['id']}").status == 204
    assert send(api, "DELETE", f"/schedules/{made['id']}").status == 404
    assert create(api, name="again")["id"] != made["id"]


def test_one_job_can_be_had_now(api: ApiServer, api_database: DatabaseFixture) -> None:
    made = create(api, payload={"n": 1}, priority=4, paused=True)
    answer = send(api, "POST", f"/schedules/{made['id']}/run")
    assert answer.status == 202
    job = api_database.job(answer.json()["id"])
    assert (job.type, job.payload, job.priority) == ("echo", {"n": 1}, 4)
    assert answer.headers["location"] == f"/jobs/{job.id}"
    assert api.get(f"/schedules/{made['id']}").json() == made, "no tick"


def test_job_that_was_accepted_is_no_error_if_the_history_cannot_be_written(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = create(api)
    with held_lock(api_database, "LOCK TABLE events"):
        answer = send(api, "POST", f"/schedules/{made['id']}/run")
    assert answer.status == 202
    assert api_database.job(answer.json()["id"]).type == "echo"


def test_tenant_has_a_bounded_number(api: ApiServer, api_database: DatabaseFixture) -> None:
    api_database.execute(
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload) SELECT gen_random_uuid(), 1, n::text, '* * * * *', 'UTC', 'allow', 'one',"
        " 'echo', '{}' FROM generate_series(1, %s) AS n",
        schedules.MOST_SCHEDULES,
    )
    answer = send(api, "POST", "/schedules", {"name": "more", **NOON})
    assert answer.status == 409 and "1,000" in answer.json()["detail"]
    assert "already" in send(api, "POST", "/schedules", {"name": "7", **NOON}).json()["detail"]


def test_tick_of_a_schedule_is_a_job_of_its_tenant(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = create(api, payload={"hello": "world"})
    api_database.execute("UPDATE schedules SET next_at = now() - interval '1 second'")
    api_database.leader.run_once(0.0)
    role(api_database).run_once(0.0)
    after = api.get(f"/schedules/{made['id']}").json()
    job = api.get(f"/jobs/{after['last_job_id']}").json()
    assert (job["status"], job["tenant"], job["execute_at"]) == ("queued", "demo", after["last_at"])
    assert after["made"] == 1 and after["next_at"] == made["next_at"]
