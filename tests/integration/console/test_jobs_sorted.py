"""The list of jobs sorted by a column: every job once, in order, page by page, along an index."""

from __future__ import annotations

import base64
import html
import re
from typing import Any

import pytest

from app.console.jobs import order as order_module
from app.reads import ordered
from app.reads.ordered import (
    OrderedPage,
    OrderedPlace,
    ended_statement,
    find_ordered,
    orders_of,
    parse_ordered,
    sorted_statement,
)
from app.reads.search import Wanted
from models.jobs.ids import new_id
from tests.integration.console.test_jobs_plans import plan_of_select
from tests.support.browsing import Browser, ids_in, text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import assert_walks

LIST = "/console/jobs"
#: Seconds from due to start and from start to end differ for each job; some never ran.
FILL = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, attempt, created_at,
                      execute_at, started_at, finished_at)
    SELECT gen_random_uuid(), 1 + n %% 2, (ARRAY['echo', 'sleep', 'fail'])[1 + n %% 3], 'medium',
           '{}', status::job_status, 1, n %% 4, made, made - interval '1 s',
           CASE WHEN n %% 5 > 0 AND status NOT IN ('queued', 'scheduled')
                THEN made + n * 37 %% 101 * interval '1 s' END,
           CASE WHEN status IN ('succeeded', 'dead')
                THEN made + interval '200 s' + n * 53 %% 97 * interval '1 s' END
    FROM (SELECT n, now() - n * interval '10 minutes' AS made,
                 (ARRAY['queued', 'running', 'succeeded', 'dead', 'scheduled'])[1 + n %% 5 %% 5]
                     AS status
          FROM generate_series(1, 120) AS n) AS given
"""
KEYS = """
    SELECT id::text, status::text, tenant_id, type, attempt AS attempts, ended_xid::text,
           extract(epoch FROM CASE
               WHEN status IN ('queued', 'dispatched', 'scheduled') THEN now() - created_at
               WHEN started_at >= created_at THEN started_at - created_at END)::float8 AS wait,
           extract(epoch FROM CASE
               WHEN status = 'running' THEN now() - started_at
               WHEN finished_at IS NOT NULL THEN finished_at - started_at END)::float8 AS duration,
           extract(epoch FROM finished_at)::float8 AS ended
    FROM jobs
"""


@pytest.fixture(scope="module")
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    emptied(api_database).execute(FILL)
    # In several transactions, so that they ended one after the other.
    for (job_id,) in api_database.query("SELECT id FROM jobs WHERE status = 'queued' LIMIT 20"):
        api_database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", job_id)
    return api_database


def pages(browser: Browser, path: str) -> list[str]:
    """The jobs of all pages, in the order they are shown."""
    found: list[str] = []
    following: str | None = path
    while following:
        page = browser.page(following)
        found += ids_in(page)
        link = re.search(r'rel="next" href="([^"]*)"', page) or re.search(
            r'href="([^"]*)">Continue', page
        )
        following = html.unescape(link[1]) if link else None
    return found


@pytest.mark.parametrize("sort", ["wait", "-wait", "duration", "-duration", "attempts", "-ended"])
@pytest.mark.parametrize("status", ["live", "dead", "running"])
def test_states_of_few_jobs_are_sorted_by_any_column(
    operator: Browser,
    filled: DatabaseFixture,
    monkeypatch: pytest.MonkeyPatch,
    sort: str,
    status: str,
) -> None:
    monkeypatch.setattr(order_module, "PAGE", 7)
    wanted = order_module.JobFilter and status
    states = {"live": {"queued", "running", "scheduled"}}.get(wanted, {status})
    rows = {row.id: row for row in filled.query(KEYS) if row.status in states}
    shown = pages(operator, f"{LIST}?status={status}&sort={sort}")
    assert sorted(shown) == sorted(rows), "each once"
    name = sort.removeprefix("-")
    keys = [getattr(rows[one], name) for one in shown]
    known = [-1e15 if key is None else round(float(key)) for key in keys]
    assert known == sorted(known, reverse=sort.startswith("-"))


@pytest.mark.parametrize("sort", ["ended", "-ended"])
@pytest.mark.parametrize("narrow", ["", "&type=echo", "&status=succeeded"])
def test_ended_jobs_of_a_tenant_are_walked_in_the_order_they_ended(
    operator: Browser,
    filled: DatabaseFixture,
    monkeypatch: pytest.MonkeyPatch,
    sort: str,
    narrow: str,
) -> None:
    monkeypatch.setattr(order_module, "PAGE", 5)
    monkeypatch.setattr(
        ordered, "SCAN_ROWS", 9
    )  # some pages come to their end before they are full
    rows = [row for row in filled.query(KEYS) if row.tenant_id == 2 and row.ended_xid]
    if narrow:
        field, value = narrow[1:].split("=")
        rows = [row for row in rows if getattr(row, field) == value]
    in_order = sorted(
        rows, key=lambda row: (int(row.ended_xid), row.id), reverse=sort.startswith("-")
    )
    shown = pages(operator, f"{LIST}?tenant=other&sort={sort}{narrow}")
    assert shown == [row.id for row in in_order]


def test_a_place_from_the_other_way_of_reading_is_the_beginning(
    filled: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While someone turns the pages, so many jobs die that they are no longer sorted as a whole."""
    filled.execute("UPDATE jobs SET ended_xid = pg_current_xact_id() WHERE status = 'dead'")
    wanted = Wanted(tenant_id=1, statuses=("dead", "running"))
    with filled.engine.connect() as connection:

        def page(after: OrderedPlace | None) -> OrderedPage:
            again = None if after is None else parse_ordered(str(after))
            return find_ordered(connection, wanted, 3, "ended", descending=True, after=again)

        sorted_whole = page(None)
        assert page(sorted_whole.cursor).ids != sorted_whole.ids
        monkeypatch.setattr(ordered, "few_sources", lambda *_: ())
        walked = page(sorted_whole.cursor)
        assert walked.ids == page(None).ids
        assert page(walked.cursor).ids != walked.ids
        monkeypatch.undo()
        assert page(walked.cursor).ids == sorted_whole.ids


