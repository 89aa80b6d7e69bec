"""Idempotency keys of a tenant are bounded: a new one beyond that is a 429, a known one is not."""

from __future__ import annotations

from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.tenants.changes import change_tenant, create_tenant, issue_key
from app.tenants.terms import Change
from models.jobs.ids import new_id
from models.tallies import TallyKind
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient

CODE = "TENANT_IDEMPOTENCY_KEYS_EXCEEDED"
JOB: dict[str, Any] = {"type": "echo", "payload": {}}
ROUTES: dict[str, Any] = {
    "/jobs": JOB,
    "/applications": {"candidate": "Ada", "payload": {}},
    "/jobs/batch": {"jobs": [JOB, JOB]},
}


class Tenant:
    """A tenant of which three keys are kept at most, or as its terms say."""

    def __init__(self, http_client: HttpClient, database: DatabaseFixture, **terms: Any) -> None:
        fields = {"tier_limits": False, "idempotency_keys": 3, **terms}
        self.profile = create_tenant(database.engine, f"t{new_id()[-12:]}", Change(fields))
        self.secret = issue_key(database.engine, self.profile.name).key
        self.http_client, self.database = http_client, database

    def post(self, key: str = "", path: str = "/jobs") -> TestResponse:
        headers = {"Authorization": f"Bearer {self.secret}"}
        if key:
            headers["Idempotency-Key"] = key
        return self.http_client.open("POST", path, headers, ROUTES[path])

    def rows(self, table: str) -> int:
        found = self.database.query(
            f"SELECT count(*) FROM {table} WHERE tenant_id = %s", self.profile.id
        )
        return int(found[0][0])


def assert_refused(answer: TestResponse) -> None:
    assert answer.status_code == 429, answer.text
    problem = answer.get_json()
    assert (problem["code"], problem["violated-policies"]) == (CODE, ["idempotency-keys"])
    assert answer.mimetype == "application/problem+json"
    assert int(answer.headers["Retry-After"]) == 60


@pytest.mark.parametrize("path", list(ROUTES))
def test_a_new_key_beyond_the_limit_is_refused_and_leaves_no_row(
    http_client: HttpClient, api_database: DatabaseFixture, path: str
) -> None:
    tenant, other = Tenant(http_client, api_database), Tenant(http_client, api_database)
    first = [tenant.post(key, path) for key in "abc"]
    assert [answer.status_code for answer in first] == [202] * 3
    jobs = tenant.rows("jobs")
    for key in "defg":
        answer = tenant.post(key, path)
        assert_refused(answer)
        assert "At most 3 of your idempotency keys" in answer.get_json()["detail"]
    assert (tenant.rows("idempotency_keys"), tenant.rows("jobs")) == (3, jobs)
    for key, before in zip("abc", first, strict=True):
        again = tenant.post(key, path)
        assert (again.status_code, again.get_json()) == (202, before.get_json())
        assert again.headers["Idempotent-Replayed"] == "true"
    assert tenant.post("", path).status_code == 202, "without a key"
    assert other.post("a", path).status_code == 202, "another tenant"


def test_a_refusal_is_counted_for_the_tenant(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, idempotency_keys=1)
    assert tenant.post("a").status_code == 202
    assert_refused(tenant.post("b"))
    assert_refused(tenant.post("c", "/jobs/batch"))
    http_client.services.gate._refusals.flush()
    found = "SELECT code, refused FROM refusals WHERE tenant_id = %s"
    rows = api_database.query(found, tenant.profile.id)
    assert [tuple(row) for row in rows] == [(CODE, 3)], "a job and a batch of two"


def test_keys_of_other_processes_count(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database)
    api_database.execute(
        """INSERT INTO tallies (kind, bucket, name, total, amount)
           VALUES (%s, date_bin('1 hour', now(), 'epoch'), %s, 2, 2)""",
        TallyKind.IDEMPOTENCY_KEY.value,
        str(tenant.profile.id),
    )
    assert tenant.post("a").status_code == 202
    assert_refused(tenant.post("b"))


def test_a_key_that_was_not_used_after_all_does_not_count(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database, idempotency_keys=2)
    assert tenant.post("a").status_code == 202
    for _ in range(5):
        assert tenant.post("a").status_code == 202
        assert tenant.post("a", "/jobs/batch").status_code == 422, "another request"
    assert tenant.post("b").status_code == 202
    assert_refused(tenant.post("c"))


def test_limits_come_from_the_terms_or_the_tier(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    def shown(tenant: Tenant) -> Any:
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        answer = http_client.open("GET", "/tenant", headers).get_json()
        return answer["effective"]["idempotency_keys"]

    tiers = {"free": 10**6, "standard": 10**7, "pro": 10**8, "enterprise": None}
    for tier, keys in tiers.items():
        usual = {"idempotency_keys": None, "tier_limits": True, "tier": tier}
        assert shown(Tenant(http_client, api_database, **usual)) == keys
    tenant = Tenant(http_client, api_database, idempotency_keys=None)
    assert shown(tenant) is None
    assert tenant.post("a").status_code == 202
    change_tenant(api_database.engine, tenant.profile.name, Change({"idempotency_keys": 1}))
    http_client.services.tenants.directory.refresh()
    assert shown(tenant) == 1
    assert_refused(tenant.post("b"))
