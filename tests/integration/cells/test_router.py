"""The router in front of real cells: who is served where, and what a cell that is away changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from werkzeug.test import Client, TestResponse

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import issue_key, revoke_key
from models.jobs.ids import cell_number
from tests.integration.conftest import fresh_database
from tests.support.away_tenants import close_tenant, open_tenant
from tests.support.http_client import opened
from tests.support.installation import Installation, installed
from tests.support.several_cells import unreachable
from tests.support.waiting import wait_for

#: Those of a request that is refused: within this time.
REFUSED_SECONDS = 2.0


@pytest.fixture
def cells(postgres: Running[EmbeddedPostgres], tmp_path: Path) -> Iterator[Installation]:
    """Two cells."""
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        yield stack.enter_context(installed(urls, tmp_path))


@pytest.fixture
def keys(cells: Installation) -> dict[str, str]:
    """A tenant in each cell."""
    found = {"cell-1": cells.tenant("first", "cell-1"), "cell-2": cells.tenant("second", "cell-2")}
    cells.refresh()
    return found


def test_each_tenant_is_served_by_its_cell(cells: Installation, keys: dict[str, str]) -> None:
    for number, (cell, key) in enumerate(keys.items(), 1):
        answer = cells.submit(key)
        assert answer.status_code == 202, answer.text
        job_id = answer.json["id"]
        assert cells.jobs_in(cell) == [job_id]
        assert cell_number(job_id) == number
        assert cells.call(key, "GET", f"/jobs/{job_id}").json["id"] == job_id
        batch = {"jobs": [{"type": "echo", "payload": {}}] * 3}
        assert cells.call(key, "POST", "/jobs/batch", batch).status_code in (200, 202)
        assert len(cells.jobs_in(cell)) == 4
        assert cells.call(key, "GET", "/jobs").json["jobs"]
        scored = cells.call(key, "POST", "/applications", APPLICATION).json["id"]
        assert cell_number(scored) == number


APPLICATION = {"candidate": "Ada", "role": "engineer", "payload": {}}


def test_nobody_reads_jobs_of_another_cell_s_tenant(
    cells: Installation, keys: dict[str, str]
) -> None:
    job_id = cells.submit(keys["cell-2"]).json["id"]
    assert cells.call(keys["cell-1"], "GET", f"/jobs/{job_id}").status_code == 404


def test_keys_that_no_cell_knows_are_refused(cells: Installation, keys: dict[str, str]) -> None:
    other = issue_key(cells.databases["cell-2"].engine, "second")
    assert cells.submit(other.key).status_code == 202, "a new key works at once"
    revoke_key(cells.databases["cell-2"].engine, other.id)
    wrong = keys["cell-2"][:-1] + ("a" if keys["cell-2"][-1] != "a" else "b")
    for key in ("fair_abcdefgh_" + "x" * 32, wrong, "none"):
        answer = cells.submit(key)
        assert answer.status_code == 401, key
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert cells.call(None, "GET", "/jobs").status_code == 401

    def revoked() -> bool:
        app = cells.router.app_of("cell-2")
        assert app is not None
        app.extensions["fairline"].tenants.directory.refresh()
        return cells.submit(other.key).status_code == 401

    wait_for(revoked)


def test_a_tenant_that_is_nowhere_admitted_gets_503_and_nothing_is_inserted(
    cells: Installation, keys: dict[str, str]
) -> None:
    tenant_id = cells.tenant_id("first", "cell-1")
    close_tenant(cells.databases["cell-1"].engine, tenant_id, 1)
    for idempotency_key in (None, "k"):
        began = time.monotonic()
        answer = cells.submit(keys["cell-1"], idempotency_key)
        assert answer.status_code == 503 and answer.json["code"] == "TENANT_MOVED"
        assert answer.headers["Retry-After"]
        assert time.monotonic() - began < REFUSED_SECONDS + 1
    assert not cells.jobs_in("cell-1")
    assert not cells.databases["cell-1"].query("SELECT FROM idempotency_keys")
    open_tenant(cells.databases["cell-1"].engine, tenant_id, 1)
    assert cells.submit(keys["cell-1"], "k").status_code == 202


@pytest.mark.parametrize("idempotency_key", [None, "k"])
@pytest.mark.parametrize("size", [10, 40_000])
def test_a_submission_follows_a_tenant_that_was_moved(
    cells: Installation, keys: dict[str, str], idempotency_key: str | None, size: int
) -> None:
    """The router's placement is out of date: the old cell refuses, the new one admits."""
    key = keys["cell-1"]
    assert cells.submit(key).status_code == 202
    tenant_id = cells.tenant_id("first", "cell-1")
    cells.copy("first", "cell-1", "cell-2")
    version = cells.place("first", cell_1=0.0, cell_2=1.0)
    close_tenant(cells.databases["cell-1"].engine, tenant_id, version)
    open_tenant(cells.databases["cell-2"].engine, tenant_id, version)
    answer = cells.submit(key, idempotency_key, payload={"text": "x" * size})
    assert answer.status_code == 202, answer.text
    assert cells.jobs_in("cell-2") == [answer.json["id"]]
    assert len(cells.jobs_in("cell-1")) == 1
    again = cells.submit(key, idempotency_key, payload={"text": "x" * size})
    assert (again.json["id"] == answer.json["id"]) is (idempotency_key is not None)


