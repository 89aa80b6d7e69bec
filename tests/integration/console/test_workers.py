"""The page of workers: who is there, what each runs, and how one is drained."""

from __future__ import annotations

import re
from dataclasses import replace

from app.console.workers.page import SHOWN_EACH
from app.tenants.changes import issue_key
from models.presence import Presence, announce
from tests.support.browsing import Browser
from tests.support.database_fixture import DatabaseFixture

PAGE = "/console/workers"


def row_of(operator: Browser, worker: str) -> str:
    """A worker's row of the table, as markup."""
    found = re.search(
        rf'<tr data-worker="{re.escape(worker)}">.*?</tr>', operator.get(PAGE).text, re.DOTALL
    )
    assert found, f"{worker} is not on the page"
    return found[0]


def be_there(database: DatabaseFixture, presence: Presence) -> Presence:
    announce(database.engine, presence)
    return presence


def test_a_page_without_workers_says_how_to_get_some(
    operator: Browser, database: DatabaseFixture
) -> None:
    text = operator.text(PAGE)
    assert "No workers found. make up starts some" in text
    assert "No recent data from the autoscaler." in text


def test_a_worker_is_shown_with_its_slots_and_what_it_runs(
    operator: Browser, database: DatabaseFixture
) -> None:
    be_there(database, Presence("w1", "worker", ["medium"], slots=4, busy=1, node="m-1@host"))
    claim = database.start(type="<b>bold</b>")
    row = row_of(operator, "w1")
    assert 'max="4" value="1"' in row
    assert f'href="/console/jobs/{claim.ref.id}"' in row
    assert "&lt;b&gt;bold&lt;/b&gt;" in row and "<b>bold" not in row
    assert "of demo" in row
    assert "badge alive" in row


def test_a_worker_with_many_jobs_lists_the_oldest_and_counts_the_others(
    operator: Browser, database: DatabaseFixture
) -> None:
    be_there(database, Presence("w1", "worker", ["medium"], slots=50, busy=SHOWN_EACH + 5))
    for _ in range(SHOWN_EACH + 5):
        database.start()
    row = row_of(operator, "w1")
    assert row.count('<a href="/console/jobs/') == SHOWN_EACH
    assert f"{SHOWN_EACH + 5} jobs" in row
    assert "and 5 more" in row


def test_forked_processes_are_one_worker(operator: Browser, database: DatabaseFixture) -> None:
    child = Presence("c1", "worker", ["long"], slots=1, busy=1, parent="p1")
    be_there(database, child)
    be_there(database, replace(child, name="c2", busy=0))
    claim = database.start(pool="long")
    database.execute("UPDATE jobs SET worker = 'c2' WHERE id = %s", claim.ref.id)
    row = row_of(operator, "p1")
    assert "2 processes" in row and "1 of 2" in row and claim.ref.id in row
    assert 'data-worker="c1"' not in operator.get(PAGE).text

    silent = "UPDATE processes SET heartbeat_at = now() - interval '20 s'"
    database.execute(f"{silent} WHERE name = 'c1'")
    assert "badge alive" in row_of(operator, "p1") and "0 of 1" in row_of(operator, "p1")
    database.execute(silent)
    assert "badge lost" in row_of(operator, "p1")


def test_who_is_silent_is_lost_and_comes_last(operator: Browser, database: DatabaseFixture) -> None:
    be_there(database, Presence("a-silent", "worker", ["medium"], slots=4))
    database.execute("UPDATE processes SET heartbeat_at = now() - interval '11 s'")
    be_there(database, Presence("z-living", "worker", ["medium"], slots=4))
    row = row_of(operator, "a-silent")
    assert "badge lost" in row and "last seen" in row and "<form" not in row
    names = re.findall(r'data-worker="([^"]+)"', operator.get(PAGE).text)
    assert names == ["z-living", "a-silent"]
    assert "medium Workers 1 " in operator.text(PAGE)


def test_the_autoscalers_wish_is_told_with_its_reason(
    operator: Browser, database: DatabaseFixture
) -> None:
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason) VALUES ('medium', 3, 'it <waits>')"
    )
    text = operator.text(PAGE)
    assert "Workers 0, 3 suggested" in text
    assert "Autoscaler: it <waits>." in text
    database.execute("UPDATE desired_workers SET updated_at = now() - interval '1 minute'")
    assert "suggested" not in operator.text(PAGE)


def test_the_leader_is_told_from_its_standbys(operator: Browser, database: DatabaseFixture) -> None:
    for name in ("leader", "standby"):
        be_there(database, Presence(name, "scheduler"))
    be_there(database, Presence("http_client", "api"))
    text = operator.text(PAGE)
    assert text.count("scheduler, leader") == 1
    assert "leader scheduler, leader alive" in text


def test_one_is_drained_by_its_button_once(operator: Browser, database: DatabaseFixture) -> None:
    for name in ("w1", "w2"):
        be_there(database, Presence(name, "worker", ["medium"], slots=4))
    assert 'value="w1"' in row_of(operator, "w1")
    assert operator.do(f"{PAGE}/drain", worker="w1").startswith("w1 was asked to drain")
    row = row_of(operator, "w1")
    assert "badge drain-requested" in row and "<form" not in row
    assert "badge alive" in row_of(operator, "w2")
    assert operator.do(f"{PAGE}/drain", worker="w1") == "w1 is gone or already draining."
    assert operator.do(f"{PAGE}/drain", worker="no\0body").startswith("nobody is gone")
    be_there(database, Presence("w1", "worker", ["medium"], slots=4, draining=True))
    assert "badge draining" in row_of(operator, "w1")


def test_the_last_worker_of_a_queue_is_not_drained_without_a_word(
    operator: Browser, database: DatabaseFixture
) -> None:
    be_there(database, Presence("w1", "worker", ["medium"], slots=4))
    assert "No other worker serves medium" in row_of(operator, "w1")
    be_there(database, Presence("w2", "worker", ["medium"], slots=4))
    assert "No other worker" not in row_of(operator, "w1")


def test_nobody_but_an_operator_drains(operator: Browser, database: DatabaseFixture) -> None:
    be_there(database, Presence("w1", "worker", ["medium"], slots=4))
    tenants = Browser(operator.app, issue_key(database.engine, "demo").key, operator=True)
    assert tenants.post(f"{PAGE}/drain", {"worker": "w1"}).status_code == 403
    assert tenants.get(PAGE).status_code == 403
    assert Browser(operator.app).get(PAGE).headers["Location"].startswith("/console/sign-in")
    assert database.query("SELECT drain_requested_at FROM processes")[0][0] is None


def test_the_live_parts_stay_the_same_while_nothing_changes(
    operator: Browser, database: DatabaseFixture
) -> None:
    be_there(database, Presence("w1", "worker", ["medium"], slots=4, busy=1))
    database.start()
    before = operator.parts(PAGE)
    be_there(database, Presence("w1", "worker", ["medium"], slots=4, busy=1))  # a heartbeat later
    assert operator.parts(PAGE) == before
    assert before.keys() == {"pools", "workers", "others"}
