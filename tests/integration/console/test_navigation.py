"""No page of the menu is empty: without any data it says what will be there and how to get it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.console.pages import ELSEWHERE, NAVIGATION
from app.tenants.changes import issue_key
from tests.support.browsing import Browser, text_of
from tests.support.database_fixture import DatabaseFixture

#: What is said, and what helps: a command, a request, or the button of a form.
SAID = {
    "/": ("No job has run in the last hour.", "<code>curl"),
    "/console/leaderboard": ("No application for general at demo has been scored yet.", ">Submit"),
    "/console/jobs": ("There are no jobs yet.", "<code>curl"),
    "/console/dead-letters": ("No dead letters", "submit a job of type <code>fail</code>"),
    "/console/tenants": ("No tenant has work", "<code>POST /jobs</code>"),
    "/console/workers": ("No workers found.", "<code>make up</code>"),
    "/console/schedules": ("No schedules yet.", ">Create</button>"),
    "/console/limits": ("No quotas declared", "<code>flask --app app quotas set"),
    "/console/audit": ("Nothing was changed yet.", "<code>flask --app app audit export"),
    "/console/lab": ("No results yet.", "<pre>QUICK=1 make lab"),
}


def test_every_page_of_the_menu_is_known_here() -> None:
    paths = [path for path, *_ in (*NAVIGATION, *ELSEWHERE)]
    assert paths == list(SAID)
    assert "/console/lab" not in [path for path, *_ in NAVIGATION], "empty until it has run"


@pytest.mark.parametrize("path", SAID)
def test_a_page_without_data_says_how_to_get_some(
    operator: Browser,
    database: DatabaseFixture,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(operator.app.config, "LAB_RESULTS", str(tmp_path))
    said, helps = SAID[path]
    page = operator.page(path)
    assert said in text_of(page)
    assert helps in page.split("<main", 1)[1]


def test_the_pages_of_a_tenant_say_it_too(operator: Browser, database: DatabaseFixture) -> None:
    tenant = Browser(operator.app, issue_key(database.engine, "other").key)
    page = tenant.page("/tenant")
    for said in (
        "You have not submitted anything yet",
        "No job of yours has ended yet.",
        "None yet.",
    ):
        assert said in text_of(page)
    for target in re.findall(r'<a href="(/tenant[^"#]*)(?:#[^"]*)?"', page.split("<main")[0]):
        assert tenant.get(target).status_code == 200
    assert "No schedules yet." in tenant.text("/tenant/schedules")
    header = page.split("<main")[0]
    assert "Load lab" not in header and "Flower" not in header