def test_a_key_goes_where_the_new_placement_sends_it(
    cells: Installation, keys: dict[str, str]
) -> None:
    """A router that does not know that a tenant was spread must not admit keys by its own."""
    tenant_id = cells.tenant_id("first", "cell-1")
    cells.copy("first", "cell-1", "cell-2")
    version = cells.place("first", cell_1=1.0, cell_2=1.0)
    for database in cells.databases.values():
        open_tenant(database.engine, tenant_id, version)
    # Of the same process, which learns the placement by the first refusal.
    ids = {name: cells.submit(keys["cell-1"], name).json["id"] for name in map(str, range(20))}
    assert cells.jobs_in("cell-1") and cells.jobs_in("cell-2")
    placement = cells.router.placement_of("first")
    assert placement is not None and placement.version == version
    for name, job_id in ids.items():
        assert job_id in cells.jobs_in(placement.choose(name.encode()))
        assert cells.submit(keys["cell-1"], name).json["id"] == job_id, "a repetition"
    assert len(cells.jobs_in("cell-1")) + len(cells.jobs_in("cell-2")) == 20


def test_a_process_that_knows_nothing_of_cells_admits_no_key_of_a_spread_tenant(
    cells: Installation, keys: dict[str, str], tmp_path: Path
) -> None:
    """The key may belong to the other cell, where the same request was admitted."""
    tenant_id, database = cells.tenant_id("first", "cell-1"), cells.databases["cell-1"]
    job, sent = {"type": "echo", "payload": {}}, {"Authorization": f"Bearer {keys['cell-1']}"}
    with opened(database, tmp_path) as app:

        def submit(key: str) -> TestResponse:
            headers = {**sent, "Idempotency-Key": key}
            return Client(app).post("/jobs", json=job, headers=headers)

        assert submit("before").status_code == 202, "it was never moved"
        open_tenant(database.engine, tenant_id, cells.place("first", cell_1=1.0, cell_2=1.0))
        refused = submit("after")
        assert (refused.status_code, refused.get_json()["code"]) == (503, "TENANT_MOVED")
        assert Client(app).post("/jobs", json=job, headers=sent).status_code == 202
    assert len(database.query("SELECT FROM idempotency_keys")) == 1


