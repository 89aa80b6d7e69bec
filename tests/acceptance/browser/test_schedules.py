"""Schedules in a browser; and the pages beside it that are only looked at."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.acceptance.browser.conftest import PATIENCE_MILLISECONDS, Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long


def see(where: Locator, text: str) -> None:
    """Until the page shows it."""
    expect(where).to_contain_text(text, timeout=PATIENCE_MILLISECONDS)


def test_a_schedule_is_paused_resumed_and_run(tab: Tab, client: Client) -> None:
    page = tab.go("/console/schedules?tenant=demo")
    name = "nightly <script>alert(1)</script>"
    body = {"name": name, "cron": "0 3 * * *", "timezone": "Europe/Vienna", "type": "echo"}
    made = client.api.call("POST", "/schedules", body)
    assert made.status == 201, made
    row = page.locator(f'tr[data-schedule="{made.document["id"]}"]')
    see(row, name)  # by itself: the page lives
    see(row, "every day at 03:00")
    tab.check_accessible()

    said = page.get_by_role("status")
    row.get_by_role("button", name="Pause").click()
    see(said, "is paused")
    see(row, "none while paused")
    row.get_by_role("button", name="Resume").click()
    see(said, "is active again")
    row.get_by_role("button", name="Run").click()
    see(said, "was submitted as job")
    found = re.search(r"as job (\S+)\.", said.inner_text())
    assert found
    client.wait_ended([found[1]], 20)
    assert page.url.endswith("/console/schedules?tenant=demo")
    assert client.api.call("DELETE", f"/schedules/{made.document['id']}").status == 204


def test_circuits_and_the_lab_are_there_to_be_read(tab: Tab) -> None:
    page = tab.go("/console/limits")
    expect(page.get_by_role("heading", name="Circuits and quotas")).to_be_visible()
    expect(page.get_by_role("row", name="claude")).to_contain_text("Calls are allowed.")
    tab.check_accessible()
    tab.go("/console/lab")
    expect(page.get_by_role("heading", name="Load lab")).to_be_visible()
    tab.check_accessible()
