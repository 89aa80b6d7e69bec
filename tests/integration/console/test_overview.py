"""The overview: one sentence, a card for each pool, and charts from samples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from app.reads.type_figures import READ_BINS
from app.scheduler.maintenance.recorder import Recorder
from app.tenants.changes import issue_key
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.pools import POOLS
from models.presence import Presence, announce
from models.tallies import Tallies
from tasks.worker.decide import counts_of
from tasks.worker.outcome import Succeeded
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.http_client import HttpClient, opened
from tests.support.plans import assert_walks, plan_of

DEAD = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT)
SHIFT = "UPDATE pool_samples SET at = at - make_interval(secs => %s)"


@pytest.fixture(scope="module")
def http_client(
    api_database: DatabaseFixture, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HttpClient]:
    with opened(api_database, tmp_path_factory.mktemp("blobs"), anonymous="demo") as app:
        yield HttpClient(app)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    """As it should be: a scheduler leads and reaches the broker, and every pool has a worker."""
    database = emptied(api_database)
    database.leader.broker_seen = True
    database.leader.run_once(0.0)
    for pool, shape in POOLS.items():
        announce(database.engine, Presence(f"w-{pool}", "worker", [pool], slots=shape.slots))
    return database


class Page:
    """What an operator sees."""

    def __init__(self, http_client: HttpClient, database: DatabaseFixture, path: str = "/") -> None:
        key = issue_key(database.engine, None).key
        answer = http_client.call(key, "GET", path)
        assert answer.status_code == 200, answer.text
        self.html = answer.text
        found = re.search(r'class="verdict (\w+)"><strong>.+?</strong> <span>([^<]+)', self.html)
        assert found is not None
        self.level, self.sentence = found[1], unescape(found[2])
        self.others = [
            unescape(one) for one in re.findall(r"<li>([^<]+)</li>", self.part("verdict"))
        ]

    def part(self, name: str) -> str:
        """A live part, up to the next."""
        return self.html.split(f'data-live="{name}"', 1)[1].split("data-live=", 1)[0]

    def card(self, pool: str) -> dict[str, str]:
        """Figures and facts by name, as text."""
        html = self.html.split(f'aria-labelledby="pool-{pool}"', 1)[1].split("</section>", 1)[0]
        pairs = re.findall(r"<dt>([^<]+)</dt>\s*<dd[^>]*>(.*?)</dd>", html, re.DOTALL)
        return {
            name: " ".join(unescape(re.sub(r"<[^>]+>", " ", value)).split())
            for name, value in pairs
        }

    def chart(self, name: str) -> dict[str, Any]:
        found = re.search(rf'id="chart-{name}".*?<script[^>]*>(.*?)</script>', self.html, re.DOTALL)
        assert found is not None
        return dict(json.loads(found[1]))


def record(database: DatabaseFixture, earlier: float = 0.0) -> None:
    """Take a sample; as if those before had been taken so many seconds earlier."""
    database.execute(SHIFT, earlier)
    Recorder(database.engine, database.leader).run_once(0.0)


def test_an_idle_house_is_well_and_says_so_in_one_sentence(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    page = Page(http_client, database)
    assert (page.level, page.others) == ("well", [])
    assert page.sentence == "All is well: workers are ready, no jobs are queued."
    assert "No samples yet" in page.html
    assert page.card("medium")["Slots busy"] == "0 of 10"
    assert page.card("medium")["In per min"] == "–", "nobody has counted"


def test_a_card_tells_depth_age_rates_slots_workers_and_dead_letters(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute("UPDATE processes SET busy = 9 WHERE name = 'w-medium'")
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, oldest_seconds)"
        " VALUES ('medium', 3, '', 7)"
    )
    record(database)
    database.settle(database.start().ref, DEAD)
    database.start()
    waiting = [database.submit() for _ in range(3)]
    database.execute(
        "UPDATE jobs SET created_at = now() - interval '8 s' WHERE id = %s", waiting[0]
    )
    record(database, earlier=30.0)
    page = Page(http_client, database)
    card = page.card("medium")
    assert (card["Waiting"], card["In flight"], card["Dead letters"]) == ("3", "1", "1")
    assert card["Slots busy"] == "9 of 10" and card["Workers"] == "1 , 3 suggested"
    # 5 came and one ended in 30 or 35 seconds.
    assert 8 <= float(card["In per min"]) <= 10 and 1.7 <= float(card["Out per min"]) <= 2
    assert card["Objective"] == "5.0 s missed"
    since = re.search(r'datetime="([^"]+)"', page.part("pools").split("pool-medium", 1)[1])
    assert since is not None
    age = datetime.now(UTC) - datetime.fromisoformat(since[1])
    assert timedelta(seconds=8) <= age < timedelta(seconds=60)
    assert 'href="/console/jobs?pool=medium&amp;status=queued"' in page.html
    assert (
        page.level == "watch"
        and "Jobs in medium wait longer than their objective of 5 s" in page.sentence
    )
    assert any("1 job died in medium in the last five minutes" in other for other in page.others)
    totals = page.part("totals")
    assert re.search(r"<dt>Submitted</dt><dd>5</dd>.*<dt>Dead</dt><dd>1</dd>", totals, re.DOTALL)


@pytest.mark.parametrize(
    ("sql", "level", "sentence"),
    [
        (
            "UPDATE leaders SET expires_at = now() - interval '1 s'",
            "trouble",
            "No leading scheduler: jobs are accepted but not dispatched.",
        ),
        (
            "UPDATE leaders SET broker_seen_at = now() - interval '20 s'",
            "trouble",
            "The broker is not responding: jobs are accepted and wait for it.",
        ),
        (
            "DELETE FROM processes WHERE name = 'w-long'",
            "watch",
            "No worker serves long; no jobs are queued there yet.",
        ),
        (
            "INSERT INTO circuits VALUES ('claude', 'open', '2030-01-31T12:00:00Z')",
            "watch",
            "The circuit is open for claude (until 12:01:00 UTC): jobs that need it wait.",
        ),
        (
            "INSERT INTO circuits (dependency, state, reason)"
            " VALUES ('claude', 'half_open', 'the API key was refused (401)')",
            "trouble",
            "Calls to claude fail for everybody: the API key was refused (401); jobs that need it"
            " wait.",
        ),
        (
            "INSERT INTO quotas (dependency, closed_until)"
            " VALUES ('claude', now() + interval '9 s')",
            "watch",
            "The quota of claude is exhausted: jobs that need it wait.",
        ),
        (
            "INSERT INTO verdicts (kind, name) VALUES ('quarantine', '<script>alert(1)</script>')",
            "watch",
            "Quarantined with fewer attempts, as most runs fail: <script>alert(1)</script>.",
        ),
        (
            "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', 1, 'medium')",
            "watch",
            "1 tenant is throttled in medium, after lost workers.",
        ),
        (
            "INSERT INTO verdicts (kind, tenant_id, since) VALUES ('spike', 1, now()),"
            " ('spike', 2, now() - interval '2 hours')",
            "watch",
            "1 tenant is running far more jobs than usual.",
        ),
    ],
)
def test_what_is_not_well_is_the_sentence(
    http_client: HttpClient, database: DatabaseFixture, sql: str, level: str, sentence: str
) -> None:
    database.execute(sql)
    page = Page(http_client, database)
    assert (page.level, page.sentence, page.others) == (level, sentence, [])
    assert "<script>alert" not in page.html


def test_a_relief_in_the_schedulers_place_is_told(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.execute("UPDATE leaders SET expires_at = now() - interval '2 minutes'")
    database.execute(
        "INSERT INTO leaders (role, holder, epoch, expires_at, broker_seen_at)"
        " VALUES ('relief', 'api', 1, now() + interval '5 s', now())"
    )
    page = Page(http_client, database)
    assert page.level == "trouble" and "an API process dispatches in its place" in page.sentence
    assert page.others == [], "and the broker is reached"


def test_what_a_limit_holds_back_is_old_but_not_late(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.submit()
    database.execute("UPDATE jobs SET created_at = now() - interval '1 hour'")
    database.execute("INSERT INTO desired_workers (pool, workers, reason) VALUES ('medium', 1, '')")
    page = Page(http_client, database)
    assert (
        page.level == "well" and "delayed by a limit" in page.card("medium")["Oldest job waiting"]
    )
    database.execute("UPDATE desired_workers SET updated_at = now() - interval '1 minute'")
    late = Page(http_client, database)
    assert late.level == "trouble" and "far longer" in late.sentence, "nobody knows better"


def test_what_is_due_and_cannot_join_the_line_is_late(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    database.execute("INSERT INTO desired_workers (pool, workers, reason) VALUES ('medium', 1, '')")
    assert Page(http_client, database).level == "well"
    database.execute("UPDATE jobs SET execute_at = now() - interval '20 s'")
    page = Page(http_client, database)
    assert page.level == "watch" and "Jobs in medium wait longer" in page.sentence


def test_charts_switch_between_fifteen_minutes_and_a_day(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    record(database)
    database.submit()
    record(database, earlier=300.0)
    short, day = Page(http_client, database), Page(http_client, database, "/?window=24h")
    odd = Page(http_client, database, "/?window=%3Cb%3E")
    assert 'href="/?window=15m" aria-current="page"' in short.html
    assert 'href="/?window=24h" aria-current="page"' in day.html
    assert odd.part("charts") == short.part("charts")
    (depth,) = [one for one in short.chart("depth")["series"] if one["name"] == "medium"]
    assert depth["y"] == [0, None, 1], "nobody sampled for five minutes: a gap"
    (came,) = [one for one in day.chart("rates")["series"] if one["name"] == "medium in"]
    assert came["y"] == [None, 0.2], "one job in five minutes"
    assert [one["name"] for one in day.chart("oldest")["series"]] == list(POOLS)


def test_only_operators_see_it(http_client: HttpClient, database: DatabaseFixture) -> None:
    tenant = issue_key(database.engine, "demo").key
    assert http_client.call(tenant, "GET", "/").status_code == 403
    assert http_client.call(None, "GET", "/").status_code == 401
    browser = http_client.open("GET", "/?window=24h", {"Accept": "text/html"})
    assert browser.status_code == 303
    assert browser.headers["Location"] == "/console/sign-in?next=/%3Fwindow%3D24h"


def test_waits_and_runs_of_each_type_are_told_by_percentile(
    http_client: HttpClient, database: DatabaseFixture
) -> None:
    assert "No job has run in the last hour." in Page(http_client, database).part("types")
    claim = database.start(type="sleep")
    counted = []
    for seconds, runs in ((0.5, 98), (20.0, 2)):
        done = Succeeded("null")
        counts = counts_of(
            claim, database.types["sleep"], done, Ending(JobStatus.SUCCEEDED), seconds, 4.0
        )
        counted += runs * counts.counts
    later = claim._replace(attempt=1)
    again = counts_of(later, None, Succeeded("null"), Ending(JobStatus.SUCCEEDED), 0.5).counts
    tallies = Tallies()
    tallies.add_all([*counted, *again])
    tallies.write(database.engine)
    database.execute("""
        INSERT INTO tallies (kind, name, bucket, total, amount)
        VALUES ('run', 'short:3:<i>old</i>', now() - interval '61 minutes', 9, 9)""")
    database.execute("""
        INSERT INTO tallies (kind, name, bucket, total, amount)
        SELECT 'dependency', 'claude', now() - n * interval '10 s', 1, 0
        FROM generate_series(1, 5000) AS n""")
    database.execute("ANALYZE tallies")
    shown = Page(http_client, database).part("types")
    cells = re.findall(r'<td class="number">([^<]*)</td>', shown)
    assert cells == ["101", "4.0\u202fs", "4.0\u202fs", "0.5\u202fs", "20\u202fs"]
    assert "old" not in shown
    assert_walks(plan_of(database, READ_BINS), "tallies_pkey")