def test_a_cell_that_is_away_takes_nobody_with_it(
    cells: Installation, keys: dict[str, str], postgres: Running[EmbeddedPostgres]
) -> None:
    jobs = {cell: cells.submit(key).json["id"] for cell, key in keys.items()}
    path = f"/jobs/{jobs['cell-2']}"
    fresh = issue_key(cells.databases["cell-1"].engine, "first").key
    with unreachable(postgres.service, cells.databases["cell-2"].engine):
        for attempt in range(4):
            for method, where in (("GET", path), ("GET", "/jobs"), ("POST", "/jobs")):
                began = time.monotonic()
                body = {"type": "echo", "payload": {}} if method == "POST" else None
                answer = cells.call(keys["cell-2"], method, where, body)
                took = time.monotonic() - began
                assert answer.status_code == 503, (method, where, answer.text)
                assert answer.headers["Retry-After"]
                assert took < REFUSED_SECONDS, f"attempt {attempt}: {took:.2f} s"
            assert cells.submit(keys["cell-1"]).status_code == 202
        wait_for(lambda: cells.router.is_away("cell-2"))
        began = time.monotonic()
        assert cells.call(keys["cell-2"], "GET", path).json["code"] == "CELL_UNAVAILABLE"
        assert cells.submit(fresh).status_code == 202, "a key that was not seen before"
        assert time.monotonic() - began < 0.5
        unknown = cells.submit("fair_abcdefgh_" + "x" * 32)
        assert unknown.status_code == 503, "the cell that is away may know it"
    wait_for(lambda: not cells.router.is_away("cell-2"))
    assert cells.call(keys["cell-2"], "GET", path).status_code == 200
    # A connection from before the outage may be tried first.
    wait_for(lambda: cells.submit("fair_abcdefgh_" + "x" * 32).status_code == 401)


def test_without_the_home_cell_pages_and_operators_get_503_and_api_keys_of_other_cells_go_on(
    cells: Installation, keys: dict[str, str], operator: str, postgres: Running[EmbeddedPostgres]
) -> None:
    browser, own = Client(cells.router), {"Sec-Fetch-Site": "same-origin"}
    signed_in = browser.post("/console/sign-in", data={"key": keys["cell-2"]}, headers=own)
    assert signed_in.status_code == 303, signed_in.text
    page = {**own, "Accept": "text/html"}
    assert browser.get("/tenant", headers=page).status_code == 200
    assert cells.submit(keys["cell-2"]).status_code == 202
    with unreachable(postgres.service, cells.databases["cell-1"].engine):
        assert cells.submit(keys["cell-2"]).status_code == 202
        wait_for(lambda: browser.get("/tenant", headers=page).status_code == 503, 20)
        assert cells.call(operator, "GET", "/operator/tenants").status_code == 503
        assert cells.call(None, "GET", "/readyz").status_code == 503
        # A load balancer that asks this goes on sending requests.
        assert cells.call(None, "GET", "/healthz").status_code == 200


def test_new_jobs_of_a_spread_tenant_go_to_the_cells_that_are_there(
    cells: Installation, keys: dict[str, str], postgres: Running[EmbeddedPostgres]
) -> None:
    tenant_id = cells.tenant_id("first", "cell-1")
    cells.copy("first", "cell-1", "cell-2")
    version = cells.place("first", cell_1=1.0, cell_2=1.0)
    for database in cells.databases.values():
        open_tenant(database.engine, tenant_id, version)
    cells.refresh()
    placement = cells.router.placement_of("first")
    assert placement is not None
    for_second = next(n for n in map(str, range(99)) if placement.choose(n.encode()) == "cell-2")
    for_first = next(n for n in map(str, range(99)) if placement.choose(n.encode()) == "cell-1")
    with unreachable(postgres.service, cells.databases["cell-2"].engine):
        wait_for(lambda: cells.submit(keys["cell-1"], for_second).status_code == 503)
        wait_for(lambda: cells.router.is_away("cell-2"))
        assert {cells.submit(keys["cell-1"]).status_code for _ in range(10)} == {202}
        assert cells.submit(keys["cell-1"], for_first).status_code == 202
        assert cells.submit(keys["cell-1"], for_second).status_code == 503, "only there"
    wait_for(lambda: not cells.router.is_away("cell-2"))
    assert cells.submit(keys["cell-1"], for_second).status_code == 202


