"""The page of workers in a browser: one dies, one is drained, and both are replaced."""

from __future__ import annotations

import os
import re
import signal
from urllib.parse import unquote

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from app.console.formatting import short_id
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: A process counts as lost after ten seconds, another one takes some to start, and on a busy
#: machine the page looks every twenty.
PATIENCE_MILLISECONDS = 40_000


def row_of(page: Page, pid: int) -> Locator:
    """The row of a worker, by the process that it is."""
    return page.locator(f'tr[data-worker$=":{pid}"]')


def see(where: Locator, text: str | re.Pattern[str]) -> None:
    """Until the page shows it."""
    expect(where).to_contain_text(text, timeout=PATIENCE_MILLISECONDS)


def test_a_worker_dies_another_is_drained_and_both_are_replaced(tab: Tab, client: Client) -> None:
    page = tab.go("/console/workers")
    pids = client.stack.pids()
    killed, drained = pids["worker-short-2"], pids["worker-medium-1"]
    for pid in (killed, drained):
        see(row_of(page, pid), "alive")
    # A forked worker is one row, whatever it is made of.
    see(row_of(page, pids["worker-long-1"]), "processes")
    tab.check_accessible()

    os.kill(killed, signal.SIGKILL)
    job_id = client.submit_job("sleep", {"seconds": 40})
    see(row_of(page, drained), short_id(job_id))
    questions: list[str] = []
    page.on("dialog", lambda dialog: (questions.append(dialog.message), dialog.accept()))
    row_of(page, drained).get_by_role("button", name="Drain").click()
    see(page.get_by_role("status"), "was asked to drain")
    assert "finishes what it runs" in questions[0]
    see(row_of(page, drained), re.compile("drain requested|draining"))

    successor = wait_for_another(client, "worker-short-2", killed)
    see(row_of(page, successor), "alive")
    see(row_of(page, killed), "lost")

    expect(row_of(page, drained)).to_have_count(0, timeout=2 * PATIENCE_MILLISECONDS)
    successor = wait_for_another(client, "worker-medium-1", drained)
    see(row_of(page, successor), "alive")
    job = client.job(job_id)
    assert (job.status, job.lease, job.attempt, job.crashes) == ("succeeded", 1, 1, 0)
    assert job.worker.endswith(f":{drained}"), "what it ran was to end there"


def wait_for_another(client: Client, name: str, before: int) -> int:
    """The process that took the place of another."""
    client.stack.wait(
        lambda: client.stack.pids().get(name) not in (None, before), f"another {name}", 30
    )
    return client.stack.pid(name)


def test_flower_shows_the_same_workers_by_the_names_that_the_console_links_to(
    tab: Tab, context: BrowserContext, client: Client
) -> None:
    page = tab.go("/console/workers")
    links = page.locator("main table").get_by_role("link", name="Flower")
    expect(links.first).to_be_visible()
    found = links.evaluate_all("links => links.map((link) => link.href)")
    nodes = {unquote(address.rpartition("/")[2]) for address in found}
    client.stack.wait(
        lambda: nodes <= set(client.flower_workers()), "Flower to know all workers", 20
    )
    elsewhere = context.new_page()
    elsewhere.goto(found[0])
    expect(elsewhere.locator("body")).to_contain_text(unquote(found[0].rpartition("/")[2]))
