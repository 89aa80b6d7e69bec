"""Operators of three cells: sums, lists, changes in all cells, metrics, pages."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from app import application, config
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import create_tenant, issue_key
from models.audit import Act, Actor, acting
from models.jobs.ids import new_id
from tests.integration.conftest import fresh_database
from tests.support.browsing import HTML, NOTICE, text_of
from tests.support.browsing import cells as cells_of_row
from tests.support.event_rows import bring, locked_out
from tests.support.installation import Installation, installed
from tests.support.several_cells import NAMES
from tests.support.waiting import wait_for

NEXT = re.compile(r'<([^>]+)>; rel="next"')


class Operated:
    """An installation of three cells and an operator, whose key is of the first one."""

    def __init__(self, cells: Installation) -> None:
        self.cells = cells
        self.router = cells.router
        self.databases = cells.databases
        self.operator = issue_key(cells.registry, None, "op").key

    def call(
        self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str
    ) -> TestResponse:
        return self.cells.call(key or self.operator, method, path, body, headers)

    def visit(self, path: str, key: str | None = None) -> str:
        """A page, as a browser gets it."""
        answer = self.call("GET", path, key=key, **HTML)
        assert answer.status_code == 200, answer.text
        return answer.text

    def send(self, path: str, key: str | None = None, **form: str) -> TestResponse:
        """Press a button of a page."""
        headers = {"Authorization": f"Bearer {key or self.operator}", **HTML}
        return Client(self.router).post(path, headers=headers, data=form)

    def spread(self, name: str) -> str:
        """A tenant that lives in all cells; a key of it."""
        key = self.cells.tenant(name, "cell-1")
        for cell in NAMES[1:]:
            self.cells.copy(name, "cell-1", cell, 1 / 3)
        self.databases["cell-1"].execute("UPDATE tenants SET share = 1.0 / 3 WHERE name = %s", name)
        self.cells.place(name, cell_1=1.0, cell_2=1.0, cell_3=1.0)
        self.cells.refresh()
        return key

    def tenant_id(self, name: str) -> int:
        return self.cells.tenant_id(name, "cell-1")

    def column(self, name: str, column: str) -> list[Any]:
        """A column of the tenant in every cell."""
        return [
            self.databases[cell]
            .query(f"SELECT {column} AS value FROM tenants WHERE name = %s", name)[0]
            .value
            for cell in NAMES
        ]


@pytest.fixture(scope="module")
def installation(
    postgres: Running[EmbeddedPostgres], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Operated]:
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in NAMES]
        folder = tmp_path_factory.mktemp("cells")
        cells = stack.enter_context(installed(urls, folder, anonymous_tenant=""))
        cells.registry_execute("UPDATE cells SET region = 'us' WHERE name = 'cell-3'")
        cells.refresh()
        yield Operated(cells)


def test_the_overview_has_every_cell_and_the_sums(
    installation: Operated, postgres: Running[EmbeddedPostgres]
) -> None:
    installation.spread("summed")
    for number, cell in enumerate(NAMES, 1):
        for _ in range(number):
            installation.databases[cell].submit(tenant_id=installation.tenant_id("summed"))

    document = installation.call("GET", "/operator/overview").get_json()

    assert [cell["name"] for cell in document["cells"]] == list(NAMES)
    assert [cell["region"] for cell in document["cells"]] == ["", "", "us"]
    assert [cell["figures"]["waiting"] for cell in document["cells"]] == [1, 2, 3]
    assert (document["total"]["waiting"], document["missing"]) == (6, [])
    with locked_out(installation.databases["cell-2"], postgres):
        document = installation.call("GET", "/operator/overview").get_json()
        assert (document["total"]["waiting"], document["missing"]) == (4, ["cell-2"])
        assert document["cells"][1]["figures"] is None
        page = installation.visit("/console/cells")
        assert "its tenants get 503" in text_of(page)

    def has_sums() -> bool:
        with suppress(AssertionError):
            return bool(cells_of_row(installation.visit("/console/cells"), "All"))
        return False

    # It may be taken for away only now, by a look that began before.
    wait_for(lambda: not installation.router.is_away("cell-2") and has_sums())
    page = installation.visit("/console/cells")
    assert cells_of_row(page, "cell-3")[:2] == ["cell-3", "us"]
    assert cells_of_row(page, "All")[2] == "6"


def test_the_console_says_which_cell_it_shows(installation: Operated) -> None:
    page = installation.visit("/console/workers")
    assert 'aria-label="Cell cell-1: choose another one"' in page
    assert 'href="/console/cells"' in page.split("<main")[0]
    chosen = installation.call("GET", "/console/cells?cell=cell-3", **HTML)
    assert 'aria-label="Cell cell-3: choose another one"' in chosen.text
    assert "fairline_cell=cell-3" in chosen.headers["Set-Cookie"]


def test_tenants_of_all_cells_are_listed_once_by_name(installation: Operated) -> None:
    installation.spread("everywhere")
    for number, cell in enumerate((*NAMES, *NAMES)):
        create_tenant(installation.databases[cell].engine, f"alone-{number}")

    names, path = [], "/operator/tenants?limit=2"
    while path:
        answer = installation.call("GET", path)
        names += [tenant["name"] for tenant in answer.get_json()["tenants"]]
        link = answer.headers.get("Link")
        path = NEXT.fullmatch(link)[1] if link else ""  # type: ignore[index]

    assert names == sorted(set(names))
    assert {"everywhere", *(f"alone-{number}" for number in range(6))} <= set(names)


def test_terms_and_suspension_are_changed_in_all_cells(installation: Operated) -> None:
    key = installation.spread("acme")

    changed = installation.call(
        "PATCH", "/operator/tenants/acme", {"weight": 4, "limits": {"medium": {"depth": 9}}}
    )

    assert changed.status_code == 200
    assert installation.column("acme", "weight") == [4.0] * 3
    assert installation.column("acme", "round(share::numeric, 4)::float8") == [0.3333] * 3
    for cell in NAMES:
        limits = installation.databases[cell].query("SELECT depth FROM tenant_limits")
        assert [row.depth for row in limits] == [9]
    document = installation.call("GET", "/operator/tenants/acme").get_json()
    assert (document["weight"], document["effective"]["weight"]) == (4.0, 4.0)
    assert document["effective"]["depth"]["medium"] == 9, "not divided"

    assert installation.call("POST", "/operator/tenants/acme/suspend").status_code == 200
    assert None not in installation.column("acme", "suspended_at")
    assert installation.call("POST", "/operator/tenants/acme/resume").status_code == 200
    assert installation.column("acme", "suspended_at") == [None] * 3
    assert installation.call("GET", "/jobs", key=key).status_code == 200


def test_a_key_is_issued_and_revoked_in_all_cells(installation: Operated) -> None:
    installation.spread("keyed")
    made = installation.call("POST", "/operator/tenants/keyed/keys").get_json()

    listed = installation.call("GET", "/jobs", key=made["key"])
    assert (listed.status_code, listed.get_json()) == (200, {"jobs": []})
    assert installation.call("DELETE", f"/operator/keys/{made['id']}").status_code == 200
    for cell in NAMES:
        [row] = installation.databases[cell].query(
            "SELECT revoked_at FROM api_keys WHERE id = %s", made["id"]
        )
        assert row.revoked_at is not None
    assert installation.call("DELETE", "/operator/keys/abcd1234").status_code == 404


def test_a_form_of_the_console_changes_all_cells(installation: Operated) -> None:
    installation.spread("formed")
    answer = installation.send("/console/tenants/formed", act="key", label="by hand")
    assert answer.status_code == 201, answer.text
    for cell in NAMES:
        names = installation.databases[cell].query(
            "SELECT name FROM api_keys WHERE tenant_id = %s", installation.tenant_id("formed")
        )
        assert "by hand" in [row.name for row in names]


def test_acts_of_all_cells_are_listed_newest_first(installation: Operated) -> None:
    actor = Actor(via="api", who="somebody", role="operator", acts=(Act.TENANT_CREATE,))
    with acting(actor):
        for number, cell in enumerate((*NAMES, *NAMES)):
            create_tenant(installation.databases[cell].engine, f"acted-{number}")

    for limit in (1, 4, 500):
        acts, path = [], f"/operator/audit?what={Act.TENANT_CREATE}&limit={limit}"
        while path:
            answer = installation.call("GET", path)
            assert answer.status_code == 200, answer.text
            acts += answer.get_json()["acts"]
            link = answer.headers.get("Link")
            path = NEXT.fullmatch(link)[1] if link else ""  # type: ignore[index]
        assert "place" not in acts[0]
        made = [(act["target"], act["cell"]) for act in acts if act["target"].startswith("acted-")]
        assert made == [(f"acted-{n}", NAMES[n % 3]) for n in reversed(range(6))]
    assert installation.call("GET", "/operator/audit?cursor=x").status_code == 422


def test_commands_change_a_tenant_in_all_of_its_cells(
    installation: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.spread("ordered")
    monkeypatch.setattr(config, "settings", lambda: installation.cells.settings)
    runner = application.test_cli_runner()

    def run(line: str) -> str:
        result = runner.invoke(args=line.split())
        assert result.exit_code == 0, result.output
        return result.output

    run("tenants set ordered --weight 7")
    assert installation.column("ordered", "weight") == [7.0] * 3
    run("tenants suspend ordered")
    assert None not in installation.column("ordered", "suspended_at")
    run("tenants resume ordered")
    assert installation.column("ordered", "suspended_at") == [None] * 3
    key = next(line for line in run("keys issue --tenant ordered").split() if "fair_" in line)
    assert installation.call("GET", "/jobs", key=key).status_code == 200
    key_id = key.split("_")[1]
    assert run("keys list --tenant ordered").count(key_id) == 1
    assert run("tenants list").count("ordered") == 1
    run(f"keys revoke {key_id}")
    for cell in NAMES:
        [row] = installation.databases[cell].query(
            "SELECT revoked_at FROM api_keys WHERE id = %s", key_id
        )
        assert row.revoked_at is not None
    assert runner.invoke(args=["tenants", "set", "nobody", "--weight", "1"]).exit_code != 0


def test_an_application_is_erased_wherever_it_is(installation: Operated) -> None:
    installation.spread("erasing")
    job_id = installation.databases["cell-3"].submit_application(
        tenant_id=installation.tenant_id("erasing"), id=new_id(cell=2)
    )
    assert installation.call("POST", f"/operator/applications/{job_id}/erase").status_code == 200
    assert installation.call("POST", f"/operator/applications/{new_id()}/erase").status_code == 404


def test_metrics_have_the_label_of_their_cell(
    installation: Operated, postgres: Running[EmbeddedPostgres]
) -> None:
    page = installation.call("GET", "/metrics?system=always").text

    for cell in NAMES:
        assert f'fairline_queue_depth{{cell="{cell}",pool="medium"}}' in page
        assert f'fairline_cell_reachable{{cell="{cell}"}} 1.0' in page
        assert f'fairline_express_degraded{{cell="{cell}"}}' in page
    assert page.count("# TYPE fairline_queue_depth ") == 1
    assert page.count("\nfairline_build_info{") == 1
    assert installation.call("GET", "/metrics?system=x").status_code == 422
    with locked_out(installation.databases["cell-2"], postgres):
        time.sleep(1.1)  # a page is kept for a second
        page = installation.call("GET", "/metrics?system=always").text
        assert 'fairline_cell_reachable{cell="cell-2"} 0.0' in page
        assert 'fairline_queue_depth{cell="cell-2"' not in page
        assert 'fairline_queue_depth{cell="cell-3"' in page
    wait_for(lambda: not installation.router.is_away("cell-2"))


def test_a_tenants_page_shows_all_of_its_cells(installation: Operated) -> None:
    key = installation.spread("paged")
    tenant_id = installation.tenant_id("paged")
    dead = []
    for cell in NAMES:
        installation.databases[cell].submit(tenant_id=tenant_id)
        dead.append(installation.databases[cell].submit(tenant_id=tenant_id))
        bring(installation.databases[cell], dead[-1], "dead")

    page = installation.visit("/tenant", key)

    text = text_of(page)
    assert cells_of_row(page, "medium")[2] == "3", "queued in all cells"
    assert "Dead letters 3" in text
    for job_id in dead:
        assert f"/tenant/jobs/{job_id}" in page
        assert job_id in installation.visit(f"/tenant/jobs/{job_id}", key)
    answer = installation.send("/tenant/dead-letters/replay", key, id=dead[1])
    kept = NOTICE.search("; ".join(answer.headers.getlist("Set-Cookie")))
    assert kept is not None and "1%20dead%20letter%20queued%20again" in kept[1]
    assert installation.databases["cell-2"].job(dead[1]).status == "queued"


def test_a_move_keeps_positions_and_pages_of_a_list_valid(installation: Operated) -> None:
    key = installation.spread("paging")
    tenant_id = installation.tenant_id("paging")
    ids = [
        installation.databases[NAMES[number % 3]].submit(tenant_id=tenant_id) for number in range(9)
    ]
    first = installation.call("GET", "/jobs?limit=4", key=key)
    link = NEXT.fullmatch(first.headers["Link"])
    assert link is not None
    installation.cells.place("paging", cell_1=1.0, cell_2=0.0)
    installation.cells.refresh()

    second = installation.call("GET", link[1], key=key)

    left = [job for number, job in enumerate(ids) if number % 3 < 2]
    shown = [job["id"] for job in first.get_json()["jobs"]]
    rest = [job["id"] for job in second.get_json()["jobs"]]
    assert rest == sorted((job for job in left if job < shown[-1]), reverse=True)
