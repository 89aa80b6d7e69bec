"""A browser in front of the application, in the test's own process: pages, forms, live parts.

It keeps no cookies but the session of somebody who has signed in with a key: what a page says is of
that page, not of the form that was sent before.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from werkzeug.datastructures import MultiDict
from werkzeug.test import TestResponse

from app.api.auth.visitors import OPERATOR_COOKIE, TENANT_COOKIE
from app.api.services import Services
from app.console.page import NOTICE_COOKIE, PAGES, PageRequest, render_parts
from app.server.wsgi import FairlineApp
from app.tenants.changes import issue_key
from app.tenants.keys import presented
from app.tenants.tenant import TenantProfile
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import KEPT
from tests.support.http_client import opened

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "same-origin"}
#: What a page's script sends.
SCRIPT = {"Accept": "application/json", "Sec-Fetch-Site": "same-origin"}
NOTICE = re.compile(rf"{NOTICE_COOKIE}=([^;]*)")
CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")


class Browser:
    """Somebody who has signed in, or with no key nobody."""

    def __init__(self, app: FairlineApp, key: str = "", *, operator: bool = False) -> None:
        self.app = app
        cookie = OPERATOR_COOKIE if operator else TENANT_COOKIE
        token = session_of_key(app, key) if presented(key) else key
        self._cookie = f"{cookie}={token}" if key else ""
        self._client = app.test_client(use_cookies=False)

    def get(self, path: str) -> TestResponse:
        """Open an address."""
        return self._client.get(path, headers=self._headers(HTML))

    def page(self, path: str) -> str:
        """A page that must be there, as HTML."""
        return html_of(self.get(path))

    def text(self, path: str) -> str:
        """What a reader sees of a page that must be there."""
        return text_of(self.page(path))

    def post(
        self, path: str, form: Mapping[str, object], headers: Mapping[str, str] = HTML
    ) -> TestResponse:
        """Press a button."""
        return self._client.post(path, headers=self._headers(headers), data=dict(form))

    def do(self, path: str, **form: str) -> str:
        """Press a button; what the next page says."""
        return self.notice(self.post(path, form))

    def notice(self, answer: TestResponse) -> str:
        """What has happened, as the next page tells it."""
        assert answer.status_code == 303, answer.text
        kept = NOTICE.search("; ".join(answer.headers.getlist("Set-Cookie")))
        assert kept is not None
        told = unquote(kept[1])
        headers = self._headers(HTML, kept[0])
        page = html_of(self._client.get(answer.headers["Location"], headers=headers))
        assert f'<p class="notice">{told}</p>' in html.unescape(page)
        return told

    def parts(
        self,
        rule: str,
        args: Mapping[str, str] | None = None,
        tenant: TenantProfile | None = None,
        **values: str,
    ) -> dict[str, str]:
        """What the live parts of a page are now, as they are rendered for whoever watches."""
        pages = self.app.extensions[PAGES].values()
        page = next(page for page in pages if page.rule == rule)
        with self.app.app_context():
            return render_parts(page, PageRequest(rule, values, MultiDict(args or {}), tenant))

    def _headers(self, headers: Mapping[str, str], *cookies: str) -> dict[str, str]:
        sent = "; ".join(cookie for cookie in (self._cookie, *cookies) if cookie)
        return {**headers, "Cookie": sent} if sent else dict(headers)


def session_of_key(app: FairlineApp, key: str) -> str:
    """The token of a new session, as signing in with the key begins it."""
    sent = presented(key)
    assert sent is not None
    services: Services = app.extensions["fairline"]
    return services.sessions.begin(sent.id)


@contextmanager
def console_of(database: DatabaseFixture, blobs: Path, *, needs_key: bool) -> Iterator[Browser]:
    """The console on the database, for an operator with a key or at the machine."""
    anonymous = "" if needs_key else "demo"
    with opened(database, blobs, anonymous=anonymous, console_open=not needs_key) as app:
        key = ""
        if needs_key:
            key = issue_key(database.engine, None, KEPT).key
        yield Browser(app, key, operator=True)


def html_of(answer: TestResponse) -> str:
    """The page that the answer must be."""
    assert answer.status_code == 200, answer.text
    assert answer.mimetype == "text/html"
    assert "<main" in answer.text
    return answer.text


def text_of(markup: str) -> str:
    """What a reader sees of it, in one line; of a page, its content."""
    before, main, content = markup.partition("<main")
    seen = content.partition(">")[2] if main else before
    words = " ".join(html.unescape(TAG.sub(" ", seen)).split())
    return re.sub(r"\s+([.,;:])", r"\1", words)


def cells(page: str, row: str) -> list[str]:
    """The texts of the table row whose first cell says ``row``."""
    for found in ROW.finditer(page):
        texts = [text_of(cell) for cell in CELL.findall(found[1])]
        if texts and texts[0] == row:
            return texts
    raise AssertionError(f"no row {row!r} in:\n{text_of(page)}")


def links(page: str, words: str) -> list[str]:
    """Where links with these words lead."""
    found = re.findall(r'<a [^>]*href="([^"]*)"[^>]*>([^<]*)', page)
    return [html.unescape(target) for target, told in found if told.strip().startswith(words)]


def ids_in(page: str) -> list[str]:
    """Jobs of a list, in its order."""
    return re.findall(r'name="id" value="([^"]{36})"', page)
