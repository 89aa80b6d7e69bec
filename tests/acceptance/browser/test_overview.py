"""The overview as an operator sees it: it follows what happens, by itself."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: The page looks every five seconds, on a busy machine every twenty.
LOOK_MILLISECONDS = 30_000


def figure(card: Locator, name: str) -> Locator:
    """A number on a pool's card."""
    return card.locator(".figures div").filter(has_text=name).locator("dd")


def test_the_overview_shows_by_itself_what_runs_and_what_died(tab: Tab, client: Client) -> None:
    page = tab.go("/")
    expect(page.locator(".verdict")).to_have_text(re.compile(r"^(✓|Warning|Problem) .+\.$"))
    expect(page.locator("#chart-depth .main-svg").first).to_be_visible()
    medium, short = (
        page.locator(f"section[aria-labelledby=pool-{n}]") for n in ("medium", "short")
    )
    dead = int(figure(short, "Dead letters").inner_text().replace("\u202f", ""))
    [sleep] = client.submit_sleeps(1, 60.0)
    client.submit_job("fail", {"class": "PERMANENT"})
    expect(figure(medium, "In flight")).not_to_have_text("0", timeout=LOOK_MILLISECONDS)
    assert client.api.call("DELETE", f"/jobs/{sleep}").status == 202
    expect(figure(short, "Dead letters")).to_have_text(str(dead + 1), timeout=LOOK_MILLISECONDS)
    tab.check_accessible()
    page.get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("heading", name="Charts, last 24 hours")).to_be_visible()
    expect(page.locator("[data-chart] script").first).to_be_attached()
