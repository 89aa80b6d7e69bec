"""``/docs`` in a browser: every operation is there, and works from there."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from loadtest.chaos.stack import Stack
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client

pytestmark = pytest.mark.long


def try_out(page: Page, operation: str) -> Locator:
    """Open an operation, execute it as it stands, and wait for the answer."""
    block = page.locator(f"#operations-{operation}")
    block.locator(".opblock-summary").click()
    block.locator("button.try-out__btn").click()
    block.locator("button.execute").click()
    return block.locator(".live-responses-table .response-col_status").last


def test_api_can_be_read_and_tried_with_and_without_a_key(
    tab: Tab, client: Client, platform_stack: Stack
) -> None:
    foreign: list[str] = []
    tab.page.on(
        "request",
        lambda sent: (
            foreign.append(sent.url) if not sent.url.startswith((tab.base, "data:")) else None
        ),
    )
    described = client.api.call("GET", "/openapi.json").document["paths"]
    operations = [one for path in described.values() for one in path.values() if "tags" in one]
    page = tab.go("/docs")
    expect(page.locator(".opblock")).to_have_count(len(operations))
    # As the tenant that who has no key acts for.
    expect(try_out(page, "Jobs-jobs_post_job")).to_have_text("202")
    assert client.api.call("GET", "/jobs?limit=1").document["jobs"]
    page.locator("button.authorize").click()
    scheme = page.locator(".auth-container", has_text="operatorKey")
    scheme.locator("input").fill(platform_stack.home.operator_key.read_text().strip())
    scheme.locator("button.authorize").click()
    scheme.locator(".btn-done").click()
    expect(try_out(page, "Operator-operator_get_tenants")).to_have_text("200")
    assert not foreign
