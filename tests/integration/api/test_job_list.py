"""``GET /jobs``: order, filters, pages, and the cost of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from app.api.routes.dead_letters import MOST_ATTEMPTS
from app.reads.job_pages import read_page
from app.reads.search import PayloadField, Wanted
from tests.integration.api.test_contract import JOB_FIELDS, WAYS, bring
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import plan_of_call

NEXT = re.compile(r'<(/[a-z-]+\?[^>]+)>; rel="next"')


def walk(api: ApiServer, path: str, entries: str = "jobs") -> Iterator[list[dict[str, Any]]]:
    """The pages, as a client follows the links."""
    while True:
        answer = api.get(path)
        assert answer.status == 200, answer
        yield answer.json()[entries]
        if "link" not in answer.headers:
            return
        found = NEXT.fullmatch(answer.headers["link"])
        assert found is not None
        path = found[1]


def ids(api: ApiServer, path: str) -> list[str]:
    return [entry["id"] for page in walk(api, path) for entry in page]


def test_jobs_are_listed_newest_first_on_any_page_size(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = [api_database.submit(type="listed") for _ in range(7)]
    api_database.submit(type="listed", tenant_id=2)
    for limit in (1, 3, 7, 500):
        assert ids(api, f"/jobs?type=listed&limit={limit}") == made[::-1]
    (newest,) = api.get("/jobs?limit=1").json()["jobs"]
    assert newest["id"] == made[-1]
    assert set(newest) == JOB_FIELDS - {"result"}


def test_jobs_are_filtered_by_status_type_and_pool(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = {status: api_database.submit(type="filtered", pool="long") for status in WAYS}
    for status, job_id in made.items():
        bring(api_database, job_id, status)
    for status, job_id in made.items():
        assert ids(api, f"/jobs?type=filtered&status={status}") == [job_id]
    assert ids(api, "/jobs?type=filtered&pool=long") == list(made.values())[::-1]
    assert ids(api, "/jobs?type=filtered&pool=gone") == []


def test_empty_list_is_a_list(api: ApiServer) -> None:
    answer = api.get("/jobs?type=nobodys")
    assert (answer.status, answer.json()) == (200, {"jobs": []})


def test_pages_cover_all_that_was_there_once_while_others_are_submitted(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    made = [api_database.submit(type="busy") for _ in range(20)]
    seen: list[str] = []
    for page in walk(api, "/jobs?type=busy&limit=3"):
        seen += [entry["id"] for entry in page]
        api_database.submit(type="busy")
    assert seen == made[::-1]


#: Many jobs of one tenant, in the order of their ids: a long way to the few that are dead.
MANY, PART = 60_000, 10_000
PUT_MANY = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, error_class)
    SELECT ('0190a0b0-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 2, 'common', 'short',
           '{}', CASE WHEN n %% 100 = 0 THEN 'dead'::job_status ELSE 'succeeded' END,
           CASE WHEN n %% 200 = 0 THEN 'TIMEOUT' ELSE 'APP_ERROR' END
    FROM generate_series(%s::int, %s) AS n
"""


