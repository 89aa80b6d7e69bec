"""``/console/jobs``: every job is found by what is known of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from app.console.jobs import order as order_module
from app.console.jobs import page as page_module
from app.reads import search as searching
from app.reads.search import Wanted, id_before, search
from models.jobs.ids import BELOW_ALL, new_id
from tests.integration.api.test_contract import bring
from tests.support.browsing import Browser, ids_in, links
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

LIST = "/console/jobs"
#: Jobs of every kind: an hour of them, one each ten seconds, as one statement.
FILL = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, created_at,
                      execute_at, finished_at, error_class, error_message)
    SELECT (lpad(to_hex((extract(epoch FROM made) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
           1 + n / 8 %% 2, (ARRAY['echo', 'sleep', 'fail'])[1 + n %% 3],
           (ARRAY['short', 'medium'])[1 + n / 16 %% 2],
           '{}', status::job_status, 1, made, made + interval '1 hour',
           CASE WHEN status IN ('succeeded', 'dead', 'cancelled', 'expired') THEN made END,
           CASE status WHEN 'dead' THEN (ARRAY['TIMEOUT', 'APP_ERROR'])[1 + n / 32 %% 2] END,
           CASE status WHEN 'dead' THEN 'Boom number ' || n END
    FROM (SELECT n, timestamptz '2026-03-01 12:00Z' + n * interval '10 seconds' AS made,
                 (ARRAY['scheduled', 'queued', 'dispatched', 'running', 'succeeded', 'dead',
                        'cancelled', 'expired'])[1 + n %% 8] AS status
          FROM generate_series(0, 359) AS n) AS given
"""
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    """Tests that only look find what the one before has left."""
    if api_database.query("SELECT count(*) FROM jobs")[0][0] != 360:
        emptied(api_database).execute(FILL)
    return api_database


# What a search finds.

WANTED = [
    Wanted(),
    *(Wanted(statuses=(status,)) for status in ("queued", "scheduled", "running", "dead")),
    Wanted(statuses=("scheduled", "queued", "dispatched", "running")),
    Wanted(statuses=("dead", "cancelled")),
    Wanted(statuses=("dead",), tenant_id=2, type="fail"),
    Wanted(statuses=("dead",), tenant_id=2),
    Wanted(statuses=("running",), tenant_id=1, pool="medium"),
    Wanted(tenant_id=1, type="echo"),
    Wanted(type="echo", pool="short"),
    Wanted(error_class="TIMEOUT"),
    Wanted(text="bOOM number 1"),
    Wanted(text="app_err", since=START + timedelta(minutes=10)),
    Wanted(text="100%_"),
    Wanted(since=START + timedelta(seconds=100), until=START + timedelta(seconds=300)),
    Wanted(tenant_id=2, statuses=("queued",), until=START + timedelta(minutes=20)),
]


def expected(database: DatabaseFixture, wanted: Wanted) -> list[str]:
    """The same by a look at every row."""
    rows = database.query(
        "SELECT id::text, status::text, type, pool, error_class, error_message, tenant_id,"
        " created_at FROM jobs ORDER BY id DESC"
    )
    return [
        row.id
        for row in rows
        if (not wanted.statuses or row.status in wanted.statuses)
        and wanted.type in (None, row.type)
        and wanted.pool in (None, row.pool)
        and wanted.error_class in (None, row.error_class)
        and wanted.tenant_id in (None, row.tenant_id)
        and (wanted.text or "").lower() in f"{row.error_class} {row.error_message}".lower()
        and (wanted.since is None or row.created_at >= wanted.since)
        and (wanted.until is None or row.created_at < wanted.until)
    ]


def walk_through(connection: Connection, wanted: Wanted, *, newer: bool = False) -> list[str]:
    """All pages of 30, whatever time each is given."""
    found: list[str] = []
    place: str | None = id_before(START - timedelta(days=1)) if newer else None
    for _ in range(200):
        where = {"after" if newer else "before": place}
        page = search(connection, wanted, 30, seconds=0.0, **where)
        found = [*page.ids, *found] if newer else [*found, *page.ids]
        place = page.cursor
        if place is None:
            return found
    raise AssertionError("it has no end")


