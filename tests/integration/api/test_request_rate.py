"""Requests that submit nothing have a rate of their own: 429 beyond it, from memory alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from app.console.live import LivePages
from app.tenants.changes import change_tenant, create_tenant, issue_key
from app.tenants.terms import Change
from loadtest.attack.corpus.routes import TENANT, TENANT_PAGE, Call
from models.jobs.ids import new_id
from tests.integration.api.test_dead_letters import make_dead
from tests.integration.api.test_isolation import EACH, Knocking, names
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import opened

CODE = "TENANT_REQUEST_RATE_EXCEEDED"
JOB: dict[str, Any] = {"type": "echo", "payload": {}}
#: Submissions have another rate.
NOT_COUNTED = {"POST /applications", "POST /jobs", "POST /jobs/batch"}
OF_TENANTS = [(route, call) for route, call in EACH if call.access in (TENANT, TENANT_PAGE)]


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Knocking]:
    with opened(api_database, tmp_path_factory.mktemp("blobs")) as app:
        yield Knocking(app)


class Tenant:
    """A tenant that may send one request at once, or as many as its terms say."""

    def __init__(self, http_client: Knocking, database: DatabaseFixture, **terms: Any) -> None:
        fields = {"tier_limits": False, "requests_per_second": 0.001, **terms}
        self.profile = create_tenant(database.engine, f"t{new_id()[-12:]}", Change(fields))
        self.key = issue_key(database.engine, self.profile.name).key
        self.http_client = http_client

    def get(self, path: str = "/jobs") -> Any:
        return self.http_client.call(self.key, "GET", path)

    def exhausted(self) -> Tenant:
        assert self.get().status_code == 200
        return self


def assert_refused(answer: Any) -> None:
    assert answer.status_code == 429, answer.text
    problem = answer.get_json()
    assert (problem["code"], problem["violated-policies"]) == (CODE, ["requests"])
    assert answer.mimetype == "application/problem+json"
    assert 1 <= int(answer.headers["Retry-After"]) <= 1000
    assert "RateLimit" not in answer.headers, "that is of submissions"


@pytest.fixture(scope="module")
def exhausted(http_client: Knocking, api_database: DatabaseFixture) -> Tenant:
    return Tenant(http_client, api_database).exhausted()


@pytest.mark.parametrize(("route", "call"), OF_TENANTS, ids=names(OF_TENANTS))
def test_every_route_of_tenants_is_within_the_rate(
    http_client: Knocking, exhausted: Tenant, route: str, call: Call
) -> None:
    answer = http_client.knock(exhausted.key, route, call)
    if route in NOT_COUNTED:
        assert answer.status_code == call.stranger, answer.text
    else:
        assert_refused(answer)


def test_an_open_page_is_one_request(
    http_client: Knocking, api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []

    def watch(
        pages: object, page: object, asked: object, allowed: Callable[[], bool], newest: float
    ) -> Iterator[str]:
        answers.extend(allowed() for _ in range(5))
        return iter(())

    monkeypatch.setattr(LivePages, "watch", watch)
    tenant = Tenant(http_client, api_database)
    assert tenant.get("/tenant/events?page=/tenant").status_code == 200
    assert answers == [True] * 5
    assert_refused(tenant.get())


def test_polls_by_the_short_way_are_within_the_rate(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, requests_per_second=0.4)
    job_id = http_client.call(tenant.key, "POST", "/jobs", JOB).get_json()["id"]
    answers = [tenant.get(f"/jobs/{job_id}") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert_refused(answers[-1])
    assert int(answers[-1].headers["Retry-After"]) in (2, 3)
    assert "0.4 requests a second" in answers[-1].get_json()["detail"]


def test_others_and_operators_are_not_affected(
    http_client: Knocking, api_database: DatabaseFixture, exhausted: Tenant
) -> None:
    other = Tenant(http_client, api_database)
    operator = issue_key(api_database.engine, None).key
    assert_refused(exhausted.get())
    assert other.get().status_code == 200
    for _ in range(20):
        name = exhausted.profile.name
        assert http_client.call(operator, "GET", f"/operator/tenants/{name}").status_code == 200
    assert http_client.call(None, "GET", "/healthz").status_code == 200


def test_a_refusal_runs_no_statement_and_is_counted(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant, statements = Tenant(http_client, api_database).exhausted(), []
    here, engine = threading.get_ident(), http_client.services.engine

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        # Other threads read changed terms; polls are read by one, together.
        if threading.get_ident() == here or "FROM jobs" in statement:
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        for _ in range(50):
            assert_refused(tenant.get("/dead-letters"))
            assert_refused(tenant.get(f"/jobs/{new_id()}"))
        assert statements == []
        http_client.services.gate._refusals.flush()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    counted = "SELECT code, refused FROM refusals WHERE tenant_id = %s"
    assert [tuple(row) for row in api_database.query(counted, tenant.profile.id)] == [(CODE, 100)]


def test_limits_come_from_the_terms_the_deployment_or_the_tier(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    def shown(tenant: Tenant) -> Any:
        return tenant.get("/tenant").get_json()["effective"]["requests_per_second"]

    usual = {"requests_per_second": None, "tier_limits": True}
    tiers = {"free": 100, "standard": 1000, "pro": 10_000, "enterprise": None}
    for tier, rate in tiers.items():
        assert shown(Tenant(http_client, api_database, **usual, tier=tier)) == rate
    tenant = Tenant(http_client, api_database, requests_per_second=None)
    assert shown(tenant) is None
    change_tenant(api_database.engine, tenant.profile.name, Change({"requests_per_second": 0.4}))
    http_client.services.tenants.directory.refresh()
    assert shown(tenant) == 0.4
    assert tenant.get().status_code == 200
    assert_refused(tenant.get())
    second = issue_key(api_database.engine, tenant.profile.name).key
    assert_refused(http_client.call(second, "GET", "/jobs"))


def test_each_discarded_job_counts_as_a_request(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, requests_per_second=1.0)
    dead = [make_dead(api_database, tenant_id=tenant.profile.id) for _ in range(12)]

    def discard(ids: list[str]) -> Any:
        return http_client.call(tenant.key, "POST", "/dead-letters/discard", {"ids": ids})

    assert discard(dead[:11]).get_json()["discarded"] == 11
    answer = discard(dead[11:])
    assert_refused(answer)
    assert 3 <= int(answer.headers["Retry-After"]) <= 8, "5 were there, 11 were spent"
    assert api_database.job(dead[11]).status == "dead"


def test_discarding_from_the_page_costs_as_much(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, requests_per_second=1.0)
    dead = make_dead(api_database, tenant_id=tenant.profile.id)
    for _ in range(11):
        make_dead(api_database, tenant_id=tenant.profile.id)
    row = api_database.job(dead)
    form = {"type": row.type, "error_class": row.error_class}
    answer = http_client.app.test_client().post(
        "/tenant/dead-letters/discard",
        headers={"Authorization": f"Bearer {tenant.key}"},
        data=form,
    )
    assert answer.status_code == 303
    assert api_database.job(dead).status == "cancelled"
    assert_refused(tenant.get())


def test_signing_in_costs_a_hundred_requests(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, requests_per_second=1.0)
    before = api_database.query("SELECT count(*) FROM audit_log")[0][0]
    statuses = [
        http_client.app.test_client()
        .post(
            "/console/sign-in", headers={"Sec-Fetch-Site": "same-origin"}, data={"key": tenant.key}
        )
        .status_code
        for _ in range(5)
    ]
    assert statuses == [303, 429, 429, 429, 429]
    written = "SELECT count(*) FROM audit_log WHERE what = 'session.begin'"
    assert api_database.query(written)[0][0] == 1
    assert api_database.query("SELECT count(*) FROM audit_log")[0][0] <= before + 2


def test_a_replay_costs_as_many_submissions_as_it_queues(
    http_client: Knocking, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(
        http_client, api_database, requests_per_second=100, submit_per_second=0.001, submit_burst=3
    )
    dead = [make_dead(api_database, tenant_id=tenant.profile.id) for _ in range(3)]
    answer = http_client.call(tenant.key, "POST", "/dead-letters/replay", {"ids": dead})
    assert answer.get_json()["replayed"] == 3
    refused = http_client.call(tenant.key, "POST", "/jobs", JOB)
    assert refused.get_json()["code"] == "TENANT_RATE_LIMIT_EXCEEDED"
