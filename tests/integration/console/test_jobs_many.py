"""Many jobs at once: those that were ticked, or all that match a filter, in batches."""

from __future__ import annotations

import itertools
import re
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from app.console.jobs import actions as jobs_actions
from models.jobs.cancel import cancel_several
from models.jobs.ids import new_id
from tests.integration.api.test_contract import bring
from tests.integration.console.test_jobs import FILL, LIST
from tests.support.browsing import SCRIPT, Browser
from tests.support.database_fixture import DatabaseFixture

ALL = "/console/jobs/all"


def one_of_each(database: DatabaseFixture) -> dict[str, str]:
    statuses = ("scheduled", "queued", "dispatched", "running", "succeeded", "dead", "cancelled")
    made = {}
    for status in statuses:
        later = datetime.now(UTC) + timedelta(hours=1) if status == "scheduled" else None
        made[status] = database.submit(execute_at=later)
        if status not in ("scheduled", "queued"):
            bring(database, made[status], status)
    return made


def status_of(database: DatabaseFixture, job_id: str) -> str:
    return str(database.job(job_id).status)


def test_ticked_jobs_are_cancelled_whosever_they_are(
    console: Browser, database: DatabaseFixture
) -> None:
    made = one_of_each(database)
    foreign = database.submit(tenant_id=2)
    form = {
        "action": "cancel",
        "id": [*made.values(), foreign, new_id()],
        "back": f"{LIST}?pool=short",
    }
    answer = console.post(f"{LIST}/selected", form)
    assert answer.location == f"{LIST}?pool=short"
    assert console.notice(answer) == (
        "4 jobs cancelled, 1 running being stopped, 4 skipped: already finished."
    )
    for status in ("scheduled", "queued", "dispatched"):
        assert status_of(database, made[status]) == "cancelled"
    assert status_of(database, foreign) == "cancelled"
    running = database.job(made["running"])
    assert running.status == "running" and running.cancel_requested_at is not None
    assert (status_of(database, made["succeeded"]), status_of(database, made["dead"])) == (
        "succeeded",
        "dead",
    )
    assert not database.miscounted()


def test_ticked_dead_letters_are_replayed(console: Browser, database: DatabaseFixture) -> None:
    made = one_of_each(database)
    answer = console.post(f"{LIST}/selected", {"action": "replay", "id": list(made.values())})
    assert console.notice(answer) == "1 job replayed, 6 skipped: no longer dead letters."
    assert status_of(database, made["dead"]) == "queued"
    assert database.job(made["dead"]).replays == 1
    assert not database.miscounted()


def test_ticks_are_bounded_and_must_be_ids(console: Browser) -> None:
    select = f"{LIST}/selected"
    for ids in (["17"], [new_id() for _ in range(501)]):
        assert console.post(select, {"action": "cancel", "id": ids}).status_code == 422
    assert console.post(select, {"action": "burn", "id": [new_id()]}).status_code == 422
    assert "nothing to cancel" in console.notice(console.post(select, {"action": "cancel"}))


@pytest.mark.parametrize(
    "path", [f"{LIST}/selected", ALL, f"{LIST}/01a1df91-4afc-7cf8-8fd3-75753825e56c/cancel"]
)
def test_nothing_is_done_for_a_page_of_another_site(console: Browser, path: str) -> None:
    for origin in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {}):
        answer = console.post(path, {"action": "cancel", "status": "queued"}, origin)
        assert answer.status_code == 403


def test_a_row_in_somebodys_hands_is_cancelled_when_it_is_free(database: DatabaseFixture) -> None:
    held, free = database.submit(), database.submit()
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            scoped.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (held,))
            results = []
            other = threading.Thread(
                target=lambda: results.append(cancel_several(database.engine, [held, free]))
            )
            other.start()
            # The others are done and let go of before anybody waits.
            waited = itertools.takewhile(
                lambda _: status_of(database, free) != "cancelled", range(5_000)
            )
            assert len(list(waited)) < 5_000
    other.join(5)
    assert results[0].changed == 2
    assert status_of(database, held) == "cancelled"
    assert not database.miscounted()


