"""``GET /tenant/usage``: the report matches the jobs table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from app.scheduler.maintenance.reaper import Reaper
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tests.integration.api.test_jobs import start
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import COUNTS

RETRY = Ending(JobStatus.SCHEDULED, tries_spent=1, error_class=FailureClass.APP_ERROR)
SUCCESS = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")
HANDED_BACK = Ending(JobStatus.QUEUED, deferrals=1)
DEATH = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.TIMEOUT)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    api_database.execute(f"TRUNCATE jobs, usage, {COUNTS}")
    return api_database


def bill(api: ApiServer, query: str = "") -> dict[str, Any]:
    answer = api.get(f"/tenant/usage?{query}")
    assert answer.status == 200, answer
    document: dict[str, Any] = answer.json()
    return document


def test_tenant_that_used_nothing_pays_nothing(api: ApiServer, database: DatabaseFixture) -> None:
    body = bill(api)
    today = datetime.now(UTC).date()
    assert (body["from"], body["to"]) == (today.replace(day=1).isoformat(), today.isoformat())
    assert (body["tenant"], body["days"], body["currency"]) == ("demo", [], "USD")
    assert (body["total"]["jobs"], body["total"]["cost"]) == (0, "0.000000")


def test_sums_match_the_jobs_table_and_the_prices(
    api: ApiServer, database: DatabaseFixture
) -> None:
    for number in range(6):
        claim = start(database, pool="long" if number % 2 else "medium")
        database.settle(claim.ref, RETRY if number < 2 else SUCCESS, run_seconds=0.5 + number)
    database.settle(start(database, pool="short").ref, DEATH, run_seconds=7.25)
    database.settle(start(database, tenant_id=2).ref, SUCCESS, run_seconds=100)
    database.settle(start(database, pool="short").ref, HANDED_BACK, run_seconds=2.5)
    lost = start(database, pool="medium")
    database.execute(
        "UPDATE jobs SET lease_expires_at = now() - interval '1 second', started_at = now()"
        " - interval '33 seconds' WHERE id = %s",
        lost.ref.id,
    )
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 1
    database.submit()  # never ran, costs nothing
    body = bill(api)
    rows = database.query(
        """
        SELECT pool, sum(slot_seconds), count(*) FILTER (WHERE ended_xid IS NOT NULL),
               sum(attempt + crashes)
        FROM jobs WHERE tenant_id = 1 AND slot_seconds > 0 GROUP BY pool ORDER BY pool
        """
    )
    assert [
        (line["pool"], line["slot_seconds"], line["jobs"], line["runs"]) for line in body["days"]
    ] == [tuple(row) for row in rows]
    total = body["total"]
    assert total["slot_seconds"] == sum(line["slot_seconds"] for line in body["days"])
    assert (total["jobs"], total["runs"]) == (5, 8)
    prices = {name: Decimal(price) for name, price in body["prices"].items()}
    for line in body["days"]:
        expected = (
            Decimal(str(line["slot_seconds"])) * prices["per_slot_second"]
            + line["jobs"] * prices["per_job"]
        )
        assert Decimal(line["cost"]) == expected.quantize(Decimal("0.000001"))
    assert Decimal(total["cost"]) == sum(Decimal(line["cost"]) for line in body["days"])


def test_days_are_chosen_by_from_and_to_and_shards_are_added_up(
    api: ApiServer, database: DatabaseFixture
) -> None:
    database.execute(
        """
        INSERT INTO usage (tenant_id, pool, day, shard, jobs, runs, slot_seconds, tokens_in,
                           tokens_out)
        SELECT tenant, 'medium', date '2026-01-30' + day, shard, 1, 2, 0.25, 1000000, 10
        FROM generate_series(1, 2) AS tenant, generate_series(0, 4) AS day,
             generate_series(0, 3) AS shard
        """
    )
    body = bill(api, "from=2026-01-31&to=2026-02-01")
    assert [line["day"] for line in body["days"]] == ["2026-01-31", "2026-02-01"]
    (line, _) = body["days"]
    assert (line["jobs"], line["runs"], line["slot_seconds"]) == (4, 8, 1.0)
    assert (line["tokens_in"], line["tokens_out"]) == (4_000_000, 40)
    tokens = Decimal(4) * Decimal(body["prices"]["per_million_tokens_in"])
    assert Decimal(line["cost"]) > tokens
    assert [day["day"] for day in bill(api, "to=2026-02-03")["days"]] == [
        *("2026-02-01", "2026-02-02", "2026-02-03")
    ]


def test_year_can_be_asked_for_and_no_more(api: ApiServer) -> None:
    last = datetime(2026, 1, 1, tzinfo=UTC).date()
    assert bill(api, f"from={last - timedelta(days=365)}&to={last}")["days"] == []
    assert api.get(f"/tenant/usage?from={last - timedelta(days=366)}&to={last}").status == 422
