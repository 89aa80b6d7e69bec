"""Pages of the console as an operator's browser asks for them, in the test's own process."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from werkzeug.test import TestResponse

from app.console.done import NOTICE_COOKIE
from app.tenants.changes import issue_key
from tests.integration.door import opened
from tests.integration.house import House

HTML = {"Accept": "text/html,*/*;q=0.8"}


class Pages:
    """An operator who looks and acts."""

    def __init__(self, house: House, app: object, key: str) -> None:
        self.house = house
        self.app = app
        self._client = app.test_client(use_cookies=False)  # type: ignore[attr-defined]  # Flask's
        self._key = {"Authorization": f"Bearer {key}"}

    def get(self, path: str, key: str | None = None) -> TestResponse:
        return self._ask("GET", path, key)

    def post(self, path: str, key: str | None = None, **form: str) -> TestResponse:
        return self._ask("POST", path, key, form)

    def do(self, path: str, **form: str) -> str:
        """Send a form; what the next page says."""
        answer = self.post(path, **form)
        assert answer.status_code == 303, answer.text
        kept = answer.headers["Set-Cookie"].partition(";")[0]
        return unquote(kept.removeprefix(f"{NOTICE_COOKIE}="))

    def text(self, path: str) -> str:
        """What the page says, without its markup and with single spaces."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return text_of(answer.text)

    def _ask(
        self, method: str, path: str, key: str | None, form: dict[str, str] | None = None
    ) -> TestResponse:
        header = self._key if key is None else {"Authorization": f"Bearer {key}"} if key else {}
        answer: TestResponse = self._client.open(
            path, method=method, data=form, headers={**HTML, **header}
        )
        return answer


def text_of(page: str) -> str:
    """What people read of a page's content."""
    main = page.partition("<main")[2].partition(">")[2]
    words = html.unescape(re.sub(r"<[^>]*>", " ", main))
    return re.sub(r"\s+([.,;:])", r"\1", " ".join(words.split()))


@contextmanager
def console_of(house: House, folder: Path) -> Iterator[Pages]:
    """The console on the house's database, for somebody with an operator's key."""
    with opened(house, folder) as app:
        yield Pages(house, app, issue_key(house.engine, None, "console").key)
