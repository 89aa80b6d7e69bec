"""Schedules of a tenant in several cells, of which a move has not brought all to the first one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Engine

from app.policy.placement import Placement
from app.tenants import schedules as store
from models.jobs.ids import new_id
from tests.support.several_cells import NAMES, SeveralCells

NEXT = re.compile(r'<([^>]+)>; rel="next"')
BODY = {"cron": "30 2 * * *", "type": "echo"}
PUT = """
    INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type, payload,
                           next_at)
    VALUES (%s, 1, %s, '30 2 * * *', 'UTC', 'skip', 'one', 'echo', '{}', '2100-01-01')
"""


def put(cells: SeveralCells, cell: str, name: str, schedule_id: str | None = None) -> str:
    """A schedule in a cell; its id."""
    found = schedule_id or new_id()
    cells.databases[cell].execute(PUT, found, name)
    return found


def names_in(cells: SeveralCells, cell: str) -> list[str]:
    rows = cells.databases[cell].query('SELECT name FROM schedules ORDER BY name COLLATE "C"')
    return [row.name for row in rows]


def pages(call: Any, limit: int) -> list[list[Any]]:
    """The list, page by page."""
    found, path = [], f"/schedules?limit={limit}"
    while path:
        answer = call("GET", path)
        assert answer.status_code == 200, answer.text
        found.append(answer.get_json()["schedules"])
        link = NEXT.fullmatch(answer.headers.get("Link", ""))
        path = link[1] if link else ""
    return found


@pytest.fixture
def moving(cells: SeveralCells) -> SeveralCells:
    """The tenant leaves the first cell for the second one."""
    cells.placement = Placement(2, {"cell-1": 0.0, "cell-2": 1.0})
    return cells


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
def test_the_list_is_that_of_one_database(cells: SeveralCells, limit: int) -> None:
    for number, name in enumerate(("b", "_a", "Z", "é", "a-1", "a1", "0")):
        put(cells, NAMES[number % 3], name)
    cells.gather_rows()
    assert pages(cells.call, limit) == pages(cells.call_one, limit)


def test_one_that_is_still_in_the_old_cell_is_listed_read_and_changed(moving: SeveralCells) -> None:
    old, new = put(moving, "cell-1", "old"), put(moving, "cell-2", "new")
    assert [one["id"] for [one] in pages(moving.call, 1)] == [new, old]
    for schedule_id in (old, new):
        assert moving.call("GET", f"/schedules/{schedule_id}").status_code == 200
        changed = moving.call("PATCH", f"/schedules/{schedule_id}", {"paused": True})
        assert changed.status_code == 200, changed.text
    for cell in ("cell-1", "cell-2"):
        assert [row.paused for row in moving.databases[cell].query("SELECT * FROM schedules")] == [
            True
        ]
    assert moving.call("GET", f"/schedules/{new_id()}").status_code == 404
    assert moving.call("DELETE", f"/schedules/{new_id()}").status_code == 404


def test_a_name_of_the_old_cell_is_not_free(moving: SeveralCells) -> None:
    put(moving, "cell-1", "old")
    new = put(moving, "cell-2", "new")
    refused = moving.call("POST", "/schedules", {"name": "old", **BODY})
    assert (refused.status_code, refused.get_json()["code"]) == (409, "CONFLICT")
    assert moving.call("PATCH", f"/schedules/{new}", {"name": "old"}).status_code == 409
    made = moving.call("POST", "/schedules", {"name": "other", **BODY})
    assert made.status_code == 201, made.text
    assert names_in(moving, "cell-1") == ["old"]
    assert names_in(moving, "cell-2") == ["new", "other"]
    renamed = moving.call("PATCH", f"/schedules/{new}", {"name": "new", "paused": True})
    assert renamed.status_code == 200, "its own name is no other one's"


@pytest.mark.parametrize("where", [("cell-1",), ("cell-2",), ("cell-1", "cell-2")])
def test_one_that_is_removed_is_in_no_cell_any_more(
    moving: SeveralCells, where: tuple[str, ...]
) -> None:
    """After a crash of the move it is in both."""
    schedule_id = new_id()
    for cell in where:
        put(moving, cell, "nightly", schedule_id)
    assert len(pages(moving.call, 50)[0]) == 1
    assert moving.call("DELETE", f"/schedules/{schedule_id}").status_code == 204
    assert names_in(moving, "cell-1") == names_in(moving, "cell-2") == []
    assert moving.call("DELETE", f"/schedules/{schedule_id}").status_code == 404


def test_what_is_not_valid_is_refused_as_by_one_cell(moving: SeveralCells) -> None:
    for body in ({"name": "one", **BODY, "cron": "x"}, {"name": ""}, [1]):
        merged = moving.call("POST", "/schedules", body)
        one = moving.call_one("POST", "/schedules", body)
        assert (merged.status_code, merged.get_json()) == (422, one.get_json())
    assert names_in(moving, "cell-2") == []


def test_what_the_old_cell_has_is_not_guessed_while_it_is_away(moving: SeveralCells) -> None:
    schedule_id = put(moving, "cell-2", "new")
    moving.away = {"cell-1"}
    for method, path, body in (
        ("GET", "/schedules", None),
        ("POST", "/schedules", {"name": "old", **BODY}),
        ("DELETE", f"/schedules/{schedule_id}", None),
        ("GET", f"/schedules/{new_id()}", None),
    ):
        answer = moving.call(method, path, body)
        assert answer.status_code == 503, (method, path)
        assert "cell-1" in answer.get_json()["detail"]
    path = f"/schedules/{schedule_id}"
    assert moving.call("GET", path).status_code == 200
    assert names_in(moving, "cell-2") == ["new"]
    assert moving.call("PATCH", path, {"paused": True}).status_code == 200, "no name is given"
    assert moving.call("PATCH", path, {"name": "old"}).status_code == 503


def test_one_that_comes_to_the_first_cell_meanwhile_is_found(
    cells: SeveralCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes from one cell that admits jobs to another after that was asked."""
    schedule_id = put(cells, "cell-2", "old")
    read, asked = store.read, 0

    def look(engine: Engine, tenant_id: int, wanted: str) -> store.RecurringSchedule | None:
        nonlocal asked
        found, asked = read(engine, tenant_id, wanted), asked + 1
        if asked == 1:
            put(cells, "cell-1", "old", schedule_id)
            cells.databases["cell-2"].execute("DELETE FROM schedules")
        return found

    monkeypatch.setattr(store, "read", look)
    assert cells.call("GET", f"/schedules/{schedule_id}").status_code == 200
    assert asked == 4


def test_its_page_and_forms_follow_it(moving: SeveralCells) -> None:
    path = f"/tenant/schedules/{put(moving, 'cell-1', 'old')}"
    page = moving.call("GET", path, headers={"Accept": "text/html"})
    assert page.status_code == 200 and "old" in page.text, page.text
    for action, left in (("pause", ["old"]), ("remove", [])):
        done = moving.call("POST", f"{path}/{action}")
        assert done.status_code == 303, done.text
        assert names_in(moving, "cell-1") == left


def test_another_cell_of_a_spread_tenant_may_be_away(cells: SeveralCells) -> None:
    cells.away = {"cell-2"}
    made = cells.call("POST", "/schedules", {"name": "one", **BODY})
    assert made.status_code == 201, made.text
    listed = cells.call("GET", "/schedules")
    assert [one["name"] for one in listed.get_json()["schedules"]] == ["one"]
    assert listed.headers["Fairline-Missing-Cells"] == "cell-2"
    assert cells.call("PATCH", made.headers["Location"], {"paused": True}).status_code == 200
    assert cells.call("DELETE", made.headers["Location"]).status_code == 204
    again = cells.call("DELETE", made.headers["Location"])
    assert again.status_code == 503, "it may be in the cell that is away"
