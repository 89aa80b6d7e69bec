"""``GET /operator/audit``, ``flask audit export``, and refused requests in the log."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from app import application
from app.api.http.refused import RefusedRequests
from app.api.services import Services
from app.cli import audit as audit_commands
from app.errors import Unauthenticated
from app.reads import audit as reads
from app.reads.audit import AuditFilter, read_acts
from app.tenants.changes import issue_key
from tests.support.browsing import Browser
from tests.support.database_fixture import DatabaseFixture
from tests.support.http_client import HttpClient
from tests.support.plans import plan_of_call

ADD = """
    INSERT INTO audit_log (at, via, who, role, tenant, what, target)
    SELECT '2030-01-01Z'::timestamptz + make_interval(mins => n), 'api', 'key-' || n %% 2,
           'operator', CASE WHEN n %% 3 = 0 THEN 'other' ELSE 'demo' END, 'tenant.change', n::text
    FROM generate_series(1, 10) AS n
"""


@pytest.fixture
def client(operator: Browser, database: DatabaseFixture) -> HttpClient:
    return HttpClient(operator.app)


@pytest.fixture
def key(database: DatabaseFixture) -> str:
    return issue_key(database.engine, None).key


def targets(client: HttpClient, key: str, query: str = "") -> tuple[list[str], str | None]:
    answer = client.call(key, "GET", f"/operator/audit{query}")
    assert answer.status_code == 200, answer.text
    document: Any = answer.json
    following = re.match("<([^>]+)>", answer.headers.get("Link", ""))
    return [act["target"] for act in document["acts"]], following[1] if following else None


def test_acts_are_listed_newest_first_page_by_page(
    client: HttpClient, key: str, database: DatabaseFixture
) -> None:
    database.execute(ADD)
    # Two at the same moment: neither is lost between two pages.
    database.execute(ADD.replace("n::text", "'again-' || n"))
    seen: list[str] = []
    path: str | None = "?limit=3"
    while path:
        found, following = targets(client, key, path)
        seen += found
        path = following and following.removeprefix("/operator/audit")
    assert len(seen) == 20 == len(set(seen))
    assert seen[:4] == ["again-10", "10", "again-9", "9"]


def test_acts_are_filtered(client: HttpClient, key: str, database: DatabaseFixture) -> None:
    database.execute(ADD)
    assert targets(client, key, "?tenant=other")[0] == ["9", "6", "3"]
    assert targets(client, key, "?tenant=other&who=key-0")[0] == ["6"]
    assert targets(client, key, "?what=key.issue")[0] == []
    span = "?since=2030-01-01T00:02:00Z&until=2030-01-01T00:04:00Z"
    assert targets(client, key, span)[0] == ["3", "2"]


@pytest.mark.parametrize(
    "query",
    ["?what=nonsense", "?since=yesterday", "?since=2030-01-01", "?cursor=eA", "?who=%00", "?x=1"],
)
def test_a_wrong_filter_is_an_error(client: HttpClient, key: str, query: str) -> None:
    assert client.call(key, "GET", f"/operator/audit{query}").status_code == 422


def test_a_tenant_does_not_read_it(client: HttpClient, database: DatabaseFixture) -> None:
    tenant = issue_key(database.engine, "demo").key
    assert client.call(tenant, "GET", "/operator/audit").status_code == 403


@pytest.mark.parametrize("field", ["tenant", "who", "what"])
def test_a_filter_walks_its_index(database: DatabaseFixture, field: str) -> None:
    database.execute(f"INSERT INTO audit_log (via, who, role, tenant, what) {MANY}")
    database.execute("ANALYZE audit_log")
    with database.engine.connect() as connection:
        wanted = AuditFilter(**{field: "rare"})
        plan = plan_of_call(database, lambda: read_acts(connection, wanted, 50))
    assert f"audit_log_{field}" in plan


MANY = """
    SELECT 'api', kind, 'operator', kind, kind FROM (
        SELECT CASE WHEN n %% 1000 = 0 THEN 'rare' ELSE 'usual' END AS kind
        FROM generate_series(1, 20000) AS n) AS made
"""


def test_all_of_it_is_exported_as_lines(
    client: HttpClient, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(ADD)
    monkeypatch.setattr(audit_commands, "database", lambda: database.engine)
    monkeypatch.setattr(reads, "BATCH", 3)
    runner = application.test_cli_runner()
    result = runner.invoke(args=["audit", "export"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    acts = [json.loads(line) for line in result.output.splitlines()]
    assert [act["target"] for act in acts] == [str(n) for n in range(1, 11)], "oldest first"
    assert acts[0]["at"].startswith("2030-01-01T00:01:00")
    some = runner.invoke(
        args=["audit", "export", "--tenant", "other", "--since", "2030-01-01T00:05:00"]
    )
    assert [json.loads(line)["target"] for line in some.output.splitlines()] == ["6", "9"]


def test_refused_requests_are_counted_and_sampled(
    client: HttpClient, key: str, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    counted: list[str] = []
    refused = RefusedRequests(database.engine, counted.append, lambda: now)
    refused.close()  # the test flushes
    services: Services = replace(client.services, refused=refused)
    monkeypatch.setitem(client.app.extensions, "fairline", services)
    wrong = f"fair_zzzz9999_{'x' * 32}"
    for _ in range(5):
        assert client.call(wrong, "GET", "/operator/tenants").status_code == 401
        assert client.call(wrong, "POST", "/jobs", {"type": "echo"}).status_code == 401
    tenant = issue_key(database.engine, "demo")
    assert client.call(tenant.key, "GET", "/operator/tenants").status_code == 403
    assert client.call(key, "GET", "/operator/tenants").status_code == 200
    assert client.call(key, "GET", "/operator/tenants/nobody").status_code == 404
    refused.flush()
    rows = {
        row.after["code"]: row
        for row in database.query("SELECT * FROM audit_log WHERE what = 'request.refuse'")
    }
    assert rows.keys() == {"UNAUTHENTICATED", "FORBIDDEN"}
    unknown, known = rows["UNAUTHENTICATED"], rows["FORBIDDEN"]
    assert (unknown.who, unknown.role, unknown.tenant) == ("zzzz9999", "unknown", None)
    assert (unknown.target, unknown.after["count"]) == ("GET /operator/tenants", 10)
    assert (known.who, known.role, known.tenant) == (tenant.id, "tenant", "demo")
    assert "x" * 32 not in str(rows)
    assert sorted(set(counted)) == ["FORBIDDEN", "UNAUTHENTICATED"] and len(counted) == 11
    client.call(wrong, "GET", "/jobs")
    refused.flush()
    assert database.query("SELECT count(*) AS n FROM audit_log")[0].n == 2, "not within a second"
    now += 1.0
    refused.flush()
    assert database.query("SELECT count(*) AS n FROM audit_log")[0].n == 3


def test_counts_of_refused_requests_are_those_of_the_metric(
    client: HttpClient, database: DatabaseFixture
) -> None:
    gate = client.services.gate
    gate.count_other(Unauthenticated.code)
    gate.count_other(Unauthenticated.code)
    gate._refusals.flush()
    code = "SELECT tenant_id, refused FROM refusals WHERE code = 'UNAUTHENTICATED'"
    assert [tuple(row) for row in database.query(code)] == [(0, 2)]
