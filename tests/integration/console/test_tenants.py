"""The operators' pages of tenants: shares against use, and one tenant in full."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from app.console.tenants import one as tenants_one
from app.console.tenants import use as tenants_use
from app.tenants.changes import create_tenant, issue_key, revoke_key
from app.tenants.listing import LIST_TENANTS
from app.tenants.terms import Change
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.pools import POOLS
from tests.support.browsing import Browser, cells, text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import assert_walks, indexes_in, plan_of

LIST, ONE = "/console/tenants", "/console/tenants/<name>"
TERMS = {
    "acme": Change({"weight": 30.0}, {"medium": {"in_flight": 5}}),
    "blue": Change({}, {}),
    "tiny": Change({"tier": "free"}, {}),
}


@pytest.fixture(scope="module", autouse=True)
def ids(api_database: DatabaseFixture) -> dict[str, int]:
    """The tenants of the module, by name."""
    return {
        name: create_tenant(api_database.engine, name, terms).id for name, terms in TERMS.items()
    }


def run(database: DatabaseFixture, tenant_id: int, seconds: float) -> None:
    """A job that took so long."""
    claim = database.start(tenant_id=tenant_id)
    assert database.settle(
        claim.ref, Ending(JobStatus.SUCCEEDED, tries_spent=1), run_seconds=seconds
    )


def write_share(
    database: DatabaseFixture, tenant_id: int, pool: str, served: float, weight: float
) -> None:
    """As the leader writes it down."""
    database.execute(
        "INSERT INTO shares (tenant_id, pool, pass, counted_day, counted_seconds, weight)"
        " VALUES (%s, %s, %s, current_date, 0, %s)",
        tenant_id,
        pool,
        served,
        weight,
    )


def test_shares_follow_the_weights_of_those_with_work_and_use_what_ran(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    run(database, ids["blue"], 30.0)
    run(database, ids["acme"], 10.0)
    for name in ("acme", "blue"):
        database.start(tenant_id=ids[name])
    database.submit(tenant_id=ids["acme"])
    database.execute("INSERT INTO tenant_limits VALUES (%s, 'medium', 5, NULL, NULL)", ids["acme"])
    page = operator.page(f"{LIST}?pool=medium")
    # Tier, weight, entitled, in flight, used, of all use, deficit, waiting, refused, held.
    assert cells(page, "blue")[1:] == [
        *("standard", "10", "25 %", "1 of 100 (50 %)", "30 s", "75 %", "–", "0", "0", "–")
    ]
    assert cells(page, "acme")[1:] == [
        *("standard", "30 (own)", "75 %", "1 of 5 (50 %)", "10 s", "25 %", "–", "1", "0", "–")
    ]
    with pytest.raises(AssertionError):
        cells(page.partition("All tenants")[0], "tiny")
    # Who has nothing to do is entitled to nothing, and has used what it has used.
    database.execute("DELETE FROM jobs WHERE tenant_id = %s", ids["blue"])
    page = operator.page(LIST)
    assert cells(page, "acme")[3] == "100 %"
    caps = "limit 20 in long, 100 in medium, 200 in short"
    assert cells(page, "blue")[3:5] == ["–", f"0 (0 %) {caps}"]
    assert "30 s" in cells(page, "blue")


def test_free_accounts_share_one_claim(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    for name in ("blue", "tiny", "tiny"):
        database.submit(tenant_id=ids[name])
    page = operator.page(LIST)
    assert cells(page, "tiny")[1:4] == ["free", "1", "5 %"]
    assert cells(page, "blue")[3] == "95 %"


def test_a_deficit_is_what_the_pool_owes_to_who_has_work(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    write_share(database, 0, "medium", 100.0, 40.0)
    write_share(database, ids["acme"], "medium", 98.0, 30.0)
    write_share(database, ids["blue"], "medium", 101.0, 10.0)
    write_share(database, ids["tiny"], "medium", 90.0, 1.0)
    for name in ("acme", "blue"):
        database.submit(tenant_id=ids[name])
    run(database, ids["tiny"], 1.0)
    page = operator.page(LIST)
    assert [cells(page, name)[7] for name in ("acme", "blue", "tiny")] == ["+60 s", "−10 s", "–"]
    # What nobody leads is told by nobody.
    database.execute("UPDATE shares SET updated_at = now() - interval '1 minute'")
    assert cells(operator.page(LIST), "acme")[7] == "–"


def test_refusals_and_verdicts_of_today_stand_beside_the_tenant(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    blue = ids["blue"]
    database.submit(tenant_id=blue)
    database.execute(
        "INSERT INTO refusals VALUES (%s, current_date, 'A', 3), (%s, current_date, 'B', 4),"
        " (%s, current_date - 1, 'A', 100)",
        *(blue, blue, blue),
    )
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool, name) VALUES ('throttle', %s, 'medium', ''),"
        " ('throttle', %s, 'short', ''), ('spike', %s, '', ''), ('quarantine', 0, '', 'echo')",
        *(blue, blue, blue),
    )
    *_, refused, held = cells(operator.page(LIST), "blue")
    assert refused == "7"
    assert sorted(held.split()) == ["medium", "short", "spike", "throttle", "throttle"]
    *_, refused, held = cells(operator.page(f"{LIST}?pool=medium"), "blue")
    assert refused == "7"
    assert sorted(held.split()) == ["medium", "spike", "throttle"]
    one = operator.page("/console/tenants/blue")
    assert "Throttled in medium" in text_of(one)
    assert "Spike " in text_of(one)


def test_a_house_without_work_says_so(operator: Browser, database: DatabaseFixture) -> None:
    assert "No tenant has work, and none has used a slot today." in text_of(operator.page(LIST))
    answer = operator.get(f"{LIST}?pool=nonsense")
    assert answer.status_code == 422
    assert "must be one of" in answer.text


def test_all_tenants_are_found_by_their_names_and_by_leafing(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute(
        "INSERT INTO tenants (name) SELECT 'zz-' || n FROM generate_series(100, 219) n"
    )
    try:
        first = operator.page(f"{LIST}?search=ZZ-1")
        listed = first.partition("All tenants")[2]
        assert listed.count('<th scope="row"') == 50
        assert "zz-100" in listed and "acme" not in listed
        more = listed.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        second = operator.page(more).partition("All tenants")[2]
        assert "zz-150" in second and "zz-199" in second and "zz-200" not in second
        assert 'rel="next"' not in second
    finally:
        database.execute("DELETE FROM tenants WHERE name LIKE 'zz-%%'")
    page = operator.page(f"{LIST}?search=<script>alert(1)</script>")
    assert "<script>alert" not in page
    assert "No tenant name starts with “<script>alert(1)</script>”." in text_of(page)
    assert operator.get(f"{LIST}?after=<b>").status_code == 422


def test_a_tenant_in_full(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    run(database, ids["acme"], 100.0)
    database.submit(tenant_id=ids["acme"], pool="short")
    kept = issue_key(database.engine, "acme", "<b>laptop</b>")
    gone = issue_key(database.engine, "acme", "lost")
    revoke_key(database.engine, gone.id)
    page = operator.page("/console/tenants/acme")
    text = text_of(page)
    assert "flask --app app tenants set acme" in text
    assert cells(page, "medium")[8] == "1"
    assert cells(page, "short")[1] == "100 %"
    today = datetime.now(UTC).date().isoformat()
    assert cells(page, today)[1:] == ["1", "1", "100 s", "0", "0", "0.00201"]
    assert cells(page, "30 days")[-1] == "0.00201"
    assert cells(page, f"fair_{kept.id}_…")[1] == "<b>laptop</b>"
    assert "<b>laptop" not in page
    assert cells(page, f"fair_{gone.id}_…")[5].startswith("revoked")
    for secret in (kept.key, gone.key):
        assert secret.rpartition("_")[2] not in page
    assert 'href="/console/jobs?tenant=acme"' in page


@pytest.mark.parametrize("name", ["nobody", "NOBODY", "%3Cscript%3E", "a" * 80])
def test_who_is_no_tenant_has_no_page(operator: Browser, name: str) -> None:
    answer = operator.get(f"/console/tenants/{name}")
    assert answer.status_code == 404
    assert "<script>" not in answer.text


def test_live_parts_are_the_same_while_nothing_changes(
    operator: Browser, database: DatabaseFixture, ids: dict[str, int]
) -> None:
    run(database, ids["acme"], 3.0)
    database.start(tenant_id=ids["blue"])
    for rule in (LIST, ONE):
        before = operator.parts(rule, name="acme")
        assert before == operator.parts(rule, name="acme")
        run(database, ids["acme"], 3.0)
        assert before != operator.parts(rule, name="acme")


def test_no_statement_reads_a_growing_table_from_end_to_end(database: DatabaseFixture) -> None:
    """With ten thousand tenants, some of them waiting."""
    try:
        for statement in MANY:
            database.execute(statement)
        pools = {"pools": list(POOLS)}
        plan = plan_of(database, tenants_use.READ_WORKING, **pools)
        assert_walks(plan, "jobs_line", "jobs_in_flight", *(indexes_in(plan) & {"tenants_pkey"}))
        ids = [row[0] for row in database.query("SELECT id FROM tenants LIMIT 100")]
        plan = plan_of(database, tenants_use.READ_USED, working=ids, pool=None)
        assert "Seq Scan on usage" not in plan, plan
        plan = plan_of(database, tenants_use.READ_TENANTS, ids=ids, pool=None, pools=["medium"])
        assert "Seq Scan on job_count_" not in plan, plan
        assert "Seq Scan on refusals" not in plan, plan
        plan = plan_of(database, tenants_one.READ_POOLS, tenant=ids[0])
        assert "Seq Scan on job_count_" not in plan, plan
        plan = plan_of(database, LIST_TENANTS, prefix="many-5", after="many-5", limit=51)
        assert "tenants_name_key" in indexes_in(plan), plan
    finally:
        emptied(database)
        database.execute("DELETE FROM tenants WHERE name LIKE 'many-%%'")


MANY = (
    "INSERT INTO tenants (name) SELECT 'many-' || n FROM generate_series(1, 10000) AS n",
    """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease_expires_at, ended_xid)
    SELECT gen_random_uuid(), 100 + n %% 9000, 'echo', part.pool, '{}', part.status,
           CASE WHEN part.status = 'running' THEN now() END,
           CASE WHEN part.status = 'succeeded' THEN pg_current_xact_id() END
    FROM (VALUES ('succeeded'::job_status, 4000, 'medium'), ('queued', 2000, 'medium'),
                 ('running', 100, 'medium')) AS part (status, jobs, pool),
         generate_series(1, part.jobs) AS n""",
    """
    INSERT INTO usage (tenant_id, day, pool, shard, jobs, slot_seconds)
    SELECT id, current_date - day, 'medium', 0, 1, 1 FROM tenants, generate_series(0, 1) AS day""",
    "INSERT INTO refusals SELECT id, current_date, 'A', 1 FROM tenants",
    "INSERT INTO job_count_sums SELECT tenant_id, pool, dependency, 0, 0, 0, 0, 0, 0, 0, 0, 0"
    " FROM job_count_keys",
    "ANALYZE",
)
