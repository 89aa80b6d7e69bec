"""``/console/dead-letters``: what failed for good, and the way back for all of a kind."""

from __future__ import annotations

import html
import re

import pytest

from app.console.jobs import dead_letters
from models.jobs.ids import new_id
from tests.support.browsing import SCRIPT, Browser, ids_in, links
from tests.support.database_fixture import DatabaseFixture

PAGE = "/console/dead-letters"
MAKE_DEAD = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, finished_at,
                      error_class, error_message)
    SELECT id, %s, %s, 'short', '{}', 'dead', 1, now() - n * interval '1 hour',
           %s, %s
    FROM unnest(%s::uuid[]) WITH ORDINALITY AS given (id, n) RETURNING id::text
"""


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of the test before, if the machine was slow, is not this one's."""
    monkeypatch.setattr(dead_letters, "_cached", {})


def make_dead(
    database: DatabaseFixture, kind: str, error: str | None, jobs: int, tenant: int = 1
) -> list[str]:
    message = f"{error} of {kind} <i>"
    ids = [new_id() for _ in range(jobs)]
    return [row[0] for row in database.query(MAKE_DEAD, tenant, kind, error, message, ids)]


def groups_in(page: str) -> list[tuple[str, str, str]]:
    rows = re.findall(
        r'<th scope="row"><a[^>]*>([^<]*)</a></th>\s*<td>([^<]*)</td>'
        r'\s*<td class="number"><a[^>]*>([^<]*)<',
        page,
    )
    return [(html.unescape(kind), error, jobs) for kind, error, jobs in rows]


def test_dead_letters_are_grouped_by_what_they_died_of(
    console: Browser, database: DatabaseFixture
) -> None:
    make_dead(database, "fail", "TIMEOUT", 3)
    make_dead(database, "fail", "TIMEOUT", 2, tenant=2)
    make_dead(database, "fail", "POISON", 1)
    make_dead(database, "<u>", None, 2)
    page = console.page(PAGE)
    assert groups_in(page) == [
        ("fail", "TIMEOUT", "5"),
        ("<u>", "none", "2"),
        ("fail", "POISON", "1"),
    ]
    assert "<b>8</b> dead letters" in page
    assert "TIMEOUT of fail &lt;i&gt;" in page and "<i>" not in page and "<u>" not in page
    assert groups_in(console.page(f"{PAGE}?tenant=other")) == [("fail", "TIMEOUT", "2")]
    looks = [console.parts(PAGE) for _ in range(2)]
    assert looks[0] == looks[1]


def test_a_group_leads_to_its_jobs(console: Browser, database: DatabaseFixture) -> None:
    nameless = make_dead(database, "fail", None, 2)
    make_dead(database, "fail", "POISON", 1)
    (target,) = links(console.page(PAGE), "2")
    assert sorted(ids_in(console.page(target))) == sorted(nameless)


@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_group_is_counted_and_replayed_and_nothing_else_is(
    console: Browser, database: DatabaseFixture, tenant: str
) -> None:
    mine = make_dead(database, "fail", "TIMEOUT", 3)
    others = make_dead(database, "fail", "TIMEOUT", 2, tenant=2)
    rest = make_dead(database, "fail", "POISON", 1) + make_dead(database, "echo", "TIMEOUT", 1)
    page = console.page(f"{PAGE}?tenant={tenant}")
    question = links(page, "Replay")[0]
    count = 2 if tenant else 5
    asked = console.page(question)
    assert f"{count} dead letters match." in asked
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))
    answer = console.post("/console/jobs/all", fields, SCRIPT)
    counts = {"done": count, "asked": 0, "later": 0, "skipped": 0}
    assert answer.json == {**counts, "more": False, "cursor": None}
    back = {row.id for row in database.query("SELECT id::text FROM jobs WHERE status = 'queued'")}
    assert back == set(others if tenant else mine + others)
    assert not back & set(rest)
    assert not database.miscounted()
    assert [error for _, error, _ in groups_in(console.page(f"{PAGE}?tenant=other"))] == []


def test_without_dead_letters_the_page_says_what_would_be_here(
    console: Browser, database: DatabaseFixture
) -> None:
    assert "No dead letters" in console.page(PAGE)
    assert "no tenant named nobody" in console.page(f"{PAGE}?tenant=nobody")


def test_more_than_are_counted_are_said_to_be_more(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(database, "fail", "TIMEOUT", 4)
    monkeypatch.setattr(dead_letters, "COUNTED", 3)
    page = console.page(PAGE)
    assert "More than <b>3</b>" in page and "groups may be larger" in page


def test_a_look_that_took_long_is_kept_and_says_so(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(database, "fail", "TIMEOUT", 1)
    ticks = iter([0.0, 1.0, 1.0, 50.0, 102.0, 102.0, 102.0])  # the first look takes a second
    with database.engine.connect() as connection:
        first = dead_letters.read_groups(connection, None, lambda: next(ticks))
        make_dead(database, "fail", "TIMEOUT", 1)
        kept = dead_letters.read_groups(connection, None, lambda: next(ticks))
        fresh = dead_letters.read_groups(connection, None, lambda: next(ticks))
    assert first is kept and first.counted_at is not None and first.total == 1
    assert fresh.total == 2 and fresh.counted_at is None


def test_that_there_are_none_is_not_kept(console: Browser, database: DatabaseFixture) -> None:
    """An empty page shows no time of counting, so it must not be an old one."""
    ticks = iter([0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    with database.engine.connect() as connection:
        assert not dead_letters.read_groups(connection, None, lambda: next(ticks)).groups
        make_dead(database, "fail", "TIMEOUT", 1)
        assert dead_letters.read_groups(connection, None, lambda: next(ticks)).total == 1


def test_a_replay_in_progress_is_shown_and_can_be_cancelled(
    console: Browser, database: DatabaseFixture
) -> None:
    ids = make_dead(database, "fail", "TIMEOUT", 40)
    database.execute("INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (1, 'short', 10)")
    fields = {"action": "replay", "status": "dead", "type": "fail"}
    answer = console.post("/console/jobs/all", fields, SCRIPT)
    assert answer.json == {"done": 0, "asked": 0, "later": 40, "skipped": 0} | {
        "more": False,
        "cursor": None,
    }
    database.execute("UPDATE replays SET done = 10, reason = 'TENANT_QUEUE_DEPTH_EXCEEDED'")
    page = console.page(PAGE)
    assert '<progress max="40" value="10"' in page and "queue depth" in page
    assert 'value="10"' not in console.page(f"{PAGE}?tenant=other")
    one = console.post(f"/console/jobs/{ids[0]}/replay", {})
    assert "will be queued again once the limits" not in console.notice(one)
    database.execute("UPDATE tenant_limits SET depth = 0")
    one = console.post(f"/console/jobs/{ids[1]}/replay", {})
    assert "will be queued again once the limits" in console.notice(one)
    for path in re.findall(r'action="(/console/replays/[^"]*/cancel)"', console.page(PAGE)):
        assert console.notice(console.post(path, {})) == "The replay is cancelled."
    assert "Replays in progress" not in console.page(PAGE)
    rows = database.query("SELECT DISTINCT state FROM replays")
    assert [row.state for row in rows] == ["cancelled"]
