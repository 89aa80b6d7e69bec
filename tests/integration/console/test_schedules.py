"""The page of schedules: all tenants', and what an operator can do with one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from models.jobs.ids import new_id
from tests.support.browsing import Browser
from tests.support.database_fixture import DatabaseFixture

PAGE = "/console/schedules"
OTHER = 2


def keep(database: DatabaseFixture, name: str, tenant_id: int = 1, **fields: Any) -> str:
    """A schedule as the API would have kept it; its id."""
    values = {
        "id": new_id(),
        "tenant_id": tenant_id,
        "name": name,
        "cron": "0 3 * * *",
        "timezone": "UTC",
        "overlap": "skip",
        "catch_up": "one",
        "type": "echo",
        "payload": "{}",
        "next_at": "2040-01-01T03:00:00Z",
        **fields,
    }
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    database.execute(f"INSERT INTO schedules ({names}) VALUES ({marks})", *values.values())
    return str(values["id"])


def row(database: DatabaseFixture, schedule_id: str) -> Any:
    return database.query("SELECT * FROM schedules WHERE id = %s", schedule_id)[0]


def shown(operator: Browser, path: str = PAGE) -> list[str]:
    return re.findall(r'data-schedule="([^"]+)"', operator.get(path).text)


def test_a_page_without_schedules_says_how_to_make_one(
    operator: Browser, database: DatabaseFixture
) -> None:
    assert "No schedules yet." in operator.text(PAGE)
    assert "Tenant other has no schedules." in operator.text(f"{PAGE}?tenant=other")


def test_a_schedule_is_told_in_words(operator: Browser, database: DatabaseFixture) -> None:
    made = {"made": 1200, "skipped": 3, "last_at": "2026-01-02T03:00:00Z", "last_job_id": new_id()}
    keep(database, "<i>nightly</i>", timezone="Europe/Vienna", **made)
    page = operator.get(PAGE).text
    text = operator.text(PAGE)
    assert "<i>nightly</i> of demo every day at 03:00 0 3 * * * Europe/Vienna active" in text
    assert "<i>" not in page
    assert 'datetime="2040-01-01T03:00:00.000Z"' in page
    assert f'href="/console/jobs/{made["last_job_id"]}"' in page
    assert "/console/jobs?tenant=demo&amp;type=echo" in page
    assert "1 200 submitted, 3 skipped overlaps are skipped, catches up on one" in text


def test_all_tenants_are_walked_page_by_page_and_one_can_be_picked(
    operator: Browser, database: DatabaseFixture
) -> None:
    mine = [keep(database, f"of demo {n:03}") for n in range(70)]
    theirs = [keep(database, f"of other {n:03}", OTHER) for n in range(70)]
    first = shown(operator)
    assert first == [*mine, *theirs[:30]]
    (following,) = re.findall(r'href="([^"]+)">Next page', operator.get(PAGE).text)
    assert shown(operator, following) == theirs[30:]
    assert "Next page" not in operator.text(following) and "First page" in operator.text(following)
    assert shown(operator, f"{PAGE}?tenant=other") == theirs
    assert shown(operator, f"{PAGE}?tenant=nobody") == []


@pytest.mark.parametrize(
    ("cursor", "status"),
    [
        ("x", 422),
        ("!!", 422),
        ("LTEgYQ", 422),
        ("OTk5OTk5OTk5OTk5OTk5OTk5OTkgYQ", 422),
        ("MSA", 200),
    ],
)
def test_a_place_that_was_made_up_is_refused(operator: Browser, cursor: str, status: int) -> None:
    assert operator.get(f"{PAGE}?after={cursor}").status_code == status


def test_it_is_paused_and_resumed_by_the_rules_of_the_api(
    operator: Browser, database: DatabaseFixture
) -> None:
    made = keep(database, "nightly", OTHER)
    assert operator.do(f"{PAGE}/{made}/pause") == "nightly of other is paused."
    assert row(database, made).paused
    assert "Resume" in operator.text(PAGE) and "none while paused" in operator.text(PAGE)
    database.execute("UPDATE schedules SET next_at = '2020-01-01T03:00:00Z'")
    assert operator.do(f"{PAGE}/{made}/resume") == "nightly of other is active again."
    resumed = row(database, made)
    assert not resumed.paused
    assert resumed.next_at.year > 2020, "ticks of the pause do not come"


def test_it_runs_now_as_a_job_of_its_tenant_without_a_tick(
    operator: Browser, database: DatabaseFixture
) -> None:
    made = keep(database, "nightly", OTHER, payload='{"a": 1}', priority=3)
    said = operator.do(f"{PAGE}/{made}/run")
    (job,) = database.query("SELECT id::text, tenant_id, type, priority, payload FROM jobs")
    assert said == f"nightly of other was submitted as job {job.id}."
    assert (job.tenant_id, job.type, job.priority, job.payload) == (OTHER, "echo", 3, {"a": 1})
    assert (row(database, made).made, row(database, made).last_at) == (0, None)


def test_what_cannot_run_says_why(operator: Browser, database: DatabaseFixture) -> None:
    made = keep(database, "odd", type="no_such_type")
    assert operator.do(f"{PAGE}/{made}/run").startswith("Not run: type is not registered")
    ended = keep(database, "ended", cron="0 0 30 2 *", next_at=None, paused=True)
    assert operator.do(f"{PAGE}/{ended}/resume").startswith("Not changed: cron")
    assert not database.query("SELECT 1 FROM jobs")


def test_a_run_is_held_to_the_tenants_depth(operator: Browser, database: DatabaseFixture) -> None:
    database.execute("INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (2, 'short', 0)")
    database.execute("UPDATE tenants SET changed_at = now() WHERE id = 2")
    operator.app.extensions["fairline"].tenants.directory.refresh()
    made = keep(database, "nightly", OTHER)
    assert operator.do(f"{PAGE}/{made}/run").startswith("Not run:")
    assert not database.query("SELECT 1 FROM jobs")


def test_what_is_not_there_is_not_found_and_the_way_back_stays_here(
    operator: Browser, database: DatabaseFixture
) -> None:
    for act in ("pause", "resume", "run"):
        assert operator.post(f"{PAGE}/{new_id()}/{act}", {}).status_code == 404
        assert operator.post(f"{PAGE}/nonsense/{act}", {}).status_code == 404
    made = keep(database, "nightly")
    for target, place in ((f"{PAGE}?tenant=demo", f"{PAGE}?tenant=demo"), ("//evil", PAGE)):
        answer = operator.post(f"{PAGE}/{made}/pause", {"back_to": target})
        assert answer.headers["Location"] == place


def test_only_operators_come_here(operator: Browser, database: DatabaseFixture) -> None:
    made = keep(database, "nightly")
    assert Browser(operator.app).get(PAGE).status_code == 303
    stranger = Browser(operator.app, "nonsense", operator=True)
    answer = stranger.post(f"{PAGE}/{made}/pause", {})
    assert answer.headers.get("Location", "").startswith("/console/sign-in")
    assert not row(database, made).paused
