"""Limits by tier: new tenants have them, each can be replaced, and all can be lifted."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from app.policy.fairshare import Tier
from app.policy.tier_limits import TIER_LIMITS
from app.tenants.caps import cap_of, cap_sql
from app.tenants.changes import change_tenant, ensure_tenant
from app.tenants.listing import read_tenant
from app.tenants.terms import Change
from models.pools import POOLS
from tests.integration.api.test_contract import assert_problem
from tests.integration.api.test_limits import JOB, Client, until
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture

RATE = "TENANT_RATE_LIMIT_EXCEEDED"


def of_tier(api: ApiServer, database: DatabaseFixture, **fields: Any) -> Client:
    return Client(api, database, tier_limits=True, **fields)


def effective(client: Client) -> dict[str, Any]:
    return dict(client.api.get("/tenant", client.headers).json()["effective"])


@pytest.mark.parametrize(
    ("tier", "policy"),
    [
        ("free", '"default";q=10;w=1'),
        ("standard", '"default";q=100;w=1'),
        ("pro", '"default";q=10000;w=1'),
        ("enterprise", None),
    ],
)
def test_each_tier_has_its_rate_and_caps(
    api: ApiServer, api_database: DatabaseFixture, tier: str, policy: str | None
) -> None:
    client = of_tier(api, api_database, tier=tier)
    answer = client.post()
    assert answer.status == 202
    assert answer.headers.get("ratelimit-policy") == policy
    shown, limits = effective(client), TIER_LIMITS[Tier(tier)]
    assert shown["submit_per_second"] == limits.submit_per_second
    assert shown["in_flight"] == dict(limits.in_flight or {})


def test_a_free_account_is_refused_beyond_ten_a_second(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = of_tier(api, api_database, tier="free")
    assert client.post_batch(*[JOB] * 40).status == 202  # leaves a debt of three seconds
    assert_problem(client.post(), 429, RATE)


def test_own_limits_replace_those_of_the_tier_one_by_one(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = of_tier(api, api_database, limits={"medium": {"in_flight": 7}}, submit_per_second=3.0)
    assert effective(client)["in_flight"] == {"short": 200, "medium": 7, "long": 20}
    assert client.post().headers["ratelimit-policy"] == '"default";q=3;w=1'


def test_limits_of_the_tier_are_lifted_and_imposed_by_a_switch(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    client = of_tier(api, api_database)
    assert "ratelimit" in client.post().headers
    name = client.tenant.name
    change_tenant(api_database.engine, name, Change({"tier_limits": False}))
    # Each of the two processes hears of it within a second.
    until(lambda: "ratelimit" not in client.post().headers)
    until(lambda: effective(client)["submit_per_second"] is None)
    until(lambda: effective(client)["in_flight"] == {})
    change_tenant(api_database.engine, name, Change({"tier_limits": True}))
    until(lambda: "ratelimit" in client.post().headers)


def test_the_tenant_of_the_embedded_stack_has_none(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    ensure_tenant(api_database.engine, "embedded", Change({"tier_limits": False}))
    with api_database.engine.connect() as connection:
        listed = read_tenant(connection, "embedded")
    assert listed is not None and not listed.tenant.tier_limits
    assert "ratelimit" not in api.post(JOB, path="/jobs").headers


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("tier_limits", [True, False])
@pytest.mark.parametrize("own", [None, 7])
def test_the_statements_and_the_gate_know_the_same_caps(
    api: ApiServer, api_database: DatabaseFixture, tier: str, tier_limits: bool, own: int | None
) -> None:
    limits = {"medium": {"in_flight": own}}
    client = Client(api, api_database, limits, tier=tier, tier_limits=tier_limits)
    statement = f"""
        SELECT known.pool, {cap_sql("known.pool")} AS cap FROM tenants AS tenant
        CROSS JOIN unnest(ARRAY['short', 'medium', 'long', 'gpu']) AS known (pool)
        LEFT JOIN tenant_limits AS limits
            ON limits.tenant_id = tenant.id AND limits.pool = known.pool
        WHERE tenant.id = {client.tenant.id}"""
    with api_database.engine.connect() as connection:
        found = {row.pool: row.cap for row in connection.execute(text(statement))}
    assert found == {pool: cap_of(client.tenant, pool) for pool in (*POOLS, "gpu")}


def test_metrics_tell_what_tiers_have(api: ApiServer) -> None:
    page = api.get("/metrics").body.decode()
    for line in (
        'fairline_tier_submit_per_second{tier="free"} 10.0',
        'fairline_tier_submit_per_second{tier="standard"} 100.0',
        'fairline_tier_submit_per_second{tier="pro"} 10000.0',
        'fairline_tier_in_flight_limit{pool="medium",tier="standard"} 100.0',
    ):
        assert line in page
    assert 'tier="enterprise"' not in page
