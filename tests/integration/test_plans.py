"""Every hot statement walks the index it was written for, however long the table has grown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.admission.admit import ADMIT
from app.api.leaderboard import READ_FIRST_PAGE, READ_PAGE
from app.api.metrics import READ_AGES
from app.api.ranks import READ_RANKS
from app.api.views import READ_APPLICATIONS
from app.dispatch.mark import MARK, RELEASE
from app.scheduler.expirer import EXPIRE
from app.scheduler.promoter import PROMOTE
from app.scheduler.reaper import REAP
from models.ids import new_id
from tasks.runtime.claim import CLAIM
from tasks.runtime.heartbeat import BEAT
from tasks.runtime.settle import settle_statement
from tests.integration.house import House

#: Most rows have ended long ago; the line is long; little is in flight or put off.
FILL = """
    WITH filled AS (
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, priority, execute_at,
                          lease, lease_expires_at)
        SELECT gen_random_uuid(), 1, 'score_application', 'medium', '{}',
               status, n %% 3, now() + n * interval '1 second', 1, now() + interval '1 minute'
        FROM (VALUES ('succeeded'::job_status, 36000), ('dead', 2000), ('cancelled', 1000),
                     ('queued', 10000), ('scheduled', 700), ('dispatched', 100),
                     ('running', 200)) AS part (status, jobs),
             generate_series(1, part.jobs) AS n
        RETURNING id, status
    )
    INSERT INTO applications (id, tenant_id, candidate, role, score)
    SELECT id, 1, 'Ada', 'general',
           CASE status WHEN 'succeeded' THEN round((random() * 100)::numeric, 2) END
    FROM filled
"""


@pytest.fixture(scope="module")
def filled(api_house: House) -> House:
    """50,000 jobs and their applications, with fresh statistics."""
    api_house.execute(FILL)
    for table in ("jobs", "applications", "leaders", "express_lanes", "tenants"):
        api_house.execute(f"ANALYZE {table}")
    return api_house


def plan_of(house: House, sql: str, **parameters: Any) -> str:
    with house.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN {sql}", parameters)
        return "\n".join(row[0] for row in rows)


def indexes_in(plan: str) -> set[str]:
    return set(re.findall(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", plan))


def assert_walks(plan: str, *indexes: str) -> None:
    """These indexes, and no table of many rows from end to end."""
    assert indexes_in(plan) == set(indexes), plan
    assert not re.search(r"Seq Scan on (jobs|applications)", plan), plan


def refs(house: House, status: str, count: int) -> dict[str, list[Any]]:
    rows = house.query("SELECT id FROM jobs WHERE status = %s LIMIT %s", status, count)
    return {"ids": [row.id for row in rows], "leases": [1] * len(rows)}


#: As many as gather in a group: one, some, and the largest group there is.
GROUPS = pytest.mark.parametrize("size", [1, 20, 500])


@pytest.mark.parametrize("room", [1, 20, 500])
def test_mark_walks_the_line_from_its_head(filled: House, room: int) -> None:
    plan = plan_of(filled, MARK, pool="medium", room=room, epoch=1)
    assert_walks(plan, "jobs_line", "jobs_pkey")
    assert "Sort" not in plan


def test_promote_walks_the_due(filled: House) -> None:
    plan = plan_of(filled, PROMOTE, epoch=1)
    assert_walks(plan, "jobs_due", "jobs_pkey")


def test_reap_looks_at_what_is_in_flight(filled: House) -> None:
    plan = plan_of(filled, REAP, epoch=1)
    assert_walks(plan, "jobs_in_flight", "jobs_pkey")


@GROUPS
def test_claim_finds_its_rows_by_key(filled: House, size: int) -> None:
    plan = plan_of(filled, CLAIM, worker="w1", **refs(filled, "dispatched", size))
    assert_walks(plan, "jobs_pkey")


@GROUPS
def test_beat_finds_its_rows_by_key(filled: House, size: int) -> None:
    assert_walks(plan_of(filled, BEAT, **refs(filled, "running", size)), "jobs_pkey")


@GROUPS
def test_release_finds_its_rows_by_key(filled: House, size: int) -> None:
    assert_walks(plan_of(filled, RELEASE, **refs(filled, "dispatched", size)), "jobs_pkey")


@GROUPS
def test_settle_finds_its_rows_and_their_applications_by_key(filled: House, size: int) -> None:
    held = refs(filled, "running", size)
    count = len(held["ids"])
    plan = plan_of(
        filled,
        settle_statement(filled.types.values()),
        **held,
        statuses=["succeeded"] * count,
        tries_spent=[1] * count,
        deferrals=[0] * count,
        delays=[0.0] * count,
        runs=[1.5] * count,
        results=['{"score": 50, "rationale": "because"}'] * count,
        error_classes=[None] * count,
        error_messages=[None] * count,
    )
    assert_walks(plan, "jobs_pkey", "applications_pkey")


@GROUPS
def test_admit_looks_at_no_other_job(filled: House, size: int) -> None:
    plan = plan_of(
        filled,
        ADMIT,
        ids=[new_id() for _ in range(size)],
        tenants=[1] * size,
        types=["score_application"] * size,
        pools=["medium"] * size,
        payloads=["{}"] * size,
        priorities=[0] * size,
        execute_at=[None] * size,
        not_after=[None] * size,
        traceparents=[None] * size,
        candidates=["Ada"] * size,
        roles=["general"] * size,
        express=True,
    )
    assert not re.search(r"Scan (using|on) (jobs|applications)", plan), plan


@GROUPS
@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_poll_finds_its_rows_by_key(filled: House, size: int, status: str) -> None:
    ids = refs(filled, status, size)["ids"]
    plan = plan_of(filled, READ_APPLICATIONS, ids=ids)
    assert indexes_in(plan) - {"tenants_pkey"} == {"jobs_pkey", "applications_pkey"}, plan
    assert not re.search(r"Seq Scan on (jobs|applications)", plan), plan


@GROUPS
def test_ranks_are_counted_along_the_ranking(filled: House, size: int) -> None:
    plan = plan_of(
        filled,
        READ_RANKS,
        tenants=[1] * size,
        roles=["general"] * size,
        scores=[number / 100 for number in range(0, 10_000, 10_000 // size)],
    )
    assert_walks(plan, "applications_ranking")


def test_first_page_of_the_leaderboard_walks_the_ranking(filled: House) -> None:
    plan = plan_of(filled, READ_FIRST_PAGE, tenant=1, role="general", limit=51)
    assert_walks(plan, "applications_ranking")
    assert "Sort" not in plan


@pytest.mark.parametrize("score", ["99.99", "50.00", "0.01"])
def test_later_page_of_the_leaderboard_walks_the_ranking_from_where_it_is(
    filled: House, score: str
) -> None:
    plan = plan_of(filled, READ_PAGE, tenant=1, role="general", limit=51, score=score, id=new_id())
    assert_walks(plan, "applications_ranking")
    assert "Filter" not in plan  # both walks start and end in the index


def test_age_of_the_line_is_read_from_its_heads(filled: House) -> None:
    plan = plan_of(filled, READ_AGES, pools=["short", "medium", "long"])
    assert_walks(plan, "jobs_line")


def test_late_jobs_are_found_by_their_deadline(filled: House) -> None:
    assert "jobs_deadline" in indexes_in(plan_of(filled, EXPIRE, epoch=1))
