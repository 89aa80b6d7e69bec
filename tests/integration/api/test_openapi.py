"""``/openapi.json``: it describes every route, and every answer matches it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from werkzeug.test import TestResponse

from app.api.auth.access import Access, open_to
from app.api.openapi.document import UndeclaredRoute, find_routes
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from loadtest.attack.corpus.routes import CALLS, OPERATOR, PUBLIC, TENANT, TENANT_PAGE, THINGS, Call
from models.jobs.ids import new_id
from models.jobs.replay_requests import ReplayRequest, create
from models.jobs.run_logs import Logged, keep_logs
from tests.integration.api.test_contract import bring, put_scored
from tests.integration.api.test_dead_letters import make_dead
from tests.integration.api.test_jobs import FAILED, start
from tests.support.database_fixture import DatabaseFixture
from tests.support.described import Described
from tests.support.http_client import HttpClient, opened

#: Routes that ignore unknown parameters: hot routes and probes.
LENIENT = {
    ("POST", "/applications"),
    ("GET", "/applications/{application_id}"),
    ("HEAD", "/applications/{application_id}"),
    ("POST", "/jobs"),
    ("GET", "/jobs/{job_id}"),
    ("HEAD", "/jobs/{job_id}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
}
#: Of a job that scored an application.
RESULT = json.dumps(
    {
        "criteria": [{"key": "clarity", "title": "clarity", "weight": 100, "mark": 87.5}],
        "evidence": {"clarity": ["Dear all"]},
        "model": "simulated",
        "rubric": "0" * 64,
        "input": "1" * 64,
        "dropped_quotes": 0,
    }
)


def is_of_the_api(call: Call) -> bool:
    """Not a page; one path is both."""
    api = call.access in (PUBLIC, TENANT, OPERATOR) or call.path == "/tenant"
    return api and not call.path.startswith(("/console", "/docs"))


@dataclass(frozen=True, slots=True)
class Caller:
    """A client with keys that checks every answer against the document."""

    http_client: HttpClient
    described: Described
    #: By access.
    keys: dict[Access, str]
    tenant_id: int

    def call(
        self, method: str, url: str, status: int, body: Any = None, **headers: str
    ) -> TestResponse:
        """Call with the kind of key that the document requires."""
        path = self.described.path_of(url)
        security = self.described.operations()[method, path]["security"]
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if security:
            access = TENANT if "tenantKey" in security[0] else OPERATOR
            given["Authorization"] = f"Bearer {self.keys[access]}"
        answer = self.http_client.open(method, url, given, body)
        assert answer.status_code == status, answer.text
        text = b"" if answer.mimetype == "text/event-stream" else answer.data
        self.described.check(method, url, answer.status_code, answer.headers, text)
        return answer


@pytest.fixture(scope="module")
def document(http_client: HttpClient) -> dict[str, Any]:
    found: dict[str, Any] = http_client.open("GET", "/openapi.json", {}).get_json()
    return found


@pytest.fixture(scope="module")
def caller(
    http_client: HttpClient, document: dict[str, Any], api_database: DatabaseFixture
) -> Caller:
    create_tenant(api_database.engine, "reader", Change({"tier_limits": False}))
    names = {TENANT: "reader", OPERATOR: None}
    keys = {access: issue_key(api_database.engine, name).key for access, name in names.items()}
    ((tenant_id,),) = api_database.query("SELECT id FROM tenants WHERE name = 'reader'")
    return Caller(http_client, Described(document), keys, tenant_id)


def test_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    OPENAPI_31_VALIDATOR.validate(document)
    used = str(document["paths"]) + str(document["components"])
    for kind in ("schemas", "responses"):
        for name in document["components"][kind]:
            assert f"#/components/{kind}/{name}'" in used, name


def test_document_tells_of_every_route_of_the_api_and_of_no_other(
    document: dict[str, Any], caller: Caller
) -> None:
    told = {
        f"{method} {path}" for method, path in caller.described.operations() if method != "HEAD"
    }
    there = {
        route.replace("<string(length=36):", "<").replace("<", "{").replace(">", "}")
        for route, (call, *_) in CALLS.items()
        if is_of_the_api(call)
    }
    assert told == there


def test_document_says_which_key_opens_what(caller: Caller) -> None:
    keys = {TENANT: "tenantKey", TENANT_PAGE: "tenantKey", OPERATOR: "operatorKey"}
    changing = {TENANT: "submit", OPERATOR: "operate"}
    for route, (call, *_) in CALLS.items():
        if is_of_the_api(call):
            method = route.partition(" ")[0]
            path = caller.described.path_of(call.path.format(**dict.fromkeys(THINGS, "0")))
            told = caller.described.operations()[method, path]["security"]
            if call.access is PUBLIC:
                assert told == []
                continue
            scopes = ["read"] if method == "GET" else [changing[call.access]]
            scopes += ["scale"] if path == "/operator/scaling" else []
            assert told == [{keys[call.access]: [scope]} for scope in scopes], route


def test_who_has_no_key_is_told_where_none_is_needed(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        paths = HttpClient(app).open("GET", "/openapi.json", {}).get_json()["paths"]
    assert paths["/jobs"]["post"]["security"] == [{"tenantKey": ["submit"]}, {}]
    assert paths["/operator/tenants"]["get"]["security"] == [{"operatorKey": ["read"]}]


def test_route_that_declares_nothing_is_not_built() -> None:
    app = Flask("odd", static_folder=None)

    @open_to(Access.TENANT)
    def get_secret() -> str:
        return ""

    app.add_url_rule("/secret", "secret", get_secret)
    assert find_routes(app) == []  # a page of somebody's is not the API
    get_secret.__module__ = "app.api.secret"
    with pytest.raises(UndeclaredRoute, match="secret"):
        find_routes(app)


def test_parameter_that_is_not_declared_is_refused(
    caller: Caller, document: dict[str, Any]
) -> None:
    fill = {"application_id": new_id(), "job_id": new_id(), "schedule_id": new_id()}
    fill |= {"replay_id": new_id(), "name": "reader", "key_id": "abcd1234", "dependency": "claude"}
    lenient = set()
    for method, path in caller.described.operations():
        url = f"{path.format(**fill)}?nonsense=1"
        key = caller.keys[OPERATOR if path.startswith("/operator") else TENANT]
        answer = caller.http_client.call(
            key, method, url, {} if method in ("POST", "PATCH") else None
        )
        if answer.status_code != 422 or "nonsense" not in answer.text:
            lenient.add((method, path))
    assert lenient == LENIENT


def test_document_is_kept_by_who_knows_it(caller: Caller) -> None:
    first = caller.call("GET", "/openapi.json", 200)
    assert caller.call("GET", "/openapi.json", 304, If_None_Match=first.headers["ETag"])
    assert caller.call("GET", "/openapi.json", 200, If_None_Match='"another"').data == first.data


def test_page_is_made_of_files_of_this_server(http_client: HttpClient) -> None:
    answer = http_client.open("GET", "/docs", {})
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "://" not in answer.text
    for part in answer.text.split('"'):
        if part.startswith("/console/assets/"):
            assert http_client.open("GET", part, {}).status_code == 200, part


# Real answers, one of every kind that the document tells of.


def tell_of_jobs(caller: Caller, database: DatabaseFixture) -> None:
    later = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    repeated = {"Idempotency_Key": "once"}
    for body in ({"type": "echo"}, {"type": "echo", "execute_at": later}):
        caller.call("POST", "/jobs", 202, body)
    for _ in range(2):
        made = caller.call("POST", "/jobs", 202, {"type": "echo"}, **repeated).get_json()
    caller.call("POST", "/jobs", 422, {"type": "count"}, **repeated)
    job = f"/jobs/{made['id']}"
    etag = caller.call("GET", job, 200).headers["ETag"]
    caller.call("HEAD", job, 200)
    for method in ("GET", "HEAD"):
        caller.call(method, job, 304, If_None_Match=etag)
    caller.call("GET", f"{job}/wait", 200)
    caller.call("GET", f"{job}/events", 200)
    caller.call("DELETE", job, 200)
    ended = caller.http_client.open(
        "GET", f"{job}/events", {"Authorization": f"Bearer {caller.keys[TENANT]}"}
    )
    known = next(line for line in ended.text.splitlines() if line.startswith("id: "))[4:]
    caller.call("GET", f"{job}/events", 204, Last_Event_ID=known)
    caller.call("GET", "/events", 200)
    batch = {"jobs": [{"type": "echo"}, {"type": "nothing"}, None]}
    assert caller.call("POST", "/jobs/batch", 202, batch).get_json()["rejected"] == 2
    caller.call("POST", "/jobs/batch", 422, {"jobs": [None]})


def tell_of_waits(caller: Caller, database: DatabaseFixture) -> None:
    bodies = {"/jobs": {"type": "echo"}, "/applications": {"candidate": "alice", "payload": "Go"}}
    for path, body in bodies.items():
        key = new_id()
        made = caller.call("POST", path, 202, body, Idempotency_Key=key).get_json()["id"]
        bring(database, made, "succeeded")
        ended = caller.call("POST", path, 200, body, Idempotency_Key=key, Prefer="wait=5")
        assert ended.headers["Preference-Applied"] == "wait"
        caller.call("GET", f"{path}/{made}", 200, Prefer="wait=5")


def tell_of_states(caller: Caller, database: DatabaseFixture) -> None:
    mine = {"tenant_id": caller.tenant_id}
    retried = start(database, **mine)
    log = '[{"at": "2026-03-01T12:00:00Z", "level": "info", "message": "so far"}]'
    keep_logs(database.engine, "w1", [(retried.ref, Logged(log, 1, "Traceback"))])
    assert database.settle(retried.ref, FAILED)
    for status in ("scheduled", "dispatched", "running", "succeeded", "cancelled", "expired"):
        job_id = database.submit(**mine)
        bring(database, job_id, status)
        caller.call("GET", f"/jobs/{job_id}", 200)
        caller.call("GET", f"/jobs/{job_id}/wait", 200)
        if status == "running":
            caller.call("DELETE", f"/jobs/{job_id}", 202)
        if status == "succeeded":
            caller.call("DELETE", f"/jobs/{job_id}", 409)
    tried = caller.call("GET", f"/jobs/{retried.ref.id}", 200).get_json()
    assert tried["attempts"]
    (run,) = caller.call("GET", f"/jobs/{retried.ref.id}/runs", 200).get_json()["runs"]
    assert run["error"] and run["log"]
    dead = make_dead(database, **mine)
    make_dead(database, **mine)
    for url in ("/jobs?limit=1", "/jobs?status=dead&payload=a=b", "/dead-letters?limit=1"):
        caller.call("GET", url, 200)
    caller.call("POST", "/dead-letters/replay", 200, {"ids": [dead, new_id()]})
    create(database.engine, ReplayRequest(caller.tenant_id), 1)
    path = caller.call("POST", "/dead-letters/replay", 202, {"filter": {}}).headers["Location"]
    caller.call("GET", path, 200)
    caller.call("DELETE", path, 200)
    caller.call("GET", path, 200)
    caller.call("POST", "/dead-letters/discard", 200, {"ids": [make_dead(database, **mine)]})
    caller.call("GET", f"/jobs/{new_id()}", 404)
    caller.call("GET", "/tenant/usage", 200)


def tell_of_applications(caller: Caller, database: DatabaseFixture) -> None:
    body = {"candidate": "Ada", "payload": {}}
    for _ in range(2):
        made = caller.call("POST", "/applications", 202, body).get_json()["id"]
    etag = caller.call("GET", f"/applications/{made}", 200).headers["ETag"]
    caller.call("HEAD", f"/applications/{made}", 200)
    for method in ("GET", "HEAD"):
        caller.call(method, f"/applications/{made}", 304, If_None_Match=etag)
    caller.call("DELETE", f"/applications/{made}", 200)
    running = database.submit_application(tenant_id=caller.tenant_id)
    bring(database, running, "running")
    caller.call("DELETE", f"/applications/{running}", 202)
    scored = [put_scored(database, "general", "87.5", caller.tenant_id) for _ in range(2)]
    database.execute("UPDATE jobs SET result = %s WHERE id = %s", RESULT, scored[0])
    shown = caller.call("GET", f"/applications/{scored[0]}", 200).get_json()
    assert shown["criteria"] and shown["evidence"] and shown["record"]["model"]
    database.execute("DELETE FROM jobs WHERE id = %s", scored[1])  # as the Retirer does
    caller.call("GET", f"/applications/{scored[1]}", 200)
    caller.call("DELETE", f"/applications/{scored[1]}", 409)
    first = caller.call("GET", "/leaderboard?limit=1", 200)
    assert first.headers["Link"]


def tell_of_privacy(caller: Caller, database: DatabaseFixture) -> None:
    for side in ("", "/operator"):
        waiting, running = (
            database.submit_application(tenant_id=caller.tenant_id) for _ in range(2)
        )
        bring(database, running, "running")
        caller.call("GET", f"/applications/{waiting}/export", 200)
        caller.call("POST", f"{side}/applications/{waiting}/erase", 200)
        caller.call("POST", f"{side}/applications/{running}/erase", 202)
        for path in (waiting, f"{waiting}/export"):
            caller.call("GET", f"/applications/{path}", 410)


def tell_of_schedules(caller: Caller, database: DatabaseFixture) -> None:
    body = {"name": "nightly", "cron": "30 2 * * *", "type": "echo", "payload": {"a": [1]}}
    made = caller.call("POST", "/schedules", 201, body).headers["Location"]
    caller.call("POST", "/schedules", 409, body)
    caller.call("POST", "/schedules", 201, body | {"name": "weekly"})
    assert caller.call("GET", "/schedules?limit=1", 200).headers["Link"]
    caller.call("PATCH", made, 200, {"paused": True})
    caller.call("GET", made, 200)
    caller.call("POST", f"{made}/run", 202)
    caller.call("DELETE", made, 204)
    caller.call("DELETE", made, 404)


def tell_of_operators(caller: Caller, database: DatabaseFixture) -> None:
    terms = {"tier": "enterprise", "limits": {"medium": {"in_flight": 3, "reserved": 1}}}
    caller.call("POST", "/operator/tenants", 201, {"name": "guest", "submit_burst": 5} | terms)
    caller.call("POST", "/operator/tenants", 409, {"name": "guest"})
    caller.call("PATCH", "/operator/tenants/guest", 200, {"weight": 2.5})
    caller.call("GET", "/operator/tenants/guest", 200)
    assert caller.call("GET", "/operator/tenants?limit=1", 200).headers["Link"]
    key = caller.call("POST", "/operator/tenants/guest/keys", 201).get_json()["id"]
    caller.call("POST", "/operator/tenants/guest/keys", 201, {"name": "ci"})
    caller.call("DELETE", f"/operator/keys/{key}", 200)
    caller.call("GET", "/operator/tenants/guest/keys", 200)
    caller.call("POST", "/operator/tenants/guest/suspend", 200)
    caller.call("POST", "/operator/tenants/guest/resume", 200)
    caller.call("DELETE", "/operator/tenants/guest", 202)
    caller.call("POST", "/operator/tenants/guest/resume", 409)
    caller.call("PUT", "/operator/quotas/claude", 200, {"requests_per_minute": 60})
    database.execute(
        """UPDATE quotas SET reading = '{"requests": [50, 49, 1.5]}', read_at = now(),
           closed_until = now() + interval '9 s'"""
    )
    caller.call("GET", "/operator/quotas", 200)
    caller.call("DELETE", "/operator/quotas/claude", 204)
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason) VALUES ('long', 1, 'few')"
    )
    caller.call("GET", "/operator/scaling", 200)
    caller.call("GET", "/operator/overview", 200)
    assert caller.call("GET", "/operator/audit?tenant=guest&limit=1", 200).headers["Link"]


def tell_of_the_platform(caller: Caller, database: DatabaseFixture) -> None:
    caller.call("GET", "/healthz", 200)
    caller.call("GET", "/metrics", 200)
    database.execute(
        "UPDATE leaders SET broker_seen_at = now(), expires_at = now() + interval '1 minute'"
    )
    database.execute("DELETE FROM processes")
    caller.call("GET", "/readyz", 503)
    database.execute(
        "INSERT INTO processes (name, kind, pools, slots, heartbeat_at)"
        " VALUES ('w', 'worker', '{short,medium,long}', 4, now())"
    )
    caller.call("GET", "/readyz", 200)
    etag = caller.call("GET", "/openapi.json", 200).headers["ETag"]
    caller.call("GET", "/openapi.json", 304, If_None_Match=etag)


def tell_of_refusals(caller: Caller, database: DatabaseFixture) -> None:
    caller.call("PATCH", "/operator/tenants/reader", 200, {"submit_per_second": 0.01})
    caller.http_client.services.tenants.directory.refresh()
    limited = caller.call("POST", "/jobs", 202, {"type": "echo"})
    assert limited.headers["RateLimit"]
    refused = caller.call("POST", "/jobs", 429, {"type": "echo"})
    assert refused.headers["RateLimit-Policy"]
    database.execute(
        "INSERT INTO refusals (tenant_id, day, code, refused)"
        " VALUES (%s, current_date - 1, 'TENANT_RATE_LIMIT_EXCEEDED', 1)",
        caller.tenant_id,
    )
    assert caller.call("GET", "/tenant", 200).get_json()["refusals"]
    caller.call("PATCH", "/operator/tenants/reader", 200, {"submit_per_second": None})
    caller.http_client.services.tenants.directory.refresh()


def test_every_answer_that_the_document_tells_of_is_as_it_tells(
    caller: Caller, api_database: DatabaseFixture
) -> None:
    for tell in (
        tell_of_jobs,
        tell_of_waits,
        tell_of_states,
        tell_of_applications,
        tell_of_privacy,
        tell_of_schedules,
        tell_of_operators,
        tell_of_the_platform,
        tell_of_refusals,
    ):
        tell(caller, api_database)
    assert caller.described.successes() <= caller.described.seen