def batch(console: Browser, **form: str) -> dict[str, object]:
    answer = console.post(ALL, form, SCRIPT)
    assert answer.status_code == 200, answer.text
    document: dict[str, object] = answer.json  # type: ignore[assignment]  # it is JSON
    return document


def test_all_that_match_are_counted_and_then_cancelled_in_batches(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_actions, "MOST_SEVERAL", 3)
    made = [database.submit(type="sleep") for _ in range(7)]
    bring(database, made[0], "succeeded")
    bring(database, made[1], "running")
    kept = database.submit(type="echo")
    page = console.page(f"{ALL}?action=cancel&type=sleep")
    assert "6 unfinished jobs match." in page and "Cancel 6" in page
    assert status_of(database, made[2]) == "queued"  # nobody has confirmed yet
    first = batch(console, action="cancel", type="sleep")
    assert (first["done"], first["more"]) == (3, True)
    late = database.submit(type="sleep")
    second = batch(console, action="cancel", type="sleep", cursor=str(first["cursor"]))
    assert second == {"done": 2, "asked": 1, "skipped": 0, "later": 0} | {
        "more": False,
        "cursor": None,
    }
    assert [status_of(database, job_id) for job_id in made] == [
        "succeeded",
        "running",
        *["cancelled"] * 5,
    ]
    assert status_of(database, kept) == status_of(database, late) == "queued"
    assert not database.miscounted()


def test_what_is_submitted_after_the_question_is_not_touched(
    console: Browser, database: DatabaseFixture
) -> None:
    asked_about = database.submit(type="sleep")
    page = console.page(f"{ALL}?action=cancel&type=sleep")
    ceiling = re.search(r'name="cursor" value="([^"]{36})"', page)
    assert ceiling is not None
    time.sleep(0.002)  # ids tell a millisecond
    late = database.submit(type="sleep")
    done = batch(console, action="cancel", type="sleep", cursor=ceiling[1])
    assert done["done"] == 1
    assert status_of(database, asked_about) == "cancelled"
    assert status_of(database, late) == "queued"


def test_a_job_that_dies_again_is_not_replayed_twice(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_actions, "MOST_SEVERAL", 2)
    made = [database.submit(tenant_id=1 + number % 2) for number in range(5)]
    for job_id in made:
        bring(database, job_id, "dead")
    replayed, cursor, more = 0, "", True
    while more:
        answer = batch(console, action="replay", status="dead", cursor=cursor)
        replayed += int(str(answer["done"]))
        more, cursor = bool(answer["more"]), str(answer["cursor"])
        for step in ("dispatched", "running", "dead"):  # whatever is back dies at once
            was = {"dispatched": "queued", "running": "dispatched", "dead": "running"}[step]
            database.execute("UPDATE jobs SET status = %s WHERE status = %s", step, was)
    assert replayed == 5
    assert [database.job(job_id).replays for job_id in made] == [1] * 5
    assert not database.miscounted()


def test_without_script_each_press_is_a_batch(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_actions, "MOST_SEVERAL", 2)
    for _ in range(3):
        database.submit()
    form = {"action": "cancel", "status": "queued"}
    first = console.post(ALL, form)
    assert "2 jobs cancelled. More jobs match" in console.notice(first)
    page = console.page(first.location)
    assert "1 unfinished job matches." in page
    cursor = re.search(r'name="cursor" value="([^"]+)"', page)
    assert cursor is not None
    last = console.post(ALL, {**form, "cursor": cursor[1]})
    assert console.notice(last) == "1 job cancelled."
    assert last.location == f"{LIST}?status=queued"


def test_more_than_can_be_counted_are_at_least_so_many(
    console: Browser, database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(FILL)
    monkeypatch.setattr(jobs_actions, "COUNTED", 100)
    assert "At least 100 unfinished jobs match." in console.page(f"{ALL}?action=cancel")
    nothing = console.page(f"{ALL}?action=replay&status=queued")
    assert "No matching dead letters" in nothing and "<form method" not in nothing
    wrong = console.post(ALL, {"action": "cancel", "tenant": "nobody"})
    assert wrong.status_code == 422
