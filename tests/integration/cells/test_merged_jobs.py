"""One job of a tenant with three cells: found, followed and changed in the cell that has it."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.auth.access import Access, access_of
from app.cells import merged_replays, merged_routes
from app.cells.events import merged_feed
from app.cells.merged_routes import handler_of
from app.cells.merged_schedules import (
    change_schedule,
    create_schedule,
    one_schedule,
    remove_schedule,
)
from app.policy.placement import Placement
from models.jobs.ids import cell_number, new_id
from tests.support.event_rows import bring
from tests.support.several_cells import NAMES, SeveralCells

SOME_ID = "018c1b2e-0000-7000-8000-000000000000"
#: How each route of tenants is answered for one with several cells; submissions are the router's.
DECIDED = {
    "GET /applications/<application_id>": merged_routes.application,
    "DELETE /applications/<application_id>": merged_routes.one_job,
    "GET /applications/<application_id>/export": merged_routes.one_job,
    "POST /applications/<application_id>/erase": merged_routes.one_job,
    "GET /dead-letters": merged_routes.dead_letters,
    "POST /dead-letters/replay": merged_replays.replay_letters,
    "POST /dead-letters/discard": merged_replays.discard_letters,
    "GET /dead-letters/replays/<replay_id>": merged_replays.replay_progress,
    "DELETE /dead-letters/replays/<replay_id>": merged_replays.replay_progress,
    "GET /events": merged_feed,
    "GET /jobs": merged_routes.jobs,
    "GET /jobs/<string(length=36):job_id>": merged_routes.one_job,
    "DELETE /jobs/<string(length=36):job_id>": merged_routes.one_job,
    "GET /jobs/<job_id>/events": merged_routes.one_job,
    "GET /jobs/<job_id>/runs": merged_routes.one_job,
    "GET /jobs/<job_id>/wait": merged_routes.one_job,
    "GET /leaderboard": merged_routes.ranking,
    "GET /schedules": merged_routes.schedules,
    "POST /schedules": create_schedule,
    "GET /schedules/<schedule_id>": one_schedule,
    "PATCH /schedules/<schedule_id>": change_schedule,
    "DELETE /schedules/<schedule_id>": remove_schedule,
    "POST /schedules/<schedule_id>/run": one_schedule,
    "GET /tenant/usage": merged_routes.usage,
}
SUBMISSIONS = {"POST /applications", "POST /jobs", "POST /jobs/batch"}


def test_it_is_decided_for_every_route_of_tenants(cells: SeveralCells) -> None:
    app = cells.one_app
    routes = {
        f"{method} {rule.rule}"
        for rule in app.url_map.iter_rules()
        if access_of(app.view_functions[rule.endpoint]) is Access.TENANT
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert routes - SUBMISSIONS == set(DECIDED)
    for route, handler in DECIDED.items():
        method, _, rule = route.partition(" ")
        path = "/".join(SOME_ID if part.startswith("<") else part for part in rule.split("/"))
        assert handler_of(method, path)[0] is handler, route


@pytest.mark.parametrize("cell", NAMES)
def test_a_job_is_read_and_cancelled_in_its_cell(cells: SeveralCells, cell: str) -> None:
    job_id = cells.submit(cell)
    assert cell_number(job_id) == cells.number(cell)

    assert cells.call("GET", f"/jobs/{job_id}").get_json()["status"] == "queued"
    assert cells.call("GET", f"/jobs/{job_id}/wait").get_json()["id"] == job_id
    assert cells.call("GET", f"/jobs/{job_id}/runs").get_json() == {"runs": []}
    assert cells.call("HEAD", f"/jobs/{job_id}").status_code == 200
    assert cells.call("DELETE", f"/jobs/{job_id}").get_json()["status"] == "cancelled"
    assert cells.databases[cell].job(job_id).status == "cancelled"


def test_a_job_that_was_moved_is_found_whatever_its_id_says(cells: SeveralCells) -> None:
    moved = cells.databases["cell-3"].submit(id=new_id(cell=1))
    of_no_cell = cells.databases["cell-2"].submit(id=new_id())

    for job_id in (moved, of_no_cell):
        assert cells.call("GET", f"/jobs/{job_id}").get_json()["id"] == job_id
        assert cells.call("DELETE", f"/jobs/{job_id}").status_code == 200


def test_a_job_that_no_cell_has_is_a_404(cells: SeveralCells) -> None:
    for path in (f"/jobs/{new_id(cell=2)}", "/jobs/nonsense/wait", f"/applications/{new_id()}"):
        answer = cells.call("GET", path)
        assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    cells.away = {"cell-2"}
    answer = cells.call("GET", f"/jobs/{new_id(cell=2)}")
    assert answer.status_code == 503, "it may be in the cell that is away"
    assert "cell-2" in answer.get_json()["detail"]


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs?limit=1"])
def test_a_job_that_moves_while_it_is_looked_for_is_found(
    cells: SeveralCells, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """It leaves the cell that is being emptied just before that is asked."""
    job_id = cells.submit("cell-1")
    cells.placement = Placement(2, {"cell-1": 0.0, "cell-2": 1.0})
    leaving = cells.apps["cell-1"]
    original = leaving.wsgi_app

    def move_first(environ: Any, start_response: Any) -> Any:
        if cells.databases["cell-1"].query("SELECT FROM jobs"):
            cells.databases["cell-2"].submit(id=job_id)
            cells.databases["cell-1"].execute("DELETE FROM jobs")
        return original(environ, start_response)

    monkeypatch.setattr(leaving, "wsgi_app", move_first)

    answer = cells.call("GET", path.format(job_id))
    assert answer.status_code == 200
    assert job_id in answer.text


def test_an_application_is_exported_and_erased_in_its_cell(cells: SeveralCells) -> None:
    job_id = cells.databases["cell-2"].submit_application(id=new_id(cell=3))

    assert cells.call("GET", f"/applications/{job_id}/export").get_json()["id"] == job_id
    assert cells.call("POST", f"/applications/{job_id}/erase").status_code == 200
    assert cells.call("GET", f"/applications/{job_id}").status_code == 410


def dead_in(cells: SeveralCells, cell: str) -> str:
    job_id = cells.submit(cell)
    bring(cells.databases[cell], job_id, "dead")
    return job_id


def test_dead_letters_are_replayed_by_id_in_the_cells_that_have_them(cells: SeveralCells) -> None:
    dead = [dead_in(cells, cell) for cell in NAMES]

    answer = cells.call("POST", "/dead-letters/replay", {"ids": [*dead, new_id()]})

    document = answer.get_json()
    assert (document["replayed"], document["skipped"]) == (3, 1)
    assert sorted(document["ids"]) == sorted(dead)
    again = cells.call("POST", "/dead-letters/replay", {"ids": dead}).get_json()
    assert (again["replayed"], again["skipped"]) == (0, 3)


def test_a_limit_holds_for_all_cells_together(cells: SeveralCells) -> None:
    for cell in NAMES:
        dead_in(cells, cell)
        dead_in(cells, cell)

    body = {"filter": {"type": "echo"}, "limit": 3}
    assert cells.call("POST", "/dead-letters/replay", body).get_json()["replayed"] == 3
    assert cells.call("POST", "/dead-letters/discard", body).get_json()["discarded"] == 3
    assert cells.call("POST", "/dead-letters/discard", body).get_json()["discarded"] == 0
    assert cells.call("GET", "/dead-letters").get_json() == {"dead_letters": []}


def test_a_replay_in_the_background_has_one_id_in_all_cells(cells: SeveralCells) -> None:
    for cell in NAMES:
        dead_in(cells, cell)
        dead_in(cells, cell)
        cells.databases[cell].execute(
            "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (1, 'medium', 1)"
        )
        cells.databases[cell].execute("UPDATE tenants SET changed_at = clock_timestamp()")
        cells.apps[cell].extensions["fairline"].tenants.directory.refresh()

    begun = cells.call("POST", "/dead-letters/replay", {"filter": {"type": "echo"}})

    assert begun.status_code == 202, begun.text
    assert begun.get_json()["total"] == 6
    path = begun.headers["Location"]
    assert path == f"/dead-letters/replays/{begun.get_json()['id']}"
    for cell in NAMES:
        assert cells.databases[cell].query("SELECT id::text FROM replays")[0].id in path
    progress = cells.call("GET", path)
    assert (progress.get_json()["state"], progress.get_json()["total"]) == ("running", 6)
    assert progress.headers["Retry-After"]
    assert cells.call("DELETE", path).get_json()["state"] == "cancelled"
    assert cells.call("GET", f"/dead-letters/replays/{new_id()}").status_code == 404


def test_nothing_is_replayed_while_a_cell_is_away(cells: SeveralCells) -> None:
    dead = dead_in(cells, "cell-1")
    cells.away = {"cell-3"}

    assert cells.call("POST", "/dead-letters/replay", {"ids": [dead]}).status_code == 503
    assert cells.databases["cell-1"].job(dead).status == "dead"


def test_a_request_that_is_not_valid_is_refused_as_by_one_cell(cells: SeveralCells) -> None:
    bodies: list[Any] = [{}, {"ids": []}, {"filter": {}, "limit": 0}, {"ids": ["x"]}, [1]]
    for body in bodies:
        merged = cells.call("POST", "/dead-letters/replay", body)
        one = cells.call_one("POST", "/dead-letters/replay", body)
        assert (merged.status_code, merged.get_json()) == (422, one.get_json())


def test_schedules_live_in_the_first_cell_that_admits(cells: SeveralCells) -> None:
    body = {"name": "nightly", "cron": "30 2 * * *", "type": "echo"}
    made = cells.call("POST", "/schedules", body)

    assert made.status_code == 201
    assert len(cells.databases["cell-1"].query("SELECT id FROM schedules")) == 1
    assert [one["name"] for one in cells.call("GET", "/schedules").get_json()["schedules"]] == [
        "nightly"
    ]
    job = cells.call("POST", f"{made.headers['Location']}/run").get_json()
    assert cells.call("GET", f"/jobs/{job['id']}").status_code == 200


def test_one_part_of_a_request_counts_for_the_rate(cells: SeveralCells) -> None:
    for cell in NAMES:
        cells.databases[cell].execute(
            "UPDATE tenants SET requests_per_second = 30, changed_at = clock_timestamp()"
        )
        cells.apps[cell].extensions["fairline"].tenants.directory.refresh()

    statuses = [cells.call("GET", "/jobs").status_code for _ in range(20)]

    assert statuses == [200] * 20, "20 requests are less than 30, whichever cell counts them"
    for cell in NAMES:
        cells.databases[cell].execute(
            "UPDATE tenants SET requests_per_second = NULL, changed_at = clock_timestamp()"
        )
        cells.apps[cell].extensions["fairline"].tenants.directory.refresh()
