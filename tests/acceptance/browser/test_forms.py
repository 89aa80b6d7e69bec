"""Schedules, terms and keys in a browser; and times as the visitor chose them."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import Browser, expect

from app.tenants.changes import create_tenant
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

NUMBERS = itertools.count(1)
KEY = re.compile(r"fair_[a-z0-9]{8}_[A-Za-z0-9]{32}")


def test_a_schedule_is_made_run_changed_and_removed_by_its_tenant(tab: Tab) -> None:
    page = tab.page
    page.on("dialog", lambda dialog: dialog.accept())
    tab.go("/tenant")
    page.get_by_role("link", name="Schedules").click()
    page.locator("summary", has_text="New schedule").click()
    name = f"by hand {next(NUMBERS)}"
    page.get_by_label("Name").fill(name)
    page.get_by_label("Cron").fill("0 25 * * *")
    page.get_by_label("Job type").fill("echo")
    page.get_by_label("Payload").fill('{"hello": "browser"}')
    tab.check_accessible()
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_label("Cron")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name")).to_have_value(name)
    tab.check_accessible()
    page.get_by_label("Cron").fill("0 3 * * 1")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_text("No ticks yet")).to_be_visible()

    page.get_by_role("button", name="Run").click()
    history = page.get_by_role("region", name="History")
    expect(history).to_contain_text("run now")
    expect(history).to_contain_text("succeeded")  # by itself: the page lives
    tab.check_accessible()
    page.get_by_label("Cron").fill("0 4 * * 1")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_contain_text("was changed")
    expect(page.get_by_text("every Monday at 04:00")).to_be_visible()
    page.get_by_role("button", name="Remove this schedule").click()
    expect(page.get_by_role("status").first).to_contain_text("was removed")


def test_an_operator_agrees_terms_and_issues_and_revokes_a_key(tab: Tab, client: Client) -> None:
    page = tab.page
    page.on("dialog", lambda dialog: dialog.accept())
    name = f"hired-{next(NUMBERS)}"
    tab.go("/console/tenants")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    page.get_by_label("Tier", exact=True).select_option("pro")
    page.get_by_label("Weight").fill("heavy")
    page.get_by_role("button", name="Save terms").click()
    expect(page.get_by_label("Weight")).to_have_attribute("aria-invalid", "true")
    tab.check_accessible()
    page.get_by_label("Weight").fill("250")
    page.get_by_role("group", name="Pool medium").get_by_label("Jobs in flight").fill("7")
    page.get_by_role("button", name="Save terms").click()
    expect(page.get_by_role("status").first).to_contain_text(f"The terms of {name} were changed.")
    expect(page.get_by_label("Weight")).to_have_value("250")

    page.get_by_label("Name of a new key").fill("of the browser")
    page.get_by_role("button", name="Issue a key").click()
    shown = page.get_by_role("alert")
    expect(shown).to_contain_text("will not be shown again")
    tab.check_accessible()
    found = KEY.search(shown.inner_text())
    assert found
    key = {"Authorization": f"Bearer {found[0]}"}
    own = page.request.get(f"{tab.base}/tenant", headers={**key, "Accept": "application/json"})
    assert own.json()["name"] == name
    assert own.json()["weight"] == 250
    page.goto(page.url)
    assert found[0] not in page.content()
    page.get_by_role("button", name=f"Revoke fair_{found[0].split('_')[1]}").click()
    expect(page.get_by_role("status").first).to_contain_text("is revoked")

    def refused() -> bool:
        headers = {**key, "Accept": "application/json"}
        return page.request.get(f"{tab.base}/tenant", headers=headers).status == 401

    client.stack.wait(refused, "the revocation", 10)


def test_times_are_ages_local_or_utc_and_the_choice_is_remembered(
    browser: Browser, tab: Tab, client: Client
) -> None:
    create_tenant(client.engine, f"timed-{next(NUMBERS)}")
    context = browser.new_context(locale="en-GB", timezone_id="Asia/Kathmandu")
    page = context.new_page()
    page.goto(f"{tab.base}/console/tenants")
    shown = page.get_by_role("region", name="All tenants").locator("time").first
    expect(shown).to_have_text(re.compile(r"ago$|^now$"))
    choice = page.get_by_label("Show times")
    choice.select_option("utc")
    expect(shown).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    utc = shown.inner_text()
    choice.select_option("local")
    expect(shown).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d GMT\+5:45$"))
    assert shown.get_attribute("title") == f"{utc} / {shown.inner_text()}"
    page.reload()
    expect(shown).to_have_text(re.compile("GMT"))
    page.goto(f"{tab.base}/")
    expect(choice).to_have_value("local")
    expect(page.locator("[data-zone]").first).to_have_text("GMT+5:45")
    context.close()
