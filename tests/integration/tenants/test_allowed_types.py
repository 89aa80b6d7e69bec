"""A tenant that is limited to some job types: submissions, schedules, ticks and replays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from werkzeug.test import TestResponse

from app.admission.replays import replay_for_tenants
from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.scheduler.maintenance.recurring_jobs import RecurringJobs
from app.scheduler.maintenance.replayer import Replayer
from app.tenants.changes import change_tenant, create_tenant, issue_key
from app.tenants.terms import Change
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.replay_requests import ReplayRequest, create, read
from models.pools import POOLS
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient

APPLICATION = {"candidate": "Ada", "payload": {}}
MAKE_DEAD = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, attempt, finished_at, error_class)
    VALUES (%s, %s, %s, 'short', '{}', 'dead', 1, now(), 'APP_ERROR')
"""
_numbers = count(1)


class Limited:
    """A new tenant that may submit jobs of some types."""

    def __init__(
        self, http_client: HttpClient, database: DatabaseFixture, types: Sequence[str] | None
    ) -> None:
        self.http_client, self.database = http_client, database
        self.name = f"limited-{next(_numbers)}"
        terms = Change({"types": types, "tier_limits": False})
        self.id = create_tenant(database.engine, self.name, terms).id
        self._key = issue_key(database.engine, self.name).key

    def call(self, method: str, path: str, body: Any = None) -> TestResponse:
        return self.http_client.call(self._key, method, path, body)

    def limit(self, *types: str) -> None:
        change_tenant(self.database.engine, self.name, Change({"types": types}))
        self.http_client.services.tenants.directory.refresh()

    def make_dead(self, type_name: str) -> str:
        job_id = new_id()
        self.database.execute(MAKE_DEAD, job_id, self.id, type_name)
        return job_id

    def status(self, job_id: str) -> str:
        return str(self.database.job(job_id).status)


def refused(answer: TestResponse, name: str) -> bool:
    """Whether it is a 403, as a problem, that names the type."""
    assert answer.status_code == 403, answer.text
    assert answer.mimetype == "application/problem+json"
    document = answer.json or {}
    return document["code"] == "FORBIDDEN" and f"the type {name};" in document["detail"]


def test_other_types_are_refused(http_client: HttpClient, api_database: DatabaseFixture) -> None:
    acme = Limited(http_client, api_database, ["echo"])
    assert acme.call("POST", "/jobs", {"type": "echo"}).status_code == 202
    assert refused(acme.call("POST", "/jobs", {"type": "crash"}), "crash")
    assert refused(acme.call("POST", "/applications", APPLICATION), "score_application")
    assert acme.call("POST", "/jobs", {"type": "never-was"}).status_code == 422
    assert (acme.call("GET", "/tenant").json or {})["types"] == ["echo"]
    acme.limit("score_application")
    assert acme.call("POST", "/applications", APPLICATION).status_code == 202
    assert refused(acme.call("POST", "/jobs", {"type": "echo"}), "echo")
    acme.limit()
    assert refused(acme.call("POST", "/applications", APPLICATION), "score_application")


