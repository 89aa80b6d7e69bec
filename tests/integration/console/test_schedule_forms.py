"""Schedules made, changed and removed in the browser by operators and tenants; their history."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.scheduler.maintenance.recurring_jobs import RecurringJobs
from app.tenants.changes import issue_key
from app.tenants.schedules import READ_HISTORY
from models.pools import POOLS
from tests.integration.console.test_schedules import OTHER, keep, row
from tests.support.browsing import Browser, text_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import assert_walks, plan_of

FORM = {
    "name": "nightly",
    "cron": "0  3 * * *",
    "timezone": "Europe/Vienna",
    "type": "echo",
    "payload": '{"a": [1, 12345678901234567890123]}',
    "priority": "-3",
    "overlap": "skip",
    "catch_up": "none",
}
PATHS = ("/console/schedules", "/tenant/schedules")


@pytest.fixture
def tenant(operator: Browser, database: DatabaseFixture) -> Browser:
    """Somebody who has signed in with a key of the tenant ``other``."""
    return Browser(operator.app, issue_key(database.engine, "other").key)


@pytest.fixture(params=PATHS)
def visitor(
    request: pytest.FixtureRequest, operator: Browser, tenant: Browser
) -> tuple[Browser, str]:
    """Both sides, each with its own address; both act for the tenant ``other``."""
    return (operator if "console" in request.param else tenant), request.param


def made(database: DatabaseFixture) -> Any:
    (found,) = database.query("SELECT *, id::text, payload::text AS text FROM schedules")
    return found


def field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found, name
    return html.unescape(found[1])


def test_it_is_made_changed_and_removed(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    browser, path = visitor
    assert "No schedules yet." in browser.text(path)
    assert browser.do(path, tenant="other", **FORM) == "nightly of other was created."
    one = made(database)
    assert (one.tenant_id, one.cron, one.timezone) == (OTHER, "0 3 * * *", "Europe/Vienna")
    assert (one.priority, one.overlap, one.catch_up, one.paused) == (-3, "skip", "none", False)
    assert one.text == '{"a":[1,12345678901234567890123]}'
    page = browser.page(f"{path}/{one.id}")
    assert field(page, "cron") == "0 3 * * *" and field(page, "priority") == "-3"
    assert "12345678901234567890123" in page and "every day at 03:00" in page
    assert "No ticks yet" in text_of(page)

    changed = FORM | {"name": "hourly", "cron": "0 * * * *", "paused": "yes", "overlap": "allow"}
    assert browser.do(f"{path}/{one.id}", **changed) == "hourly of other was changed."
    after = made(database)
    assert (after.name, after.cron, after.paused, after.overlap) == (
        "hourly",
        "0 * * * *",
        True,
        "allow",
    )
    assert " checked>" in browser.page(f"{path}/{one.id}")
    said = browser.do(f"{path}/{one.id}/remove")
    assert said == "hourly of other was removed. Its jobs remain."
    assert not database.query("SELECT 1 FROM schedules")
    assert browser.get(f"{path}/{one.id}").status_code == 404


def test_who_saves_changes_only_what_it_changed(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    browser, path = visitor
    browser.do(path, tenant="other", **FORM)
    page = f"{path}/{made(database).id}"
    opened = browser.page(page)
    payload = payload_in(opened).replace("\n", "\r\n")
    shown = FORM | {"payload": payload, "cron": "0 3 * * *", "was": field(opened, "was")}
    browser.do(f"{page}/pause")
    browser.do(page, **shown | {"priority": "5"})
    after = made(database)
    assert (after.paused, after.priority) == (True, 5)
    browser.do(page, **shown | {"cron": "5 * * * *"})
    after = made(database)
    assert (after.paused, after.priority, after.cron) == (True, 5, "5 * * * *")


def payload_in(page: str) -> str:
    found = re.search(r'name="payload"[^>]*>([^<]*)</textarea>', page)
    assert found
    return html.unescape(found[1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "61 * * * *"}, "cron minute '61' is not from 0 to 59"),
        ({"cron": "0 0 30 2 *"}, "cron no such time ever comes"),
        ({"timezone": "Mars/Olympus"}, "timezone is no time zone"),
        ({"name": " "}, "name"),
        ({"type": "<b>no</b>"}, "type is not registered"),
        ({"payload": "{1"}, "payload is not JSON"),
        ({"payload": '"\\u0000"'}, "payload"),
        ({"payload": "[" * 1024 + "]" * 1024}, "payload is not JSON"),
        ({"payload": '{"a": NaN}'}, "payload is not JSON"),
        ({"priority": "101"}, "priority"),
        ({"priority": "much"}, "priority"),
        ({"priority": "9" * 5000}, "priority"),
        ({"overlap": "skip", "catch_up": "all"}, "catch_up all would create overlapping jobs"),
        ({"overlap": "maybe"}, "overlap"),
        ({"payload": f'"{"x" * 70_000}"'}, "must not exceed"),
    ],
)
def test_what_is_wrong_is_said_beside_what_was_typed(
    visitor: tuple[Browser, str], database: DatabaseFixture, wrong: dict[str, str], said: str
) -> None:
    browser, path = visitor
    existing = keep(database, "kept", OTHER)
    before = row(database, existing)
    typed = FORM | {"tenant": "other"} | wrong
    for target in (path, f"{path}/{existing}"):
        answer = browser.post(target, typed)
        assert answer.status_code in (413, 422), answer.text
        assert answer.mimetype == "text/html"
        assert said in text_of(answer.text)
        assert field(answer.text, "name") == typed["name"], "what was typed is still there"
        assert "<b>" not in answer.text
    assert [row(database, existing)] == [before] and len(database.query("TABLE schedules")) == 1


def test_a_name_is_taken_once(visitor: tuple[Browser, str], database: DatabaseFixture) -> None:
    browser, path = visitor
    keep(database, "nightly", OTHER)
    other = keep(database, "other", OTHER)
    for target in (path, f"{path}/{other}"):
        answer = browser.post(target, FORM | {"tenant": "other"})
        assert answer.status_code == 409
        assert "There is a schedule of the name 'nightly' already." in text_of(answer.text)


def test_operators_name_a_tenant_that_exists(operator: Browser, database: DatabaseFixture) -> None:
    for name in ("", "nobody", "\0"):
        answer = operator.post(PATHS[0], FORM | {"tenant": name})
        assert answer.status_code == 422
        assert "tenant is unknown" in text_of(answer.text)


def test_a_tenant_sees_and_touches_its_own_alone(
    tenant: Browser, database: DatabaseFixture
) -> None:
    foreign, own = keep(database, "foreign"), keep(database, "own", OTHER)
    page = tenant.text(PATHS[1])
    assert "own" in page and "foreign" not in page
    assert "foreign" not in tenant.text(f"{PATHS[1]}?tenant=demo")
    assert tenant.get(f"{PATHS[1]}/{foreign}").status_code == 404
    for act in ("", "/pause", "/resume", "/run", "/remove"):
        assert tenant.post(f"{PATHS[1]}/{foreign}{act}", FORM).status_code == 404, act
        assert tenant.post(f"{PATHS[0]}/{own}{act}", FORM).status_code in (303, 401, 403), act
    assert not row(database, foreign).paused and not database.query("SELECT 1 FROM jobs")
    # A form is its own tenant's, whatever it names.
    assert tenant.do(PATHS[1], **FORM, tenant="demo") == "nightly of other was created."


def test_a_form_of_another_site_changes_nothing(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    browser, path = visitor
    one = keep(database, "kept", OTHER)
    for target in (path, f"{path}/{one}", f"{path}/{one}/remove"):
        answer = browser.post(target, FORM, {"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403
    assert row(database, one).name == "kept"


def test_the_history_has_every_tick_and_what_became_of_it(
    visitor: tuple[Browser, str], database: DatabaseFixture
) -> None:
    browser, path = visitor
    one = keep(database, "nightly", OTHER, next_at="2026-01-01T03:00:00Z", type="echo")
    keep(database, "another", OTHER, next_at="2026-01-01T03:00:00Z", type="sleep")
    database.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
    scheduler = RecurringJobs(
        database.engine,
        database.leader,
        database.types,
        tuple(POOLS),
        TenantLimits(database.engine, limits),
    )
    assert scheduler.run_once(0.0) == 2
    database.execute("UPDATE schedules SET next_at = '2026-02-01T03:00:00Z' WHERE id = %s", one)
    assert scheduler.run_once(1.0) == 1  # skipped: the job before has not ended
    said = browser.do(f"{path}/{one}/run", back_to=f"{path}/{one}")
    (job,) = database.query("SELECT id::text FROM jobs WHERE type = 'echo' AND execute_at < now()")
    page = browser.page(f"{path}/{one}")
    text = text_of(page)
    assert said.startswith("nightly of other was submitted as job")
    assert text.index("run now queued") < text.index("skipped the job before had not ended")
    assert f'href="{path.replace("schedules", "jobs")}/{job.id}"' in page
    assert "missed" in text and text.count("queued") == 2 and "sleep" not in text
    database.execute("DELETE FROM jobs")
    assert "submitted; the job was deleted since" in browser.text(f"{path}/{one}")


def test_the_history_walks_the_tenants_newest_events(database: DatabaseFixture) -> None:
    database.execute("""
        INSERT INTO events (tenant_id, kind, detail)
        SELECT n %% 50, 'job_replayed', '{}' FROM generate_series(1, 20000) AS n""")
    database.execute("ANALYZE events")
    plan = plan_of(database, READ_HISTORY, tenant_id=7, id="x", limit=50)
    assert_walks(plan, "events_feed")


def test_the_parts_live(visitor: tuple[Browser, str], database: DatabaseFixture) -> None:
    browser, path = visitor
    one = keep(database, "nightly", OTHER)
    services = browser.app.extensions["fairline"]
    own = services.visitors.tenant_named("other") if "tenant" in path else None
    assert browser.parts(path, tenant=own).keys() == {"schedules"}
    parts = browser.parts(f"{path}/<schedule_id>", tenant=own, schedule_id=one)
    assert parts.keys() == {"state", "history"}
    assert parts == browser.parts(f"{path}/<schedule_id>", tenant=own, schedule_id=one)