@pytest.mark.parametrize("few", [20_000, 0], ids=["by index", "by walking"])
def test_whatever_is_asked_every_job_that_passes_is_found_once_and_in_order(
    filled: DatabaseFixture, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(searching, "FEW", few)
    monkeypatch.setattr(searching, "FIRST_STEP", 25)
    with filled.engine.connect() as connection:
        for wanted in WANTED:
            right = expected(filled, wanted)
            assert right or wanted.text == "100%_"
            assert walk_through(connection, wanted) == right, wanted
            assert walk_through(connection, wanted, newer=True) == right, wanted


def test_a_search_that_runs_out_of_time_says_how_far_it_came(
    console: Browser, filled: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "FIRST_STEP", 100)
    hasty = lambda *args, **named: search(*args, **named, seconds=0.0)  # noqa: E731
    monkeypatch.setattr(order_module, "search", hasty)
    page = console.page(f"{LIST}?status=expired&text=nothing")
    assert "Searched 100 jobs" in page and "found none" in page
    assert 'data-live="' not in page  # nobody repeats such a walk every few seconds
    (further,) = links(page, "Continue with older jobs")
    seen = 1
    while going_on := links(console.page(further), "Continue with older jobs"):
        (further,) = going_on
        seen += 1
    assert seen == 3
    assert "No job matches" in console.page(further)


def test_ids_are_bounded_by_the_time_they_were_made() -> None:
    before, made, after = datetime.now(UTC), new_id(), datetime.now(UTC)
    assert id_before(before) < made < id_before(after + timedelta(milliseconds=1))
    assert id_before(datetime(1960, 1, 1, tzinfo=UTC)) == BELOW_ALL


# The page.


def test_pages_lead_to_older_ones_and_back(console: Browser, filled: DatabaseFixture) -> None:
    first = console.page(LIST)
    everything = expected(filled, Wanted())
    assert ids_in(first) == everything[:50]
    assert 'data-live="jobs"' in first and not links(first, "Newer")
    (older,) = links(first, "Older")
    second = console.page(older)
    assert ids_in(second) == everything[50:100]
    assert 'data-live="' not in second
    (newer,) = links(second, "Newer")
    assert ids_in(console.page(newer)) == everything[:50]
    assert links(second, "Newest") == [LIST]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (
            "status=dead&type=fail&pool=short",
            {"statuses": ("dead",), "type": "fail", "pool": "short"},
        ),
        ("tenant=other&status=waiting", {"statuses": ("scheduled", "queued"), "tenant_id": 2}),
        ("text=BOOM+number+5", {"text": "boom number 5"}),
        (
            "since=2026-03-01T12:01&until=2026-03-01T13:05:00%2B01:00",
            {"since": START + timedelta(minutes=1), "until": START + timedelta(minutes=5)},
        ),
        ("error_class=TIMEOUT&status=", {"error_class": "TIMEOUT"}),
    ],
)
def test_a_filter_in_the_address_lets_through_what_it_says(
    console: Browser, filled: DatabaseFixture, query: str, wanted: dict[str, object]
) -> None:
    found = ids_in(console.page(f"{LIST}?{query}"))
    right = expected(filled, Wanted(**wanted))  # type: ignore[arg-type]
    assert found == right[:50] and found


def test_states_are_counted_and_lead_to_their_jobs(
    console: Browser, filled: DatabaseFixture
) -> None:
    page = console.page(f"{LIST}?tenant=demo")
    chips = dict(re.findall(r">(\w+) <b>([\d\u202f+]+)</b></a>", page))
    states = ("scheduled", "queued", "dispatched", "running", "succeeded", "dead", "cancelled")
    assert chips == dict.fromkeys((*states, "expired"), "23")
    assert "/console/jobs?tenant=demo&amp;status=queued" in page


def test_the_count_of_dead_letters_is_of_those_that_are_left(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [database.submit() for _ in range(4)]
    for job_id in ids:
        bring(database, job_id, "dead")
    console.post(f"{LIST}/{ids[0]}/replay", {})
    assert "dead <b>3</b>" in console.page(LIST)
    monkeypatch.setattr(page_module, "DEAD_COUNTED", 2)
    assert "dead <b>2+</b>" in console.page(LIST)


def test_what_a_job_died_of_is_shown_as_text(console: Browser, database: DatabaseFixture) -> None:
    job_id = database.submit(type="<b>bold</b>")
    database.execute(
        "UPDATE jobs SET error_class = 'APP_ERROR', error_message = '<script>alert(1)</script>\"'"
        " WHERE id = %s",
        job_id,
    )
    page = console.page(LIST)
    assert "<script>alert" not in page and "<b>bold" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in "".join(console.parts(LIST).values())


def test_a_slip_in_the_filter_is_told_beside_its_field(
    console: Browser, filled: DatabaseFixture
) -> None:
    page = console.page(f"{LIST}?since=yesterday&status=asleep&type=%22%3E%3Cimg%3E")
    assert "must be a time" in page and "must be one of scheduled" in page
    assert 'value="yesterday"' in page and "<img>" not in page
    assert not ids_in(page)
    assert "There is no tenant named nobody" in console.page(f"{LIST}?tenant=nobody")
    assert console.get(f"{LIST}?before=here").status_code == 422


def test_an_id_jumps_to_its_job(console: Browser) -> None:
    job_id = new_id()
    answer = console.get(f"{LIST}/find?id=+{job_id.upper()}+")
    assert (answer.status_code, answer.location) == (303, f"{LIST}/{job_id}")
    assert "Not a job id" in console.notice(console.get(f"{LIST}/find?id=17"))


def test_an_empty_house_says_how_to_submit(console: Browser, database: DatabaseFixture) -> None:
    assert "There are no jobs yet" in console.page(LIST)
    assert "No job matches" in console.page(f"{LIST}?status=dead")


def test_a_list_is_the_same_while_nothing_happens(
    console: Browser, filled: DatabaseFixture
) -> None:
    looks = [console.parts(LIST, {"status": "queued"}) for _ in range(2)]
    assert looks[0] == looks[1]
    assert set(looks[0]) == {"states", "jobs"}