def test_all_jobs_are_listed_from_the_oldest_too(
    operator: Browser, filled: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "PAGE", 50)
    every = sorted(row.id for row in filled.query("SELECT id::text FROM jobs"))
    assert pages(operator, f"{LIST}?sort=submitted") == every
    assert pages(operator, LIST) == every[::-1]
    page = operator.page(f"{LIST}?sort=submitted")
    assert 'aria-sort="ascending"><a class="sort" href="/console/jobs?sort=-submitted"' in page
    second = re.search(r'rel="next" href="([^"]*)"', page)
    assert second
    back = re.search(r'rel="prev" href="([^"]*)"', operator.page(html.unescape(second[1])))
    assert back and ids_in(operator.page(html.unescape(back[1]))) == every[:50]


def test_only_what_is_cheap_is_offered(operator: Browser, filled: DatabaseFixture) -> None:
    def offered(query: str) -> set[str]:
        return set(
            re.findall(r'class="sort" href="[^"]*sort=-?(\w+)"', operator.page(LIST + query))
        )

    assert offered("") == {"submitted"}
    assert offered("?tenant=demo") == {"submitted", "ended"}
    assert offered("?status=running") == {"submitted", "wait", "duration", "attempts", "ended"}
    text = operator.text(f"{LIST}?sort=-wait")
    assert "Newest first: these jobs cannot be sorted by wait." in text
    assert operator.text(f"{LIST}?sort=nonsense") == operator.text(LIST)


def test_any_number_is_a_place(operator: Browser) -> None:
    text = f"2026-01-01T00:00:00+00:00 1e-400 {new_id()}"
    place = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    assert operator.get(f"{LIST}?status=dead&sort=wait&behind={place}").status_code == 200


@pytest.mark.parametrize("place", ["x", "bm93IDEgMg", "MjAzMC0wMS0wMSAxIGE", "%00"])
def test_a_place_that_was_made_up_is_refused(operator: Browser, place: str) -> None:
    answer = operator.get(f"{LIST}?status=running&sort=wait&behind={place}")
    assert answer.status_code == 422


def test_wait_and_duration_are_shown(operator: Browser, database: DatabaseFixture) -> None:
    database.execute("""
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, created_at, execute_at,
                          started_at, finished_at)
        VALUES (gen_random_uuid(), 1, 'done', 'medium', '{}', 'succeeded', 1, '2030-01-31T12:00Z',
                '2030-01-31T12:01Z', '2030-01-31T12:01:07Z', '2030-01-31T12:01:09.500Z'),
               (gen_random_uuid(), 1, 'runs', 'medium', '{}', 'running', 1, '2030-01-31T12:00Z',
                NULL, '2030-01-31T12:00:03Z', NULL),
               (gen_random_uuid(), 1, 'waits', 'medium', '{}', 'queued', 0, '2030-01-31T12:00Z',
                NULL, NULL, NULL)""")
    for path in (LIST, "/tenant"):
        page = (operator if path == LIST else Browser(operator.app, key_of(database))).page(path)
        rows = {kind: re.search(rf"<tr>(?:(?!</tr>).)*>{kind}<.*?</tr>", page, re.DOTALL)
                for kind in ("done", "runs", "waits")}  # fmt: skip
        done, runs, waits = (text_of(row[0]) for row in rows.values() if row)
        assert "7.0 s 2.5 s" in done
        assert "3.0 s 2030-01-31 12:00:03 UTC –" in runs
        assert "2030-01-31 12:00:00 UTC 2030-01-31 12:00:00 UTC – –" in waits
    assert 'datetime="2030-01-31T12:00:03.000Z" title="2030-01-31 12:00:03 UTC" data-age' in page


def key_of(database: DatabaseFixture) -> str:
    from app.tenants.changes import issue_key

    return issue_key(database.engine, "demo").key


def test_sorting_reads_indexes_alone(api_database: DatabaseFixture) -> None:
    from tests.integration.console.test_jobs_plans import FILL as MANY

    emptied(api_database)
    for sql in MANY:
        api_database.execute(sql)
    asked: dict[str, Any] = {"as_of": "2030-01-31T12:00Z", "tenant": 7, "key": "5", "id": None}
    asked["id"] = "ffffffff-ffff-ffff-ffff-ffffffffffff"
    for continued in (False, True):
        for descending in (False, True):
            statement = ended_statement((), True, descending, continued)
            plan = plan_of_select(api_database, statement, **asked)
            assert_walks(plan, "jobs_ended")
            states = ("dispatched", "running")
            statement = sorted_statement((states,), "wait", (), False, descending, continued)
            plan = plan_of_select(api_database, statement, **asked)
            assert_walks(plan, "jobs_in_flight")


def test_an_order_that_is_not_offered_is_never_searched(filled: DatabaseFixture) -> None:
    with filled.engine.connect() as connection:
        assert not orders_of(connection, Wanted())
        assert orders_of(connection, Wanted(tenant_id=1)) == {"ended"}
        page = find_ordered(
            connection, Wanted(tenant_id=999), 5, "ended", descending=True, after=None
        )
        assert (page.ids, page.cursor, page.cut) == ([], None, False)
