"""Jobs in the browser: found by a filter, watched, cancelled, and brought back from the dead."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Dialog, expect

from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: Pages look every few seconds.
LIVE = 15_000
LATER = "2100-01-01T00:00:00Z"


def agree(dialog: Dialog) -> None:
    dialog.accept()


def test_a_job_is_found_by_a_filter_and_cancelled_before_ones_eyes(
    tab: Tab, client: Client
) -> None:
    put_off = client.submit_job("count", {"to": 1, "seconds_each": 0}, execute_at=LATER)
    running = client.submit_job("count", {"to": 1_000, "seconds_each": 0.05})
    page = tab.go("/console/jobs")
    page.on("dialog", agree)
    page.get_by_label("Type", exact=True).fill("count")
    page.get_by_label("State", exact=True).select_option("live")
    page.get_by_role("button", name="Filter").click()
    row = page.locator("tbody tr").filter(has=page.locator(f'[value="{put_off}"]'))
    expect(row).to_contain_text("scheduled")
    expect(page.locator("tbody tr").filter(has_not_text="count")).to_have_count(0)
    cancel = page.get_by_role("button", name="Cancel selected")
    expect(cancel).to_be_disabled()
    row.get_by_role("checkbox").check()
    cancel.click()
    expect(page.locator(".notice")).to_have_text("1 job cancelled.")
    expect(row).to_have_count(0)
    assert client.job(put_off).status == "cancelled"
    tab.check_accessible()

    page.locator(f'a[href="/console/jobs/{running}"]').click()
    expect(page.locator("progress")).to_be_visible(timeout=LIVE)
    expect(page.locator("h1 .badge")).to_have_text("running")
    tab.check_accessible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".notice")).to_have_text("The job is running and is being stopped.")
    # From here on the page is not loaded again.
    expect(page.locator("h1 .badge")).to_have_text("cancelled", timeout=LIVE)
    expect(page.locator(".timeline")).to_contain_text("Run cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_dead_letters_appear_and_are_replayed_as_a_group(tab: Tab, client: Client) -> None:
    # Those of other tests fail again whenever they are replayed.
    dead = "SELECT count(*) FROM jobs WHERE status = 'dead' AND error_class = 'POISON'"
    before = int(client.rows(dead)[0][0])
    page = tab.go("/console/dead-letters")
    group = page.locator("tbody tr").filter(has_text="POISON")
    jobs = group.locator(".number").first
    expect(group).to_have_count(1 if before else 0)
    ids = [client.submit_job("fail", {"class": "POISON", "times": 1}) for _ in range(4)]
    expect(jobs).to_have_text(str(before + 4), timeout=LIVE)
    expect(group).to_contain_text("Failing as asked, run 1.")
    tab.check_accessible()
    group.get_by_role("link", name="Replay").click()
    expect(page.get_by_text(f"{before + 4} dead letters match.")).to_be_visible()
    tab.check_accessible()
    page.get_by_role("button", name=f"Replay {before + 4}").click()
    expect(page.locator("[data-bulk-status]")).to_have_text(f"Done: {before + 4} replayed.")
    expect(page.locator("progress")).to_have_attribute("value", "1")
    page.get_by_role("link", name="Dead letters", exact=True).click()
    client.wait_ended(ids)
    if before:
        expect(jobs).to_have_text(str(before), timeout=4 * LIVE)
    else:
        expect(group).to_have_count(0, timeout=4 * LIVE)


def test_a_list_stands_still_while_something_is_ticked(tab: Tab, client: Client) -> None:
    first = client.submit_job("echo")
    page = tab.go("/console/jobs?type=echo")
    box = page.locator(f'[value="{first}"]')
    box.check()
    later = client.submit_job("echo")
    expect(page.get_by_text("Updates are paused while something is selected.")).to_be_visible()
    expect(box).to_be_checked()
    expect(page.locator(f'[value="{later}"]')).to_have_count(0)
    box.uncheck()
    expect(page.locator(f'[value="{later}"]')).to_have_count(1)


def test_a_failed_job_shows_where_and_is_edited_resubmitted_and_discarded(
    tab: Tab, client: Client
) -> None:
    job = client.submit_job("fail", {"class": "PERMANENT", "message": "cannot be"})
    page = tab.go(f"/console/jobs/{job}")
    page.on("dialog", agree)
    expect(page.locator("h1 .badge")).to_have_text("dead", timeout=LIVE)
    page.get_by_text("Traceback", exact=True).click()
    shown = page.get_by_label("Traceback of lease 1")
    expect(shown).to_contain_text("in fail")
    expect(shown).to_contain_text("Permanent: cannot be")
    tab.check_accessible()

    page.get_by_role("link", name="Edit and resubmit").click()
    payload = page.get_by_label("Payload, JSON")
    expect(payload).to_have_value(re.compile('"cannot be"'))
    payload.fill('{"class": "PERM')
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#error-payload")).to_contain_text("payload is not JSON")
    expect(payload).to_have_value('{"class": "PERM')
    tab.check_accessible()
    payload.fill('{"class": "PERMANENT", "times": 0}')
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".notice")).to_have_text("Submitted as a new job.")
    expect(page.locator("h1 .badge")).to_have_text("succeeded", timeout=LIVE)
    page.locator("dd").get_by_role("link", name=job[-6:]).click()

    page.get_by_role("button", name="Discard").click()
    expect(page.locator(".notice")).to_have_text("The dead letter is discarded.")
    expect(page.locator(".timeline")).to_contain_text("Discarded")
    expect(page.get_by_role("button", name="Replay")).to_have_count(0)
    tab.check_accessible()