def test_jobs_are_found_by_a_field_of_their_payload(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    payloads = {
        "alice": '{"candidate":"alice","address":{"city":"Rome"},"tags":["new",7]}',
        "bob": '{"candidate":"bob","age":41,"address":{"city":"Rome"},"vip":true}',
        "text": '"candidate=alice"',
        "odd": r'{"quote":"a \"b\" = c","name":"Zoë"}',
        "nul": r'{"candidate":"\u0000"}',
        "backslash": r'{"n":1,"path":"\\u0000"}',
    }
    made = {
        name: api_database.submit(type="searched", payload=payload)
        for name, payload in payloads.items()
    }
    api_database.submit(type="searched", payload=payloads["alice"], tenant_id=2)
    found = {
        "candidate=alice": ["alice"],
        "address.city=Rome": ["bob", "alice"],
        "tags.0=new": ["alice"],
        "tags.1=7": ["alice"],
        "age=41": ["bob"],
        "vip=true": ["bob"],
        'quote=a "b" = c': ["odd"],
        "name=Zoë": ["odd"],
        "n=1": ["backslash"],
        "candidate=ALICE": [],
        "candidate=": [],
        "address=Rome": [],
    }
    for asked, names in found.items():
        path = f"/jobs?type=searched&{urlencode({'payload': asked})}"
        assert ids(api, path) == [made[name] for name in names], asked
    assert ids(api, "/jobs?payload=candidate=alice") == [made["alice"]]
    for wrong in ("candidate", "=alice", "a..b=c", ".=x", "a." * 10 + "b=c", "x" * 300 + "=1"):
        answer = api.get(f"/jobs?{urlencode({'payload': wrong})}")
        assert (answer.status, answer.json()["errors"][0]["field"]) == (422, "payload")


@pytest.fixture(scope="module")
def crowd(api_database: DatabaseFixture) -> DatabaseFixture:
    """60,000 jobs of the other tenant, one in a hundred dead, and 5,000 of a third."""
    # In parts: a statement has five seconds, also where there is other work.
    for first in range(1, MANY, PART):
        api_database.execute(PUT_MANY, first, first + PART - 1)
    api_database.execute(
        """
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status)
        SELECT gen_random_uuid(), 3, 'common', 'short', '{}', 'queued'
        FROM generate_series(1, 5000)
        """
    )
    api_database.execute("ANALYZE jobs")
    return api_database


def explain(
    database: DatabaseFixture, wanted: Wanted, attempts: int, before: str | None
) -> tuple[str, int]:
    """The plan of a page and the buffers it touched."""
    with database.engine.connect() as connection:
        plan = plan_of_call(
            database,
            lambda: read_page(connection, wanted, 50, before, attempts=attempts),
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF)",
        ).split("Planning:")[0]
    found = re.search(r"Buffers: shared((?: \w+=\d+)+)", plan)
    assert found is not None
    assert not re.search(r"Seq Scan on (jobs|attempts)", plan), plan
    return plan, sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", found[1]))


@pytest.mark.parametrize(
    ("wanted", "attempts", "index"),
    [
        (Wanted(tenant_id=2), 0, "jobs_of_tenant"),
        (Wanted(tenant_id=2, type="rare"), 0, "jobs_of_tenant"),
        (Wanted(("running",), pool="short", tenant_id=2), 0, "jobs_of_tenant"),
        (Wanted(payload=PayloadField(("a",), "b"), tenant_id=2), 0, "jobs_of_tenant"),
        (Wanted(("dead",), tenant_id=2), 0, "jobs_dead"),
        (Wanted(("dead",), tenant_id=2), MOST_ATTEMPTS, "jobs_dead"),
        (Wanted(("dead",), error_class="TIMEOUT", tenant_id=2), MOST_ATTEMPTS, "jobs_dead"),
    ],
)
def test_deep_page_costs_what_the_first_does(
    crowd: DatabaseFixture, wanted: Wanted, attempts: int, index: str
) -> None:
    plan, first = explain(crowd, wanted, attempts, None)
    deep = f"0190a0b0-0000-7000-8000-{MANY // 2:012x}"
    later_plan, later = explain(crowd, wanted, attempts, deep)
    for text in (plan, later_plan):
        assert f"Index Scan Backward using {index}" in text or (
            f"Index Only Scan Backward using {index}" in text
        ), text
    assert later <= first * 1.5 + 50, later_plan


def test_few_that_match_are_found_through_short_pages(
    api: ApiServer, crowd: DatabaseFixture
) -> None:
    """Listing dead jobs does not scan the tenant's many others."""
    rare = crowd.submit(type="rare")
    crowd.execute(
        "UPDATE jobs SET tenant_id = 1 WHERE tenant_id = 2 AND id < %s",
        f"0190a0b0-0000-7000-8000-{12_000:012x}",
    )
    oldest = crowd.submit(type="rare", id="0190a0b0-0000-7000-8000-000000000000")
    pages = list(walk(api, "/jobs?type=rare&limit=5"))
    assert [entry["id"] for page in pages for entry in page] == [rare, oldest]
    assert 3 <= len(pages) <= 5 and [] in pages
    dead = list(walk(api, "/jobs?type=common&status=dead&limit=500"))
    assert [len(page) for page in dead] == [119]
