"""Whom the API of another region lets in while their cell is away, and on which terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.scheduler.maintenance.placement_check import TenantCopier
from app.tenants.changes import issue_key, revoke_key
from tests.support.cell_databases import TestCells
from tests.support.region_front import JOB, RegionFront, routing, suspended
from tests.support.waiting import wait_for


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def limited(cells: TestCells) -> None:
    cells.home.run(
        "UPDATE tenants SET submit_per_second = 0.001, submit_burst = 2, changed_at = now()"
    )


def shallow(cells: TestCells) -> None:
    cells.home.run("""
        INSERT INTO tenant_limits (tenant_id, pool, depth) SELECT id, 'short', 2 FROM tenants""")
    cells.home.run("UPDATE tenants SET changed_at = now()")


@pytest.mark.parametrize(
    ("terms", "status", "code"),
    [
        (limited, 429, "TENANT_RATE_LIMIT_EXCEEDED"),
        (shallow, 429, "TENANT_QUEUE_DEPTH_EXCEEDED"),
        (suspended, 403, "TENANT_SUSPENDED"),
    ],
)
def test_the_tenants_terms_hold_as_they_were_known(
    front: RegionFront, terms: Callable[[TestCells], None], status: int, code: str
) -> None:
    terms(front.cells)
    front.refresh()
    front.lose_home()
    for _ in range(4):
        answer = front.call("POST", "/jobs", JOB)
    assert (answer.status_code, answer.get_json()["code"]) == (status, code)


def test_wrong_requests_are_refused_as_ever(front: RegionFront) -> None:
    front.lose_home()
    assert front.call("POST", "/jobs", {"type": "unknown"}).status_code == 422
    assert front.call("POST", "/applications", {"role": "x"}).status_code == 422
    wrong = front.key[:-4] + ("aaaa" if not front.key.endswith("aaaa") else "bbbb")
    assert front.call("POST", "/jobs", JOB, key=wrong).status_code in (401, 503)


def test_keys_and_scopes_are_checked(cells: TestCells, tmp_path: Path) -> None:
    _, key = cells.tenant()
    reader = issue_key(cells.home.engine, "acme", scopes=["read"]).key
    revoked = issue_key(cells.home.engine, "acme")
    with routing(cells, tmp_path) as router:
        front = RegionFront(cells, router, key)
        for each in (reader, revoked.key):
            assert front.call("GET", "/jobs", key=each).status_code == 200
        revoke_key(cells.home.engine, revoked.id)
        copier = TenantCopier(cells.home.engine, cells.home.leader, cells.databases)
        copier.run_once(0.0)
        front.refresh()
        front.lose_home()
        job_id = front.submit()
        assert front.call("POST", "/jobs", JOB, key=reader).status_code == 403
        assert front.call("GET", f"/jobs/{job_id}", key=reader).status_code == 200
        assert front.call("DELETE", f"/jobs/{job_id}", key=reader).status_code == 403
        assert front.call("POST", "/jobs", JOB, key=revoked.key).status_code == 401


def test_nobody_else_sees_what_was_taken_in(front: RegionFront) -> None:
    _, stranger = front.cells.tenant("stranger", front.cells.host)
    _, neighbour = front.cells.tenant("neighbour")
    front.router.cache.refresh()
    for key in (stranger, neighbour):
        assert front.call("GET", "/jobs", key=key).status_code == 200
    front.lose_home()
    job_id = front.submit()
    for method in ("GET", "DELETE"):
        for path in (f"/jobs/{job_id}", f"/applications/{job_id}"):
            assert front.call(method, path, key=stranger).status_code == 404, (method, path)
            # As for any job of its own cell, which is away.
            assert front.call(method, path, key=neighbour).status_code == 503, (method, path)
    assert front.call("GET", f"/jobs/{job_id}/wait", key=stranger).status_code == 404
    assert front.call("GET", f"/jobs/{job_id}").get_json()["status"] == "queued"


def test_a_process_that_starts_during_the_outage_knows_the_tenant_by_its_copy(
    cells: TestCells, tmp_path: Path
) -> None:
    _, key = cells.tenant()
    TenantCopier(cells.home.engine, cells.home.leader, cells.databases).run_once(0.0)
    cells.home.leave()
    with routing(cells, tmp_path) as router:
        front = RegionFront(cells, router, key)
        wait_for(lambda: front.call("POST", "/jobs", JOB).status_code == 202, 20.0)
        job_id = front.submit()
        assert front.call("GET", f"/jobs/{job_id}").get_json()["reason"] == "cell_away"
        wrong = front.key[:-4] + ("aaaa" if not front.key.endswith("aaaa") else "bbbb")
        assert front.call("POST", "/jobs", JOB, key=wrong).status_code == 401


def test_who_has_waited_for_a_cell_to_know_the_key_does_not_wait_for_it_again(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = cells.tenant()
    TenantCopier(cells.home.engine, cells.home.leader, cells.databases).run_once(0.0)
    with routing(cells, tmp_path) as router:
        front = RegionFront(cells, router, key)
        app = router.app_of("cell-eu")
        assert app is not None
        called: list[str] = []
        answer = app.wsgi_app

        def noting(environ: Any, start_response: Any) -> Any:
            called.append(environ["PATH_INFO"])
            return answer(environ, start_response)

        monkeypatch.setattr(app, "wsgi_app", noting)
        # Nothing is known to be away when the first request comes.
        monkeypatch.setattr("app.cells.health.AGAIN_SECONDS", 2.0)
        cells.home.leave()
        assert not router.is_away("cell-eu")
        assert front.call("GET", "/jobs").status_code == 503
        assert front.call("POST", "/jobs", JOB).status_code == 202, "taken in at once"
        assert not called
        cells.home.come_back()
        wait_for(lambda: front.call("GET", "/jobs").status_code == 200, 20.0)
        assert called


def test_a_tenant_without_a_copy_is_refused_by_such_a_process(
    cells: TestCells, tmp_path: Path
) -> None:
    _, key = cells.tenant()
    cells.home.leave()
    with routing(cells, tmp_path) as router:
        front = RegionFront(cells, router, key)
        assert front.call("POST", "/jobs", JOB).status_code == 503
