"""The console called in the test's own process, by somebody who sits at the machine."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from werkzeug.datastructures import MultiDict
from werkzeug.test import TestResponse

from app.api.front_door import FrontDoor
from app.api.services import Services
from app.config import Settings
from app.console.page import PAGES, Asked, LivePage, render_parts
from app.factory import build_app
from tests.integration.house import House

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "same-origin"}
SCRIPT = {"Accept": "application/json", "Sec-Fetch-Site": "same-origin"}


class Console:
    """An application with an open console, and a browser without script."""

    def __init__(self, app: FrontDoor) -> None:
        self.app = app
        self._client = app.test_client()

    def get(self, path: str, headers: Mapping[str, str] = BROWSER) -> TestResponse:
        return self._client.get(path, headers=dict(headers))

    def text(self, path: str) -> str:
        """A page that is there, as HTML."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(
        self, path: str, form: Mapping[str, object], headers: Mapping[str, str] = BROWSER
    ) -> TestResponse:
        return self._client.post(path, data=dict(form), headers=dict(headers))

    def notice(self, answer: TestResponse) -> str:
        """What happened, as the next page tells it."""
        assert answer.status_code == 303, answer.text
        kept = re.search(
            r"fairline_notice=([^;]*)", "; ".join(answer.headers.getlist("Set-Cookie"))
        )
        assert kept is not None
        return unquote(kept[1])

    def parts(self, rule: str, args: Mapping[str, str], **values: str) -> dict[str, str]:
        """The live parts of a page, as viewers are told them."""
        with self.app.app_context():
            page: LivePage = self.app.extensions[PAGES][f"page:{rule}"]
            return render_parts(page, Asked(rule, values, MultiDict(args)))


@contextmanager
def console_of(house: House, blobs: Path) -> Iterator[Console]:
    """A console on the house's database."""
    url = house.engine.url.render_as_string(hide_password=False)
    settings = Settings(
        database_url=url,
        anonymous_tenant="demo",
        blob_url=str(blobs),
        db_pool_size=2,
        console_open=True,
    )
    app = build_app(settings)
    try:
        yield Console(app)
    finally:
        services: Services = app.extensions["fairline"]
        services.tenants.directory.close()
        services.events.close()
        services.engine.dispose()


def links(page: str, words: str) -> list[str]:
    """Where links with these words lead."""
    found = re.findall(r'<a [^>]*href="([^"]*)"[^>]*>([^<]*)', page)
    return [html.unescape(target) for target, told in found if told.strip().startswith(words)]


def ids_in(page: str) -> list[str]:
    """Jobs of a list, in its order."""
    return re.findall(r'name="id" value="([^"]{36})"', page)
