"""Lists, rankings and sums over three cells are those of one database with all rows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from werkzeug.test import TestResponse

from app.policy.placement import Placement
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tests.support.event_rows import locked_out
from tests.support.several_cells import NAMES, SeveralCells

NEXT = re.compile(r'<([^>]+)>; rel="next"')
SUCCESS = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")
DEATH = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.TIMEOUT)
PUT = """
    INSERT INTO applications (id, tenant_id, candidate, role, score, rationale, scored_at)
    VALUES (%s, 1, %s, 'general', %s, 'because', now())
"""


def pages(call: Any, path: str) -> Iterator[TestResponse]:
    """The answers, as a client follows the links."""
    while True:
        answer = call("GET", path)
        assert answer.status_code == 200, answer.text
        yield answer
        if "Link" not in answer.headers:
            return
        found = NEXT.fullmatch(answer.headers["Link"])
        assert found is not None
        path = found[1]


def told(answers: Iterator[TestResponse]) -> list[tuple[Any, str | None]]:
    """Documents and links, page by page."""
    return [(answer.get_json(), answer.headers.get("Link")) for answer in answers]


def run(cells: SeveralCells, cell: str, ending: Ending, seconds: float = 0.5, **fields: Any) -> str:
    """A job that has ended in a cell."""
    claim = cells.databases[cell].start(id=new_id(cell=cells.number(cell)), **fields)
    assert cells.databases[cell].settle(claim.ref, ending, run_seconds=seconds)
    return claim.ref.id


def put_scores(cells: SeveralCells, scores: list[float]) -> list[str]:
    """Scored applications, in one cell after the other."""
    ids = []
    for number, score in enumerate(scores):
        cell = NAMES[number * 7 % 3]
        ids.append(new_id(cell=cells.number(cell)))
        cells.databases[cell].execute(PUT, ids[-1], f"c{number}", score)
    cells.gather_rows()
    return ids


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 500])
def test_a_list_of_jobs_is_that_of_one_database(cells: SeveralCells, limit: int) -> None:
    for number in range(13):
        cells.submit(NAMES[number % 5 % 3], pool="long" if number % 2 else "medium")
    cells.gather_rows()

    path = f"/jobs?limit={limit}"
    assert told(pages(cells.call, path)) == told(pages(cells.call_one, path))
    shown = [
        job["id"]
        for answer in pages(cells.call, f"{path}&pool=long")
        for job in answer.get_json()["jobs"]
    ]
    one = cells.call_one("GET", "/jobs?limit=500&pool=long").get_json()["jobs"]
    assert shown == [job["id"] for job in one]


@pytest.mark.parametrize("limit", [1, 4, 200])
def test_dead_letters_are_those_of_one_database(cells: SeveralCells, limit: int) -> None:
    for number in range(6):
        run(cells, NAMES[number % 3], DEATH)
        run(cells, NAMES[number % 3], SUCCESS)
    cells.gather_rows()

    path = f"/dead-letters?limit={limit}&type=echo"
    merged = [
        letter for page in pages(cells.call, path) for letter in page.get_json()["dead_letters"]
    ]
    assert len(merged) == 6
    assert merged == [
        letter for page in pages(cells.call_one, path) for letter in page.get_json()["dead_letters"]
    ]


@pytest.mark.parametrize("limit", [1, 2, 5, 500])
def test_one_leaderboard_over_three_cells_in_exact_order(cells: SeveralCells, limit: int) -> None:
    put_scores(cells, [90, 80, 80, 80, 70.25, 70.25, 60, 99.99, 100, 0, 80, 60, 60])

    path = f"/leaderboard?limit={limit}"
    merged = told(pages(cells.call, path))

    assert merged == told(pages(cells.call_one, path))
    ranks = [entry["rank"] for document, _ in merged for entry in document["entries"]]
    assert ranks == [1, 2, 3, 4, 4, 4, 4, 8, 8, 10, 10, 10, 13]


def test_the_rank_of_an_application_is_the_one_on_the_leaderboard(cells: SeveralCells) -> None:
    ids = put_scores(cells, [90, 80, 80, 70, 70, 60])

    for job_id in ids:
        answer = cells.call("GET", f"/applications/{job_id}")
        one = cells.call_one("GET", f"/applications/{job_id}")
        assert answer.get_json() == one.get_json()
        etag = answer.headers["ETag"]
        unchanged = cells.call("GET", f"/applications/{job_id}", headers={"If-None-Match": etag})
        assert (unchanged.status_code, unchanged.data) == (304, b"")
        head = cells.call("HEAD", f"/applications/{job_id}")
        assert (head.status_code, head.headers["ETag"], head.data) == (200, etag, b"")
    # A better one in another cell changes the rank, and with it the tag.
    last = cells.call("GET", f"/applications/{ids[-1]}")
    cells.databases["cell-3"].execute(PUT, new_id(cell=3), "best", 99)
    time.sleep(1.1)  # an answer that will not change is kept for a second
    later = cells.call("GET", f"/applications/{ids[-1]}")
    assert later.get_json()["rank"] == last.get_json()["rank"] + 1
    assert later.headers["ETag"] != last.headers["ETag"]


def test_usage_is_the_sum_of_the_cells(cells: SeveralCells) -> None:
    for number in range(7):
        run(
            cells, NAMES[number % 3], SUCCESS, 0.25 + number, pool="long" if number % 2 else "short"
        )
    cells.gather_rows()

    merged = cells.call("GET", "/tenant/usage").get_json()

    assert merged == cells.call_one("GET", "/tenant/usage").get_json()
    assert merged["total"]["jobs"] == 7
    assert Decimal(merged["total"]["cost"]) > 0


def test_the_least_usage_is_added_too(cells: SeveralCells) -> None:
    """Python and JSON write such numbers in different ways."""
    for cell in NAMES:
        run(cells, cell, SUCCESS, 0.00002)
    cells.gather_rows()

    merged = cells.call("GET", "/tenant/usage")

    assert merged.status_code == 200, merged.text
    assert merged.data == cells.call_one("GET", "/tenant/usage").data
    assert merged.get_json()["total"]["slot_seconds"] == 0.00006


#: Directories read what has changed.
TERMS = "UPDATE tenants SET changed_at = now()"


def test_a_tenant_sees_its_terms_undivided_and_what_waits_in_all_cells(cells: SeveralCells) -> None:
    for cell in NAMES:
        cells.databases[cell].execute(f"{TERMS}, submit_per_second = 30, weight = 6")
        cells.apps[cell].extensions["fairline"].tenants.directory.refresh()
        cells.submit(cell)
    cells.submit("cell-2")

    document = cells.call("GET", "/tenant").get_json()

    assert document["waiting"] == {"medium": {"scheduled": 0, "queued": 4}}
    assert document["weight"] == document["effective"]["weight"] == 6
    assert document["effective"]["submit_per_second"] == 30
    for cell in NAMES:
        cells.databases[cell].execute(f"{TERMS}, submit_per_second = NULL, weight = NULL")


def test_a_wrong_parameter_is_refused_as_by_one_cell(cells: SeveralCells) -> None:
    for path in (
        "/jobs?limit=0",
        "/jobs?partial=yes",
        "/jobs?cursor=x",
        "/jobs?nothing=1",
        "/leaderboard?cursor=x",
        "/leaderboard?role=",
    ):
        merged, one = cells.call("GET", path), cells.call_one("GET", path)
        assert (merged.status_code, merged.get_json()) == (422, one.get_json())
    assert (
        cells._call(cells, "GET", "/jobs", None, {"Authorization": "Bearer x"}).status_code == 401
    )


def test_a_row_in_two_cells_is_shown_once_as_the_admitting_cell_has_it(cells: SeveralCells) -> None:
    there = [cells.submit("cell-1") for _ in range(3)]
    cells.gather_rows()
    both = cells.databases["cell-2"].submit(id=there[1], priority=9)
    cells.placement = Placement(2, {"cell-1": 0.0, "cell-2": 1.0})

    for limit in (1, 2, 10):
        shown = [
            job
            for answer in pages(cells.call, f"/jobs?limit={limit}")
            for job in answer.get_json()["jobs"]
        ]
        assert [job["id"] for job in shown] == sorted(there, reverse=True)
        assert [job["priority"] for job in shown if job["id"] == both] == [9]
    assert cells.call("GET", f"/jobs/{both}").get_json()["priority"] == 9


def test_a_list_without_one_cell_says_which_and_is_whole_again_when_it_is_back(
    cells: SeveralCells, postgres: Running[EmbeddedPostgres]
) -> None:
    put_scores(cells, [90, 80, 80, 70, 60, 50])
    jobs = {cell: cells.submit(cell) for cell in NAMES}
    before = cells.call("GET", "/leaderboard").get_json()

    with locked_out(cells.databases["cell-2"], postgres):
        for path in ("/leaderboard", "/jobs", "/dead-letters", "/tenant/usage", "/tenant"):
            began = time.monotonic()
            answer = cells.call("GET", path)
            assert time.monotonic() - began < 2.5
            assert answer.status_code == 503
            assert answer.get_json()["code"] == "CELL_UNAVAILABLE"
            assert "cell-2" in answer.get_json()["detail"]
            assert answer.headers["Retry-After"]
        assert cells.suspected == {"cell-2"}
        part = cells.call("GET", "/leaderboard?partial=true")
        assert part.status_code == 200
        assert part.headers["Fairline-Missing-Cells"] == "cell-2"
        assert len(part.get_json()["entries"]) == 4
        assert cells.call("GET", f"/jobs/{jobs['cell-1']}").status_code == 200
        assert cells.call("DELETE", f"/jobs/{jobs['cell-3']}").status_code == 200
        assert cells.call("GET", f"/jobs/{jobs['cell-2']}").status_code == 503

        cells.away = {"cell-2"}  # as the health of cells says soon
        began = time.monotonic()
        assert cells.call("GET", f"/jobs/{jobs['cell-2']}").status_code == 503
        assert cells.call("GET", "/leaderboard").status_code == 503
        assert time.monotonic() - began < 0.5

    cells.away.clear()
    after = cells.call("GET", "/leaderboard")
    assert (after.status_code, after.get_json()) == (200, before)
    assert "Fairline-Missing-Cells" not in after.headers


def test_a_cell_that_hangs_delays_a_list_by_two_seconds_at_most(cells: SeveralCells) -> None:
    jobs = {cell: cells.submit(cell) for cell in NAMES}
    with cells.databases["cell-2"].engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        answer = cells.call("GET", "/jobs?partial=true")
        assert 1.0 < time.monotonic() - began < 2.5
        connection.exec_driver_sql("ROLLBACK")

    assert answer.headers["Fairline-Missing-Cells"] == "cell-2"
    shown = {job["id"] for job in answer.get_json()["jobs"]}
    assert shown == {jobs["cell-1"], jobs["cell-3"]}
    assert len(cells.call("GET", "/jobs").get_json()["jobs"]) == 3