def test_an_item_of_a_batch_is_refused_by_itself(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    acme = Limited(http_client, api_database, ["echo"])
    answer = acme.call("POST", "/jobs/batch", {"jobs": [{"type": "crash"}, {"type": "echo"}]})
    assert answer.status_code == 202
    document = answer.json or {}
    assert (document["accepted"], document["rejected"]) == (1, 1)
    error = document["results"][0]["error"]
    assert (error["status"], error["code"]) == (403, "FORBIDDEN")
    assert refused(acme.call("POST", "/jobs/batch", {"jobs": [{"type": "crash"}]}), "crash")


def test_schedules_keep_to_it(http_client: HttpClient, api_database: DatabaseFixture) -> None:
    acme = Limited(http_client, api_database, ["echo"])
    schedule = {"name": "nightly", "cron": "0 0 1 1 *", "type": "echo"}
    assert refused(acme.call("POST", "/schedules", schedule | {"type": "crash"}), "crash")
    made = acme.call("POST", "/schedules", schedule).json or {}
    path = f"/schedules/{made['id']}"
    assert refused(acme.call("PATCH", path, {"type": "crash"}), "crash")
    assert acme.call("POST", f"{path}/run").status_code == 202
    acme.limit("sleep")
    assert refused(acme.call("POST", f"{path}/run"), "echo")
    assert acme.call("PATCH", path, {"paused": True}).status_code == 200


def test_a_tick_of_a_forbidden_type_is_skipped_and_says_why(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    acme = Limited(http_client, api_database, ["echo"])
    for name in ("kept", "skipped"):
        schedule = {"name": name, "cron": "0 0 1 1 *", "type": "echo"}
        acme.call("POST", "/schedules", schedule)
    api_database.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    api_database.execute(
        "UPDATE schedules SET next_at = now() - interval '1 second',"
        " type = CASE name WHEN 'kept' THEN 'echo' ELSE 'sleep' END WHERE tenant_id = %s",
        acme.id,
    )
    limits = TenantLimits(
        api_database.engine, SubmissionLimits(per_second=0, burst=0, queue_depth=1000)
    )
    leader, types = api_database.leader, api_database.types
    RecurringJobs(api_database.engine, leader, types, tuple(POOLS), limits).run_once(0.0)
    jobs = api_database.query("SELECT type FROM jobs WHERE tenant_id = %s", acme.id)
    assert [job.type for job in jobs] == ["echo"]
    (event,) = api_database.query(
        "SELECT detail FROM events WHERE tenant_id = %s AND kind = 'schedule_skipped'", acme.id
    )
    assert "the type sleep;" in event.detail["reason"]


def test_replays_keep_to_it(http_client: HttpClient, api_database: DatabaseFixture) -> None:
    acme = Limited(http_client, api_database, None)
    kept, dropped = acme.make_dead("echo"), acme.make_dead("crash")
    acme.limit("echo")
    path = "/dead-letters/replay"
    assert refused(acme.call("POST", path, {"ids": [kept, dropped]}), "crash")
    assert refused(acme.call("POST", path, {"filter": {"type": "crash"}}), "crash")
    assert refused(acme.call("POST", path, {"filter": {}}), "crash")
    assert acme.status(kept) == acme.status(dropped) == "dead"
    answer = acme.call("POST", path, {"filter": {"type": "echo"}}).json or {}
    assert answer["ids"] == [kept]
    # Whoever asks: the statement keeps to it too.
    assert replay_dead(api_database.engine, acme.id, [dropped]) == []
    services = http_client.services
    done = replay_for_tenants(services.engine, services.tenant_limits, [dropped])
    assert (done.changed, done.skipped, done.later) == (0, 1, 0)
    assert acme.status(dropped) == "dead"
    assert acme.call("POST", "/dead-letters/discard", {"ids": [dropped]}).status_code == 200
    assert acme.status(dropped) == "cancelled"


def test_a_replay_in_the_background_passes_them_and_ends(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    acme = Limited(http_client, api_database, None)
    dead = [acme.make_dead(name) for name in ("crash", "echo", "crash", "echo", "crash")]
    running = create(api_database.engine, ReplayRequest(acme.id), 5)
    assert running is not None
    acme.limit("echo")
    api_database.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    replayer = Replayer(
        api_database.engine, api_database.leader, http_client.services.tenant_limits
    )
    for turn in range(6):
        replayer.run_once(float(turn))
    states = [acme.status(job_id) for job_id in dead]
    assert states == ["dead", "queued", "dead", "queued", "dead"]
    after = read(api_database.engine, running.id)
    assert after is not None
    assert (after.state, after.done) == ("finished", 2)


def test_names_are_checked(api_database: DatabaseFixture, http_client: HttpClient) -> None:
    key = issue_key(api_database.engine, None).key
    path = "/operator/tenants"
    for types in (["no type"], ["x" * 101], [f"t{n}" for n in range(201)], "echo", [1]):
        body = {"name": "checked", "types": types}
        assert http_client.call(key, "POST", path, body).status_code == 422, types
    answer = http_client.call(key, "POST", path, {"name": "checked", "types": ["b", "a", "b"]})
    assert (answer.status_code, (answer.json or {})["types"]) == (201, ["a", "b"])
    answer = http_client.call(key, "PATCH", f"{path}/checked", {"weight": 2})
    assert (answer.json or {})["types"] == ["a", "b"]
    answer = http_client.call(key, "PATCH", f"{path}/checked", {"types": None})
    assert (answer.json or {})["types"] is None
