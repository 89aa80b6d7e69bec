"""A real browser in front of a real stack. Whatever it complains about fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from loadtest.chaos.stack import Stack
from tests.acceptance.client import Client, client_of

NOT_INSTALLED = "chromium is not installed: apt-get install chromium"
#: Nothing that reaches for the network, and root may start it.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
#: A page that takes longer hangs; a busy machine is slower than any page should be.
PATIENCE_MILLISECONDS = 60_000


def find_chromium() -> str:
    """Where it is; a missing one is a skip at home and a failure in CI."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(NOT_INSTALLED)
        pytest.skip(NOT_INSTALLED)
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    expect.set_options(timeout=PATIENCE_MILLISECONDS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()


class Tab:
    """A visitor's tab: the page, and what the browser had to say about it."""

    def __init__(self, page: Page, stack: Stack) -> None:
        self.page = page
        self.base = f"http://127.0.0.1:{stack.port}"
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> Page:
        """Open a page of the stack."""
        self.page.goto(f"{self.base}{path}")
        return self.page

    def check_accessible(self) -> None:
        """Names, roles, contrast: what axe finds wrong."""
        result = Axe().run(
            self.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        )
        assert result.violations_count == 0, result.generate_report()

    def check_contrast(self) -> None:
        """Colours alone, for the same page in another theme."""
        result = Axe().run(
            self.page, options={"runOnly": {"type": "rule", "values": ["color-contrast"]}}
        )
        assert result.violations_count == 0, result.generate_report()

    def _hear(self, message: ConsoleMessage) -> None:
        # The browser itself tells of answers such as 404, which a test may be about.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    opened = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    yield opened
    opened.close()


@pytest.fixture
def tab(context: BrowserContext, platform_stack: Stack) -> Iterator[Tab]:
    """Somebody at the machine, who is an operator there."""
    platform_stack.wait_ready()
    opened = Tab(context.new_page(), platform_stack)
    yield opened
    assert not opened.complaints, opened.complaints


@pytest.fixture
def client(platform_stack: Stack) -> Iterator[Client]:
    """The API and the rows behind what the browser shows."""
    with client_of(platform_stack) as found:
        yield found
