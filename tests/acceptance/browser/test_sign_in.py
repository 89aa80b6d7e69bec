"""Sign-in by OpenID Connect in a real browser, with its cookies, redirects and policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from app.stack.ports import free_port
from loadtest.chaos.stack import Stack
from tests.acceptance.browser.conftest import Tab
from tests.support.api_server import serving
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

pytestmark = pytest.mark.long


def test_operator_signs_in_with_a_provider_and_out_again(
    context: BrowserContext, platform_stack: Stack, tmp_path: Path
) -> None:
    with OidcProvider() as provider, platform_stack.engine() as engine:
        port = free_port()
        settings = {
            "port": port,
            "anonymous_tenant": "",
            # The provider is at another address: for the browser another site.
            "public_url": f"http://localhost:{port}",
            "oidc_issuer": provider.issuer,
            "oidc_client_id": CLIENT_ID,
            "oidc_client_secret": CLIENT_SECRET,
            "oidc_operators": "admins",
        }
        url = engine.url.render_as_string(hide_password=False)
        with serving(url, tmp_path, api_workers=1, **settings):
            tab = Tab(context.new_page(), platform_stack)
            tab.base = settings["public_url"]
            page = tab.go("/console/workers")
            expect(page).to_have_url(f"{tab.base}/console/sign-in?next=/console/workers")
            tab.check_accessible()
            button = page.get_by_role("link", name="Sign in with")
            provider.user = {"sub": "bob", "groups": []}
            button.click()
            expect(page.get_by_role("alert")).to_contain_text("may not sign in here")
            tab.check_accessible()
            provider.user = {"sub": "alice", "groups": ["admins"]}
            button.click()
            expect(page).to_have_url(f"{tab.base}/console/workers")
            names = {cookie["name"] for cookie in context.cookies()}
            assert "fairline_operator" in names and "fairline_oidc" not in names
            page.get_by_role("button", name="Sign out").click()
            expect(button).to_be_visible()
            tab.go("/")
            expect(button).to_be_visible()
            assert not tab.complaints, tab.complaints
