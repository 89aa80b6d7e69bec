"""On 390 pixels: nothing covers anything, what matters is there, what scrolls shows it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.console.pages import ELSEWHERE, NAVIGATION
from loadtest.fleet import until
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

PHONE = {"width": 390, "height": 844}
NUMBERS = itertools.count(1)
PAGES = (
    *(path for path, _, _ in NAVIGATION),
    *(path for path, _ in ELSEWHERE),
    *("/tenant", "/tenant/schedules", "/console/tenants/demo", "/console/nothing"),
)
#: What a page is measured by.
MEASURES = (Path(__file__).parent / "phone.js").read_text()


@pytest.fixture
def phone(tab: Tab) -> Tab:
    tab.page.set_viewport_size(PHONE)  # type: ignore[arg-type]  # a TypedDict of theirs
    return tab


@pytest.fixture
def something_to_show(client: Client) -> str:
    """A schedule with a run, a dead letter, a score; the schedule's id."""
    body = {"name": f"phone {next(NUMBERS)}", "cron": "0 3 * * *", "type": "echo"}
    schedule = client.api.call("POST", "/schedules", body).document["id"]
    client.api.call("POST", f"/schedules/{schedule}/run")
    job = client.submit_job("fail", {"class": "PERMANENT", "message": "a long message " * 20})
    client.wait_scored(client.submit(2, "general"))
    client.stack.wait(lambda: client.job(job).status == "dead", "a dead letter", 20)
    return str(schedule)


def measure(page: Page, path: str) -> None:
    page.wait_for_function("document.querySelectorAll('table.stacks:not([role])').length === 0")
    page.wait_for_timeout(100)  # what is resized is marked in the next frame
    for name in ("overlapping", "silent", "unreachable"):
        assert page.evaluate(f"() => ({MEASURES}).{name}()") == [], f"{path}: {name}"


def test_nothing_is_covered_or_hidden_on_any_page(phone: Tab, something_to_show: str) -> None:
    for path in (
        *PAGES,
        "/console/jobs?status=dead",
        f"/console/schedules/{something_to_show}",
        f"/tenant/schedules/{something_to_show}",
    ):
        measure(phone.go(path), path)
    phone.check_accessible()  # of rows that are blocks


def test_a_row_shows_what_matters_without_scrolling(phone: Tab, something_to_show: str) -> None:
    page = phone.go("/console/schedules?tenant=demo")
    row = page.locator(f'tr[data-schedule="{something_to_show}"]')
    for part in (
        row.get_by_role("link").first,
        row.get_by_role("button", name="Pause"),
        row.get_by_role("button", name="Run"),
        row.get_by_text("every day at 03:00"),
        row.locator(".badge"),
    ):
        box = part.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], part
    page = phone.go("/console/jobs?status=dead")
    first = page.locator("table.jobs tbody tr").first
    for name in ("Type", "Attempts", "Submitted", "Duration", "Error"):
        cell = first.locator(f'td[data-label="{name}"]')
        # The page is live: a row that is just replaced has none.
        box = until(cell.bounding_box, 30, f"the cell {name}")
        assert box and box["x"] + box["width"] <= PHONE["width"], name
    expect(first.get_by_role("rowheader").or_(first.get_by_role("cell")).first).to_be_visible()
    expect(page.get_by_role("link", name="Submitted")).to_be_visible()  # sorting is at hand


@pytest.mark.usefixtures("something_to_show")
def test_a_table_that_scrolls_shows_where_it_goes_on(phone: Tab) -> None:
    page = phone.go("/tenant")
    box = page.get_by_role("region", name="Usage and cost by day")
    expect(box).to_have_attribute("data-cut", "right")
    for left, cut in ((60, "left right"), (9999, "left")):
        # Again if the table has grown meanwhile, or was replaced by a newer one.
        page.wait_for_function(
            "([left, cut]) => {"
            " const one = document.querySelector(`[aria-label='Usage and cost by day']`);"
            " one.scrollTo(left, 0); return one.dataset.cut === cut }",
            arg=[left, cut],
        )
    page.set_viewport_size({"width": 1280, "height": 900})
    # A newer table that fits has no such attribute.
    expect(box).not_to_have_attribute("data-cut", re.compile("left|right"))


def test_the_filter_leaves_room_for_the_jobs(phone: Tab, something_to_show: str) -> None:
    page = phone.go("/console/jobs")
    expect(page.locator("#status")).to_be_hidden()
    first = page.locator("table.jobs tbody tr").first.bounding_box()
    assert first and first["y"] < PHONE["height"], "the first job is on the first screen"
    page.get_by_text("Filter", exact=True).first.click()
    expect(page.locator("#status")).to_be_visible()
    page = phone.go("/console/jobs?status=dead")
    expect(page.locator("#status")).to_be_visible()
