"""Flower in a browser: how long the lines are, which workers there are, and what failed."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.acceptance.browser.conftest import PATIENCE_MILLISECONDS
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

POOLS_SERVED = ("short", "medium", "long", "gpu")
JOBS, SECONDS = 120, 20.0
#: So many jobs of the type ``fail`` share a message.
FAILING = 6


@pytest.fixture
def page(context: BrowserContext, client: Client) -> Page:
    """Flower's own pages, which are not ours to judge but to be found working."""
    opened = context.new_page()
    opened.set_default_timeout(PATIENCE_MILLISECONDS)
    return opened


@pytest.fixture(autouse=True)
def flower_listens(client: Client) -> None:
    """Flower knows only what it has heard."""
    client.stack.wait_ready()

    def hears_all() -> bool:
        with suppress(OSError):
            known = {name.partition("@")[0] for name in client.flower_workers()}
            return {f"worker-{pool}-1" for pool in POOLS_SERVED} <= known
        return False

    client.stack.wait(hears_all, "Flower to hear the workers", 60)


@pytest.fixture
def line(client: Client) -> Iterator[list[str]]:
    """More jobs than the worker has slots, and the broker takes of them."""
    ids = client.submit_sleeps(JOBS, SECONDS)
    client.wait_running(ids, 1)
    yield ids
    for job_id in ids:
        client.api.call("DELETE", f"/jobs/{job_id}")
    ended = ("cancelled", "succeeded")
    client.stack.wait(
        lambda: sum(client.count(ids, status) for status in ended) == JOBS, "the line to end", 60
    )


def flower(client: Client, path: str) -> str:
    return f"http://127.0.0.1:{client.stack.flower_port}{path}"


def number_in(page: Page, queue: str, column: int) -> int:
    """A number of the page of queues, which has to be loaded again to change; -1 without one."""
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name=queue, exact=True))
    if not row.count():
        return -1
    text = row.get_by_role("cell").nth(column).inner_text()
    return int(text) if text.isdecimal() else -1


def test_queues_show_the_window_and_the_line_behind_it(
    page: Page, client: Client, line: list[str]
) -> None:
    address = flower(client, "/broker")

    def messages_of(queue: str) -> int:
        page.goto(address)
        return number_in(page, queue, 1)

    waiting = "medium: waiting in PostgreSQL"
    client.stack.wait(lambda: messages_of(waiting) > 0, "a line in Flower", 30)
    queued = client.count(line, "queued")
    assert queued > JOBS / 2, "most of them wait in the database"
    assert abs(messages_of(waiting) - queued) <= JOBS / 10
    # RabbitMQ's own figures are some seconds old.
    client.stack.wait(lambda: messages_of("medium") > 0, "the broker's window in Flower", 60)
    assert messages_of("medium") <= JOBS - queued, "fetched by the worker, or about to be"
    assert number_in(page, "medium", 4) == 1, "consumers"
    for pool in ("short", "long", "gpu"):
        assert messages_of(f"{pool}: waiting in PostgreSQL") == 0


def test_workers_of_all_pools_are_listed(page: Page, client: Client) -> None:
    page.goto(flower(client, "/workers"))
    for pool in POOLS_SERVED:
        row = page.get_by_role("row", name=re.compile(f"worker-{pool}-1"))
        expect(row).to_contain_text("Online")


def test_failed_job_is_a_failed_task_and_one_that_waits_for_a_retry_is_not(
    page: Page, client: Client
) -> None:
    failing = client.submit_job("fail", {"class": "PERMANENT", "message": "no such role"})
    client.stack.wait(lambda: client.job(failing).status == "dead", "the job to fail", 20)
    # A worker gathers its events for a moment, and the page does not load itself again.
    client.stack.wait(lambda: task_state(client, failing) == "FAILURE", "Flower", 20)
    page.goto(flower(client, f"/task/{failing}"))
    expect(page.get_by_text("FAILURE", exact=True)).to_be_visible()
    expect(page.locator("#task-page")).to_contain_text("PERMANENT: no such role")
    page.goto(flower(client, "/tasks"))
    page.get_by_role("button", name="Failed").click()
    expect(page.get_by_role("row").filter(has_text=failing)).to_contain_text("FAILURE")

    retried = client.submit_job("fail", {"class": "APP_ERROR", "times": 1})
    client.stack.wait(lambda: client.job(retried).attempt == 1, "its first run", 20)
    client.stack.wait(lambda: task_state(client, retried) in {"RETRY", "SUCCESS"}, "Flower", 20)
    client.stack.wait(lambda: client.job(retried).status == "succeeded", "its second run", 30)
    client.stack.wait(lambda: task_state(client, retried) == "SUCCESS", "Flower", 20)


def test_every_failed_job_of_a_message_is_a_failed_task(client: Client) -> None:
    payload = json.dumps({"class": "PERMANENT", "message": "together"})
    jobs = tuple(Submission(new_id(), 1, "fail", "short", payload) for _ in range(FAILING))
    admit_group(client.engine, [SubmissionGroup(jobs)], express=False)
    ids = [job.id for job in jobs]
    client.stack.wait(lambda: client.count(ids, "dead") == FAILING, "the jobs to fail", 30)
    for job_id in ids:
        client.stack.wait(lambda one=job_id: task_state(client, one) == "FAILURE", "Flower", 20)


def task_state(client: Client, job_id: str) -> str:
    """The state of a task on its page."""
    try:
        with urllib.request.urlopen(flower(client, f"/task/{job_id}"), timeout=10) as answer:
            found = re.search(r'<span class="badge[^>]*>\s*([A-Z]+)\s*<', answer.read().decode())
    except urllib.error.HTTPError:
        return ""  # it has not heard of it
    return found[1] if found else ""
