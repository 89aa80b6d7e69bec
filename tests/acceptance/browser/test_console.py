"""What holds for every page: for axe, on a phone, in the dark, by keyboard, with hostile data."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

from app.console.pages import NAVIGATION
from tests.acceptance.browser.conftest import Tab
from tests.acceptance.client import Client, new_role

pytestmark = pytest.mark.long

PAGES = (*(path for path, _, _ in NAVIGATION), "/tenant", "/console/sign-in", "/console/nothing")
PHONE = {"width": 390, "height": 844}
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth + 1"
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def something_to_show(client: Client) -> None:
    """A stack with nothing in it has empty pages, which would prove little."""
    client.api.call("POST", "/schedules", {"name": "nightly", "cron": "0 3 * * *", "type": "echo"})
    job = client.submit_job("fail", {"class": "PERMANENT"})
    client.wait_scored(client.submit(2, "general"))
    client.stack.wait(lambda: client.job(job).status == "dead", "a dead letter", 20)


@pytest.mark.usefixtures("something_to_show")
def test_every_page_is_accessible_and_fits_in_light_in_the_dark_and_on_a_phone(tab: Tab) -> None:
    for path in PAGES:
        page = tab.go(path)
        tab.check_accessible()
        page.emulate_media(color_scheme="dark")
        tab.check_contrast()
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]  # a TypedDict of theirs
        for _ in range(60):  # charts find their new size in a moment
            if page.evaluate(FITS):
                break
            page.wait_for_timeout(50)
        assert page.evaluate(FITS), f"{path} is wider than a phone"
        page.set_viewport_size({"width": 1280, "height": 900})


def test_the_console_works_by_keyboard(tab: Tab) -> None:
    page = tab.go("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to main content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="Jobs", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_title("Jobs · Fairline")
    theme = page.get_by_role("button", name="Switch between light and dark")
    theme.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_what_strangers_wrote_is_shown_as_text(tab: Tab, client: Client) -> None:
    role = new_role()
    answer = client.api.call(
        "POST",
        "/applications",
        {"candidate": HOSTILE, "role": role, "payload": {"letter": HOSTILE * 5_000}},
    )
    assert answer.status == 202, answer
    candidate = answer.document["id"]
    client.wait_scored([candidate])
    failed = client.submit_job("fail", {"class": "PERMANENT", "message": HOSTILE})
    client.stack.wait(lambda: client.job(failed).status == "dead", "the job to fail", 20)
    for path in (
        f"/console/leaderboard?tenant=demo&role={role}",
        f"/console/leaderboard/{candidate}",
        f"/console/jobs/{candidate}",
        f"/console/jobs/{failed}",
        "/console/jobs?status=dead",
        "/console/dead-letters",
        f"/tenant/jobs/{failed}",
        "/tenant",
    ):
        page = tab.go(path)
        page.wait_for_load_state("load")
        assert page.title() != "taken", path
        assert page.locator("main img, main script:not([type='application/json'])").count() == 0
    expect(
        tab.go(f"/console/leaderboard/{candidate}").get_by_role("heading", level=1)
    ).to_contain_text("<script>")


def test_who_is_not_an_operator_sees_no_console(
    tab: Tab, context: BrowserContext, client: Client
) -> None:
    """Called by another name than the machine's own, the console asks for a key."""
    # Chromium resolves every name below localhost to this machine; the console does not take it.
    stranger = f"http://console.localhost:{client.stack.port}"
    page = tab.page
    page.goto(f"{stranger}/console/jobs")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("API key").fill("fair_aaaaaaaa_" + "b" * 32)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("This API key is not known.")).to_be_visible()
    page.get_by_label("API key").fill(client.stack.home.operator_key.read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_title("Jobs · Fairline")
    assert page.evaluate("document.cookie") == ""  # no script can read the key
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{stranger}/console/jobs")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
