"""Tenants in a browser: operators see who gets what, a tenant sees its own and no more."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import expect

from app.tenants.changes import create_tenant, issue_key
from app.tenants.terms import Change
from models.jobs.admit import admit_group
from models.jobs.cancel import cancel
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: A name for the tenants of each test.
NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Company:
    """A tenant with more work than the pool can do at once."""

    name: str
    id: int
    key: str
    jobs: list[str]


def submit(client: Client, tenant_id: int, job_type: str, pool: str, payload: object) -> str:
    entry = Submission(new_id(), tenant_id, job_type, pool, json.dumps(payload))
    admit_group(client.engine, [SubmissionGroup((entry,))], express=False)
    return entry.id


@pytest.fixture
def companies(client: Client) -> Iterator[dict[str, Company]]:
    """Two of them, one with three times the weight of the other, in a pool of their own jobs."""
    found, number = {}, next(NUMBERS)
    for side, weight in (("north", 30.0), ("south", 10.0)):
        name = f"{side}-{number}"
        tenant = create_tenant(client.engine, name, Change({"weight": weight}, {}))
        key = issue_key(client.engine, name, "browser").key
        found[side] = Company(name, tenant.id, key, [])
    for _ in range(60):
        for company in found.values():
            job = submit(client, company.id, "sleep", "medium", {"seconds": 8})
            company.jobs.append(job)
    yield found
    for company in found.values():
        for job in company.jobs:
            cancel(client.engine, company.id, job)


def test_operators_see_the_shares_of_two_tenants_side_by_side(
    tab: Tab, companies: dict[str, Company]
) -> None:
    page = tab.go("/console/tenants?pool=medium")
    table = page.get_by_role("region", name="Active tenants")
    for side, share in (("north", "75"), ("south", "25")):
        row = table.get_by_role("row").filter(has_text=companies[side].name)
        expect(row).to_contain_text(re.compile(rf"{share}\s%"))
        chart = page.locator("#shares-chart .yaxislayer-above")
        expect(chart).to_contain_text(companies[side].name)
    tab.check_accessible()
    table.get_by_role("link", name=companies["south"].name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(companies["south"].name)
    expect(page.get_by_role("region", name="By pool")).to_contain_text("medium")
    # What changes comes by itself.
    expect(page.get_by_role("region", name="Usage and cost by day")).to_contain_text("30 days")
    tab.check_accessible()


def test_a_tenant_sees_its_own_work_and_replays_its_dead_letter(
    tab: Tab, client: Client, companies: dict[str, Company]
) -> None:
    north, south = companies["north"], companies["south"]
    dead = submit(client, north.id, "fail", "short", {"class": "PERMANENT", "message": "<b>no</b>"})
    client.stack.wait(lambda: client.job(dead).status == "dead", "the job to die", 20)
    page = tab.page
    page.on("dialog", lambda dialog: dialog.accept())
    tab.go("/tenant")
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
    page.get_by_role("link", name="Sign in with a key").click()
    page.get_by_label("API key").fill(north.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(north.name)
    expect(page.get_by_text("Why your oldest job is waiting")).to_be_visible()
    expect(page.get_by_role("region", name="Newest dead letters")).to_contain_text("<b>no</b>")
    assert "south" not in page.content()
    assert not any(job in page.content() for job in south.jobs)
    tab.check_accessible()

    group = page.get_by_role("region", name="Dead letters by type and class")
    group.get_by_role("button", name="Replay all").click()
    expect(page.get_by_role("status")).to_contain_text("1 dead letter queued again.")
    client.stack.wait(lambda: client.job(dead).replays == 1, "the replay", 10)
    page.get_by_role("region", name="Latest jobs").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="Submitted")).to_be_visible()
    tab.check_accessible()

    tab.go(f"/tenant/jobs/{south.jobs[0]}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    tab.go("/tenant")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    tab.go("/tenant")
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
