"""The leaderboard: an application is submitted, watched while it is scored, and found again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client, new_role

pytestmark = pytest.mark.long

HOSTILE = "<script>alert(1)</script>"
LETTER = "Led four people through a migration of twelve million records without an outage."


def test_an_application_is_submitted_scored_before_ones_eyes_and_ranked(
    tab: Tab, client: Client
) -> None:
    role = new_role()
    client.wait_scored(client.submit(1, role))
    ranking = f"/console/leaderboard?tenant=demo&role={role}"
    page = tab.go(ranking)
    expect(page.get_by_role("link", name="Candidate 0")).to_be_visible()
    tab.check_accessible()

    page.get_by_label("Candidate", exact=True).fill(HOSTILE)
    page.get_by_label("Application", exact=True).fill(LETTER)
    page.get_by_role("button", name="Submit for demo").click()

    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    page.evaluate("window.opened = 'once'")
    expect(page.locator("[data-live=status]")).to_have_text("scored")
    assert page.evaluate("window.opened") == "once", "nobody has loaded the page again"
    standing = page.locator("[data-live=standing]")
    expect(standing).to_contain_text(re.compile(r"Rank\s*(1st|2nd)\s*in this role"))
    expect(standing.locator("q").first).to_have_text(re.compile(r"\w+"))
    assert all(quote in LETTER for quote in standing.locator("q").all_text_contents())
    tab.check_accessible()

    page.get_by_role("link", name=f"Leaderboard: {role}").click()
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(3)


def test_the_ranking_follows_what_is_scored_and_keeps_what_is_typed(
    tab: Tab, client: Client
) -> None:
    role = new_role()
    page = tab.go(f"/console/leaderboard?tenant=demo&role={role}")
    expect(page.get_by_text("has been scored yet")).to_be_visible()
    page.get_by_label("Candidate", exact=True).fill("Half a na")
    client.wait_scored(client.submit(2, role))
    expect(page.get_by_role("row")).to_have_count(3)
    expect(page.get_by_label("Candidate", exact=True)).to_have_value("Half a na")