def test_a_tenant_s_limits_are_divided_by_its_share(
    cells: Installation, keys: dict[str, str]
) -> None:
    key = cells.tenant("bounded", "cell-1", submit_per_second=100.0, requests_per_second=50.0)
    whole = cells.call(key, "GET", "/tenant").json["effective"]
    cells.databases["cell-1"].execute(
        "UPDATE tenants SET share = 0.25, changed_at = clock_timestamp() WHERE name = 'bounded'"
    )
    app = cells.router.app_of("cell-1")
    assert app is not None
    app.extensions["fairline"].tenants.directory.refresh()
    part = cells.call(key, "GET", "/tenant").json["effective"]
    for name in ("weight", "submit_per_second", "submit_burst", "requests_per_second"):
        assert part[name] == pytest.approx(whole[name] / 4), name
    assert part["depth"]["medium"] == pytest.approx(whole["depth"]["medium"] / 4)


def test_a_process_that_never_reached_the_registry_refuses_tenants(
    cells: Installation, keys: dict[str, str]
) -> None:
    cells.router.cache.loaded = False
    for key in (keys["cell-1"], "fair_abcdefgh_" + "x" * 32):
        assert cells.submit(key).status_code == 503
    assert cells.call(None, "GET", "/healthz").status_code == 200
    cells.refresh()
    assert cells.submit(keys["cell-1"]).status_code == 202


def test_cells_come_and_go_while_a_process_runs(
    cells: Installation, keys: dict[str, str], postgres: Running[EmbeddedPostgres]
) -> None:
    known = cells.router.app_of("cell-1"), cells.router.app_of("cell-2")
    assert known[0] is cells.router.home
    assert cells.submit(keys["cell-2"]).status_code == 202
    cells.registry_execute("DELETE FROM cells WHERE name = 'cell-2'")
    cells.refresh()
    assert cells.router.cell_names() == ["cell-1"]
    assert cells.submit(keys["cell-2"]).status_code == 503, "it is placed in no cell that is known"
    cells.registry_execute(
        "INSERT INTO cells (name, number, database_url, broker_url)"
        " VALUES ('cell-2', 2, %s, 'filesystem:///tmp/none')",
        cells.url("cell-2"),
    )
    cells.refresh()
    assert cells.submit(keys["cell-2"]).status_code == 202
    assert cells.router.app_of("cell-1") is known[0]


# Operators and pages.


@pytest.fixture
def operator(cells: Installation) -> str:
    """An operator of the home cell."""
    return issue_key(cells.registry, None).key


def test_an_operator_of_the_home_cell_may_name_another(
    cells: Installation, keys: dict[str, str], operator: str
) -> None:
    for cell, tenant in (("cell-1", "first"), ("cell-2", "second")):
        for path, headers in (
            (f"/operator/tenants?cell={cell}", {}),
            ("/operator/tenants", {"Fairline-Cell": cell}),
        ):
            listed = cells.call(operator, "GET", path, headers=headers).json["tenants"]
            assert [one["name"] for one in listed] == [tenant]
    assert cells.call(operator, "GET", "/operator/tenants?cell=none").status_code == 404
    assert cells.call(keys["cell-1"], "GET", "/operator/tenants").status_code == 403
    assert cells.call(None, "GET", "/operator/tenants").status_code == 401


def test_an_operator_of_another_cell_is_none_elsewhere(
    cells: Installation, keys: dict[str, str]
) -> None:
    other = issue_key(cells.databases["cell-2"].engine, None).key
    listed = cells.call(other, "GET", "/operator/tenants").json["tenants"]
    assert [one["name"] for one in listed] == ["second"]
    assert cells.call(other, "GET", "/operator/tenants?cell=cell-1").status_code == 401
    assert cells.call(other, "PATCH", "/operator/tenants/first", {"weight": 9}).status_code == 404
    made = cells.call(other, "POST", "/operator/tenants?cell=cell-1", {"name": "mine"})
    assert made.status_code == 401
    browser, own = Client(cells.router), {"Sec-Fetch-Site": "same-origin"}
    signed = browser.post("/console/sign-in", data={"key": other}, headers=own)
    assert signed.status_code == 401


def test_a_tenant_cannot_choose_its_cell(cells: Installation, keys: dict[str, str]) -> None:
    sent = {"Fairline-Cell": "cell-2"}
    assert cells.call(keys["cell-1"], "GET", "/jobs", headers=sent).status_code == 200
    assert cells.call(keys["cell-1"], "GET", "/jobs?cell=cell-2").status_code == 422


