"""What a tenant has in the blob store is bounded: a large payload beyond that is a 429."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.scheduler.maintenance import collector as collecting
from app.scheduler.maintenance.collector import Collector
from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.blobs import payload_key
from models.jobs.ids import new_id
from tests.support.blob_keys import keys_in
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient

CODE = "TENANT_BLOB_BYTES_EXCEEDED"
#: As it is stored, with quotes.
LARGE = {"type": "echo", "payload": "x" * 99_998}
SMALL = {"type": "echo", "payload": "x"}


class Tenant:
    """A tenant that may have two large payloads, or as its terms say."""

    def __init__(self, http_client: HttpClient, database: DatabaseFixture, **terms: Any) -> None:
        fields = {"tier_limits": False, "blob_bytes": 250_000, **terms}
        self.profile = create_tenant(database.engine, f"t{new_id()[-12:]}", Change(fields))
        self.secret = issue_key(database.engine, self.profile.name).key
        self.http_client, self.database = http_client, database

    def post(self, body: Any, path: str = "/jobs", key: str = "") -> TestResponse:
        headers = {"Authorization": f"Bearer {self.secret}"}
        if key:
            headers["Idempotency-Key"] = key
        return self.http_client.open("POST", path, headers, body)

    def jobs(self) -> list[str]:
        rows = self.database.query(
            "SELECT id::text FROM jobs WHERE tenant_id = %s ORDER BY id", self.profile.id
        )
        return [row.id for row in rows]


def stored(http_client: HttpClient) -> set[str]:
    return set(keys_in(http_client.services.blobs, -1.0))


def assert_refused(answer: TestResponse) -> None:
    assert answer.status_code == 429, answer.text
    problem = answer.get_json()
    assert (problem["code"], problem["violated-policies"]) == (CODE, ["blob-bytes"])
    assert "At most 250,000 bytes" in problem["detail"]
    assert answer.mimetype == "application/problem+json"
    assert int(answer.headers["Retry-After"]) == 300


def test_a_large_payload_beyond_the_limit_is_refused_and_stores_nothing(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    tenant, other = Tenant(http_client, api_database), Tenant(http_client, api_database)
    first = [tenant.post(LARGE, key=key) for key in "ab"]
    assert [answer.status_code for answer in first] == [202, 202]
    before, blobs = tenant.jobs(), stored(http_client)
    for _ in range(3):
        assert_refused(tenant.post(LARGE))
    assert_refused(
        tenant.post({"candidate": "Ada", "payload": {"a": "x" * 99_998}}, "/applications")
    )
    assert (tenant.jobs(), stored(http_client)) == (before, blobs)
    again = tenant.post(LARGE, key="a")
    assert (again.status_code, again.get_json()) == (202, first[0].get_json())
    assert stored(http_client) == blobs
    assert tenant.post(SMALL).status_code == 202, "that is in its row"
    assert other.post(LARGE).status_code == 202, "another tenant"
    http_client.services.gate._refusals.flush()
    counted = "SELECT code, refused FROM refusals WHERE tenant_id = %s"
    assert [tuple(row) for row in api_database.query(counted, tenant.profile.id)] == [(CODE, 4)]


def test_items_of_a_batch_that_do_not_fit_are_refused_alone(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    tenant = Tenant(http_client, api_database)
    answer = tenant.post({"jobs": [LARGE, SMALL, LARGE, LARGE, SMALL]}, "/jobs/batch")
    results = answer.get_json()["results"]
    codes = [one.get("error", {}).get("code") for one in results]
    assert (answer.status_code, codes) == (202, [None, None, None, CODE, None])
    assert len(tenant.jobs()) == 4
    assert_refused(tenant.post({"jobs": [LARGE]}, "/jobs/batch"))
    assert_refused(tenant.post({"jobs": [SMALL, LARGE]}, "/jobs/batch", key="whole"))


def test_what_was_removed_makes_room_once_it_was_counted(
    http_client: HttpClient, api_database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = Tenant(http_client, api_database)
    for _ in range(2):
        assert tenant.post(LARGE).status_code == 202
    assert_refused(tenant.post(LARGE))
    http_client.services.admission.tallies.write(api_database.engine)
    # As the Retirer does, a while ago.
    for job_id in tenant.jobs():
        http_client.services.blobs.delete(payload_key(job_id))
        api_database.execute("DELETE FROM jobs WHERE id = %s", job_id)
    api_database.execute(
        "UPDATE tallies SET bucket = bucket - interval '1 hour' WHERE kind = 'stored_blob'"
    )
    assert_refused(tenant.post(LARGE))
    blobs = http_client.services.blobs
    assert Collector(api_database.engine, api_database.leader, blobs).run_once(0.0)
    monkeypatch.setattr("app.admission.depth.REFUSE_SECONDS", 0.0)
    assert tenant.post(LARGE).status_code == 202


def test_a_count_from_the_future_is_no_error(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    """The clock of a new primary may be behind that of the old one."""
    api_database.execute(
        "INSERT INTO blob_counts (tenant_id, bytes, counted_at)"
        " VALUES (0, 0, now() + interval '10 minutes')"
        " ON CONFLICT (tenant_id) DO UPDATE SET counted_at = excluded.counted_at"
    )
    tenant = Tenant(http_client, api_database)
    assert [tenant.post(LARGE).status_code for _ in range(2)] == [202, 202]
    assert_refused(tenant.post(LARGE))


def test_checkpoints_count_too(
    http_client: HttpClient, api_database: DatabaseFixture, tmp_path: Path
) -> None:
    tenant = Tenant(http_client, api_database)
    assert tenant.post(SMALL).status_code == 202
    (job_id,) = tenant.jobs()
    http_client.services.blobs.put(f"checkpoints/{job_id[-2:]}/{job_id}.1.1.ab", b"x" * 200_000)
    collector = Collector(api_database.engine, api_database.leader, http_client.services.blobs)
    turn = 0
    while collector.run_once(float(turn)) == collecting.BATCH:
        turn += 1
    assert_refused(tenant.post(LARGE))


def test_limits_come_from_the_terms_or_the_tier(
    http_client: HttpClient, api_database: DatabaseFixture
) -> None:
    def shown(tenant: Tenant) -> Any:
        headers = {"Authorization": f"Bearer {tenant.secret}"}
        return http_client.open("GET", "/tenant", headers).get_json()["effective"]["blob_bytes"]

    tiers = {"free": 10**10, "standard": 10**11, "pro": 10**12, "enterprise": None}
    for tier, size in tiers.items():
        usual = {"blob_bytes": None, "tier_limits": True, "tier": tier}
        assert shown(Tenant(http_client, api_database, **usual)) == size
    assert shown(Tenant(http_client, api_database)) == 250_000
    tenant = Tenant(http_client, api_database, blob_bytes=None)
    assert shown(tenant) is None
    assert [tenant.post(LARGE).status_code for _ in range(4)] == [202] * 4
