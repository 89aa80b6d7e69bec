"""What the router counts, and what it takes for a cell that is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.cells import tenant_changes
from app.cells.key_lookup import KeyLookup
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import issue_key
from models.store.errors import StateStoreUnavailable
from tests.integration.conftest import fresh_database
from tests.support.away_tenants import close_tenant, open_tenant
from tests.support.installation import Installation, installed
from tests.support.several_cells import unreachable
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def cells(
    postgres: Running[EmbeddedPostgres], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Two cells."""
    folder: Path = tmp_path_factory.mktemp("cells")
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        yield stack.enter_context(installed(urls, folder))


@pytest.fixture
def operator(cells: Installation) -> str:
    return issue_key(cells.registry, None).key


def spread(cells: Installation, name: str) -> None:
    """Let a tenant of the first cell live in both."""
    cells.copy(name, "cell-1", "cell-2", share=0.5)
    version = cells.place(name, cell_1=1.0, cell_2=1.0)
    for database in cells.databases.values():
        open_tenant(database.engine, cells.tenant_id(name, "cell-1"), version)
    cells.refresh()


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
def test_a_submission_that_is_sent_again_spends_its_rate_once(
    cells: Installation, path: str
) -> None:
    name = f"slow{path.count('/')}"
    key = cells.tenant(name, "cell-1", submit_per_second=0.001, submit_burst=2)
    cells.refresh()
    tenant_id, engine = cells.tenant_id(name, "cell-1"), cells.databases["cell-1"].engine
    close_tenant(engine, tenant_id, 1)
    job = {"type": "echo", "payload": {}}
    body = {"jobs": [job]} if path == "/jobs/batch" else job
    # It is tried for more than a second, about thirty times.
    moved = cells.call(key, "POST", path, body)
    assert (moved.status_code, moved.get_json()["code"]) == (503, "TENANT_MOVED")
    open_tenant(engine, tenant_id, 1)
    assert cells.call(key, "POST", path, body).status_code in (200, 202)
    assert cells.call(key, "POST", path, body).status_code == 429


def test_a_cell_whose_connections_are_all_in_use_is_not_away(cells: Installation) -> None:
    app = cells.router.app_of("cell-2")
    assert app is not None
    engine = app.extensions["fairline"].engine
    with ExitStack() as stack:
        for _ in range(engine.pool.size()):
            stack.enter_context(engine.connect())
        cells.router.served.probe("cell-2")


def test_a_cell_without_a_database_is_away(
    cells: Installation, postgres: Running[EmbeddedPostgres]
) -> None:
    database = cells.databases["cell-2"]
    with unreachable(postgres.service, database.engine), pytest.raises(StateStoreUnavailable):
        cells.router.served.probe("cell-2")
    cells.router.served.probe("cell-2")


def test_a_wrong_limit_is_refused_and_not_an_error_of_the_server(
    cells: Installation, operator: str
) -> None:
    for path in ("/operator/audit?limit=x", "/operator/tenants?limit=x"):
        assert cells.call(None, "GET", path).status_code == 401, path
        assert cells.call(operator, "GET", path).status_code == 422, path


def test_a_list_of_what_is_there_is_counted_by_a_cell_that_is_there(
    cells: Installation, postgres: Running[EmbeddedPostgres]
) -> None:
    key = cells.tenant("counted", "cell-1", requests_per_second=0.2)
    spread(cells, "counted")
    path = "/jobs?partial=true"
    with unreachable(postgres.service, cells.databases["cell-2"].engine):
        cells.router.suspect("cell-2")
        wait_for(lambda: cells.router.is_away("cell-2"))
        statuses = Counter(cells.call(key, "GET", path).status_code for _ in range(12))
    wait_for(lambda: not cells.router.is_away("cell-2"))
    assert statuses[429] >= 9, statuses


def test_a_key_that_was_issued_is_shown_though_another_cell_has_not_got_it(
    cells: Installation, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells.tenant("shown", "cell-1")
    spread(cells, "shown")

    def fails(*_: object) -> None:
        raise StateStoreUnavailable

    monkeypatch.setattr(tenant_changes, "copy_to", fails)
    issued = cells.call(operator, "POST", "/operator/tenants/shown/keys", {})
    assert issued.status_code == 201 and issued.get_json()["key"]
    assert issued.headers["Fairline-Missing-Cells"] == "cell-2"
    changed = cells.call(operator, "PATCH", "/operator/tenants/shown", {"weight": 2})
    assert changed.status_code == 503, "that can be repeated"


def test_a_key_that_only_a_cell_that_is_away_may_know_is_not_looked_for_at_each_request(
    cells: Installation, postgres: Running[EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = KeyLookup._cells_to_ask

    def counting(self: KeyLookup) -> object:
        asked.append("all cells")
        return ask(self)

    with unreachable(postgres.service, cells.databases["cell-2"].engine):
        cells.router.suspect("cell-2")
        wait_for(lambda: cells.router.is_away("cell-2"))
        monkeypatch.setattr(KeyLookup, "_cells_to_ask", counting)
        for _ in range(10):
            assert cells.submit("fair_abcdefgh_" + "x" * 32).status_code == 503
    assert 1 <= len(asked) <= 4
    wait_for(lambda: not cells.router.is_away("cell-2"))


def test_a_form_goes_to_the_cell_of_its_page_whatever_the_cookie_says(
    cells: Installation, operator: str
) -> None:
    cookie = {"Cookie": "fairline_cell=cell-1", "Accept": "text/html"}
    own = {**cookie, "Sec-Fetch-Site": "same-origin"}
    page = cells.call(operator, "GET", "/console/workers?shown=cell-2", headers=own)
    assert '<body data-cell="cell-2"' in page.text and "Set-Cookie" not in page.headers
    assert (
        '<body data-cell="cell-1"'
        in cells.call(operator, "GET", "/console/workers", headers=own).text
    )
    unknown = cells.call(operator, "POST", "/console/jobs/selected?shown=none", headers=own)
    assert unknown.status_code == 404, "and not the home cell"
    named = cells.call(operator, "POST", "/console/jobs/selected?cell=cell-2", headers=own)
    assert "fairline_cell" not in named.headers.get("Set-Cookie", "")
