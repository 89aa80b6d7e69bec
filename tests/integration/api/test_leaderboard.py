"""``/leaderboard``: order, ties, pages, and the cost of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.api.routes.leaderboard import READ_FIRST_PAGE, READ_PAGE, Cursor
from app.reads.ranks import READ_RANKS, ScoreRank, read_ranks
from tests.support.api_server import ApiServer
from tests.support.database_fixture import DatabaseFixture

MANY, PART = 100_000, 10_000
NEXT = re.compile(r'<(/leaderboard\?[^>]+)>; rel="next"')

#: Scored applications without their jobs: a leaderboard needs no more.
PUT = """
    INSERT INTO applications (id, tenant_id, candidate, role, score, rationale, scored_at)
    SELECT gen_random_uuid(), %s, 'c' || n, %s, score, 'because', now()
    FROM unnest(%s::numeric[]) WITH ORDINALITY AS scored (score, n)
"""
PUT_MANY = """
    INSERT INTO applications (id, tenant_id, candidate, role, score, rationale, scored_at)
    SELECT gen_random_uuid(), 1, 'c' || n, 'crowd', round((random() * 100)::numeric, 2),
           'because ' || md5(n::text), now()
    FROM generate_series(%s::int, %s) AS n
"""


def put(database: DatabaseFixture, role: str, scores: list[float], tenant_id: int = 1) -> None:
    database.execute(PUT, tenant_id, role, scores)


def walk(api: ApiServer, role: str, limit: int) -> Iterator[list[dict[str, Any]]]:
    """The entries, page by page, as a client follows the links, and asks again after a 503: a
    read may take longer than it is allowed to on a busy machine."""
    path = f"/leaderboard?role={role}&limit={limit}"
    while True:
        for _ in range(5):
            answer = api.get(path)
            if answer.status != 503:
                break
        assert answer.status == 200, answer
        yield answer.json()["entries"]
        if "link" not in answer.headers:
            return
        found = NEXT.fullmatch(answer.headers["link"])
        assert found is not None
        path = found[1]


def entries(api: ApiServer, role: str, limit: int = 500) -> list[dict[str, Any]]:
    return [entry for page in walk(api, role, limit) for entry in page]


def test_empty_leaderboard_is_a_leaderboard(api: ApiServer) -> None:
    answer = api.get("/leaderboard?role=nobody")
    assert (answer.status, answer.json()) == (200, {"role": "nobody", "entries": []})
    assert "link" not in answer.headers


def test_best_comes_first_and_unscored_not_at_all(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    put(api_database, "order", [10, 99.5, 50.25])
    api_database.submit_application(role="order")
    found = entries(api, "order")
    assert [entry["score"] for entry in found] == [99.5, 50.25, 10.0]
    assert [entry["rank"] for entry in found] == [1, 2, 3]
    assert set(found[0]) == {"rank", "id", "candidate", "score", "rationale", "scored_at"}


def test_role_and_tenant_each_have_their_own(api: ApiServer, api_database: DatabaseFixture) -> None:
    put(api_database, "mine", [1])
    put(api_database, "mine", [2], tenant_id=2)
    put(api_database, "yours", [3])
    assert [entry["score"] for entry in entries(api, "mine")] == [1.0]
    assert [entry["score"] for entry in entries(api, "yours")] == [3.0]


def test_role_defaults_to_general(api: ApiServer, api_database: DatabaseFixture) -> None:
    put(api_database, "general", [7])
    assert api.get("/leaderboard").json()["role"] == "general"
    assert [e["score"] for e in api.get("/leaderboard").json()["entries"]] == [7.0]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 500])
def test_ties_share_a_rank_and_keep_their_order_on_any_page_size(
    api: ApiServer, api_database: DatabaseFixture, limit: int
) -> None:
    role = f"ties-{limit}"
    put(api_database, role, [90, 80, 80, 80, 70, 70, 60])
    found = entries(api, role, limit)
    assert [entry["rank"] for entry in found] == [1, 2, 2, 2, 5, 5, 7]
    assert found == entries(api, role)
    for score in (80.0, 70.0):
        ids = [entry["id"] for entry in found if entry["score"] == score]
        assert ids == sorted(ids)


def test_rank_of_an_application_is_the_one_on_the_leaderboard(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    for score in (90, 80, 80, 80, 70, 70, 60):
        job_id = api_database.submit_application(role="agree")
        api_database.execute("UPDATE applications SET score = %s WHERE id = %s", score, job_id)
    put(api_database, "agree", [85], tenant_id=2)  # nobody's business
    for entry in entries(api, "agree", limit=2):
        assert api.get(f"/applications/{entry['id']}").json()["rank"] == entry["rank"]


def test_pages_cover_all_that_was_there_once_while_others_are_scored(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    put(api_database, "busy", [n % 10 for n in range(200)])
    before = {entry["id"] for entry in entries(api, "busy")}
    seen: list[str] = []
    for page in walk(api, "busy", 7):
        seen += [entry["id"] for entry in page]
        put(api_database, "busy", [0, 5, 9, 9.99])
    assert len(seen) == len(set(seen))
    assert before <= set(seen)


def test_last_page_has_no_next_even_if_it_is_full(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    put(api_database, "full", [1, 2, 3, 4])
    assert [len(page) for page in walk(api, "full", 2)] == [2, 2]


def test_link_keeps_role_and_limit_whatever_the_role_is_called(
    api: ApiServer, api_database: DatabaseFixture
) -> None:
    put(api_database, 'a&b=c>; rel="x"/ü', [1, 2, 3])
    pages = list(walk(api, "a%26b%3Dc%3E%3B%20rel%3D%22x%22%2F%C3%BC", 2))
    assert [len(page) for page in pages] == [2, 1]


@pytest.fixture(scope="module")
def crowd(api_database: DatabaseFixture) -> DatabaseFixture:
    """100,000 scored applications of one role, about ten to a score; half as many in one tie."""
    # In parts: a statement has five seconds, also where there is other work.
    for first in range(1, MANY, PART):
        api_database.execute(PUT_MANY, first, first + PART - 1)
    for _ in range(0, MANY // 2, PART):
        put(api_database, "tie", [50.0] * PART)
    api_database.execute("ANALYZE applications")
    return api_database


def explain(
    database: DatabaseFixture, sql: str, role: str, cursor: Cursor | None
) -> tuple[str, int]:
    """The plan and the buffers it touched."""
    position = {"score": cursor.score, "id": cursor.id} if cursor else {}
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {sql}",
            {"tenant": 1, "role": role, "limit": 51, **position},
        )
        plan = "\n".join(row[0] for row in rows).split("Planning:")[0]
    found = re.search(r"Buffers: shared((?: \w+=\d+)+)", plan)
    assert found is not None
    return plan, sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", found[1]))


def cursor_at(database: DatabaseFixture, role: str, place: int) -> Cursor:
    (row,) = database.query(
        "SELECT score, id FROM applications WHERE tenant_id = 1 AND role = %s"
        " ORDER BY score DESC, id OFFSET %s LIMIT 1",
        role,
        place - 1,
    )
    return Cursor(score=row.score, id=row.id, rank=1, place=place)


@pytest.mark.parametrize("role", ["crowd", "tie"])
def test_thousandth_page_costs_what_the_first_does(crowd: DatabaseFixture, role: str) -> None:
    plan, first = explain(crowd, READ_FIRST_PAGE, role, None)
    cursor = cursor_at(crowd, role, 50 * 999)
    later_plan, later = explain(crowd, READ_PAGE, role, cursor)
    for text in (plan, later_plan):
        assert "applications_ranking" in text and "Seq Scan" not in text, text
    assert "Incremental Sort" not in plan
    assert later <= first * 1.5 + 10, later_plan


def test_ranks_of_a_group_are_right_and_cost_one_walk_together(crowd: DatabaseFixture) -> None:
    rows = crowd.query(
        """
        SELECT * FROM (
            SELECT tenant_id, role, score, rank() OVER (
                       PARTITION BY tenant_id, role ORDER BY score DESC) AS rank
            FROM applications WHERE score IS NOT NULL
        ) AS ranked
        ORDER BY random() LIMIT 500
        """
    )
    expected = {ScoreRank(row.tenant_id, row.role, row.score): row.rank for row in rows}
    with crowd.engine.connect() as connection:
        assert read_ranks(connection, set(expected)) == expected
        (plan,) = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {READ_RANKS}",
            {
                "tenants": [standing.tenant_id for standing in expected],
                "roles": [standing.role for standing in expected],
                "scores": [standing.score for standing in expected],
            },
        ).one()
    assert walked(plan[0]["Plan"]) <= 2 * MANY


def walked(plan: dict[str, Any]) -> float:
    """Rows that a plan read from the table, over all loops."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if "Relation Name" in plan else 0.0
    return float(own) + sum(walked(inner) for inner in plan.get("Plans", ()))


def test_walk_over_100_000_finds_each_once_in_order(api: ApiServer, crowd: DatabaseFixture) -> None:
    found = entries(api, "crowd", 500)
    assert len({entry["id"] for entry in found}) == len(found) == MANY
    keys = [(-entry["score"], entry["id"]) for entry in found]
    assert keys == sorted(keys)
    ranks = [entry["rank"] for entry in found]
    first_of: dict[float, int] = {}
    for place, entry in enumerate(found, start=1):
        first_of.setdefault(entry["score"], place)
    assert ranks == [first_of[entry["score"]] for entry in found]
