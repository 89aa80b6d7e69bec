"""A browser in front of the application, in the test's own process: pages, forms, live parts."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from flask import Flask
from werkzeug.datastructures import MultiDict
from werkzeug.test import TestResponse

from app.api.visitors import OPERATOR_COOKIE, TENANT_COOKIE
from app.console.page import PAGES, Asked, render_parts
from app.tenants.tenant import Tenant

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "same-origin"}
CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


class Browser:
    """Somebody who has signed in."""

    def __init__(self, app: Flask, key: str = "", *, operator: bool = False) -> None:
        self.app = app
        self._cookie = f"{OPERATOR_COOKIE if operator else TENANT_COOKIE}={key}" if key else ""
        self._client = app.test_client(use_cookies=False)

    def get(self, path: str) -> TestResponse:
        """Open an address."""
        return self._client.get(path, headers=self._headers())

    def page(self, path: str) -> str:
        """A page that must be there."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.mimetype == "text/html"
        return answer.text

    def send(self, path: str, form: Mapping[str, str]) -> TestResponse:
        """Press a button."""
        return self._client.post(path, headers=self._headers(), data=dict(form))

    def parts(self, rule: str, tenant: Tenant | None = None, **values: str) -> dict[str, str]:
        """What the live parts of a page are now, as they are rendered for whoever watches."""
        pages = self.app.extensions[PAGES].values()
        page = next(page for page in pages if page.rule == rule)
        with self.app.app_context():
            return render_parts(page, Asked(rule, values, MultiDict(), tenant))

    def _headers(self) -> dict[str, str]:
        return {**HTML, "Cookie": self._cookie} if self._cookie else dict(HTML)


def cells(page: str, row: str) -> list[str]:
    """The texts of the table row whose first cell says ``row``."""
    for found in ROW.finditer(page):
        texts = [text_of(cell) for cell in CELL.findall(found[1])]
        if texts and texts[0] == row:
            return texts
    raise AssertionError(f"no row {row!r} in:\n{text_of(page)}")


def text_of(markup: str) -> str:
    """What a reader sees of it, in one line."""
    return " ".join(html.unescape(TAG.sub(" ", markup)).replace("\u202f", " ").split())