def test_a_new_tenant_is_placed_where_there_are_the_fewest(
    cells: Installation, keys: dict[str, str], operator: str
) -> None:
    cells.tenant("third", "cell-1")
    cells.refresh()
    made = cells.call(operator, "POST", "/operator/tenants", {"name": "fourth"})
    assert made.status_code == 201, made.text
    assert cells.tenant_id("fourth", "cell-2") > 2 * 10**12
    again = cells.call(operator, "POST", "/operator/tenants", {"name": "fourth"})
    assert again.status_code == 409
    path = "/operator/tenants?cell=cell-1"
    assert cells.call(operator, "POST", path, {"name": "fourth"}).status_code == 409
    assert cells.call(operator, "POST", path, {"name": "fifth"}).status_code == 201
    assert cells.tenant_id("fifth", "cell-1") < 10**12
    cells.refresh()
    issued = cells.call(operator, "POST", "/operator/tenants/fourth/keys", {})
    assert cells.submit(issued.json["key"]).status_code == 202
    assert len(cells.jobs_in("cell-2")) == 1


def test_a_tenant_that_cannot_be_created_is_placed_nowhere(
    cells: Installation, keys: dict[str, str], operator: str
) -> None:
    path = "/operator/tenants"
    for body in ({"name": "third", "tier": "free", "weight": 2}, {"name": "third", "other": 1}):
        refused = cells.call(operator, "POST", path, body)
        assert refused.status_code == 422, refused.text
    assert cells.call(operator, "POST", f"{path}?other=1", {"name": "third"}).status_code == 422
    assert cells.call(operator, "POST", path, ["third"]).status_code == 422
    browser, own = Client(cells.router), {"Sec-Fetch-Site": "same-origin"}
    browser.post("/console/sign-in", data={"key": operator}, headers=own)
    form = {"name": "third", "tier": "best"}
    assert browser.post("/console/tenants", data=form, headers=own).status_code == 422
    placed = cells.databases["cell-1"].query("SELECT tenant FROM placements ORDER BY tenant")
    assert [row.tenant for row in placed] == ["first", "second"]
    made = browser.post("/console/tenants", data={"name": "third", "tier": "pro"}, headers=own)
    assert made.status_code == 303
    made = cells.call(operator, "POST", f"{path}?cell=cell-2", {"name": "fourth"})
    assert made.status_code == 201 and cells.tenant_id("fourth", "cell-2")


def test_nobody_else_places_tenants(cells: Installation, keys: dict[str, str]) -> None:
    for key, status in ((None, 401), (keys["cell-1"], 403)):
        made = cells.call(key, "POST", "/operator/tenants", {"name": "stranger"})
        assert made.status_code == status
    placed = cells.databases["cell-1"].query("SELECT tenant FROM placements ORDER BY tenant")
    assert [row.tenant for row in placed] == ["first", "second"]


def test_a_tenant_of_another_cell_signs_in_to_its_page(
    cells: Installation, keys: dict[str, str]
) -> None:
    job_id = cells.submit(keys["cell-2"]).json["id"]
    browser = Client(cells.router)
    own = {"Sec-Fetch-Site": "same-origin"}
    signed = browser.post("/console/sign-in", data={"key": keys["cell-2"]}, headers=own)
    assert signed.status_code == 303, signed.text
    page = browser.get("/tenant", headers={"Accept": "text/html", **own})
    assert page.status_code == 200 and "second" in page.text
    job = browser.get(f"/tenant/jobs/{job_id}", headers={"Accept": "text/html", **own})
    assert job.status_code == 200 and job_id in job.text


def test_an_operator_s_session_shows_every_cell(
    cells: Installation, keys: dict[str, str], operator: str
) -> None:
    browser = Client(cells.router)
    own = {"Sec-Fetch-Site": "same-origin"}
    browser.post("/console/sign-in", data={"key": operator}, headers=own)
    page, first, second = "/console/tenants", "/console/tenants/first", "/console/tenants/second"
    assert first in browser.get(page, headers=own).text
    other = browser.get(f"{page}?cell=cell-2", headers=own)
    assert second in other.text and first not in other.text
    assert second in browser.get(page, headers=own).text, "by the cookie"
