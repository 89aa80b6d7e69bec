"""A tenant's cell is away: the API of another region takes its submissions in.

The router as an API process has it, in the test's own process, with the databases of two cells and
the registry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from models.blobs import open_blobs
from models.store.session import transaction
from tests.support.cell_databases import TestCells
from tests.support.region_front import APPLICATION, JOB, RegionFront, routing


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def names(answer: TestResponse) -> set[str]:
    """Its headers."""
    return {name for name, _ in answer.headers}


@pytest.mark.parametrize(("path", "body"), [("/jobs", JOB), ("/applications", APPLICATION)])
def test_a_submission_gets_the_usual_202_and_a_poll_says_why_it_waits(
    front: RegionFront, path: str, body: Mapping[str, Any], tmp_path: Path
) -> None:
    usual = front.call("POST", path, body)
    read = front.call("GET", f"{path}/{usual.get_json()['id']}")
    front.lose_home()
    answer = front.call("POST", path, body)
    assert answer.status_code == usual.status_code == 202
    assert names(answer) == names(usual)
    assert answer.get_json().keys() == usual.get_json().keys()
    assert answer.get_json()["status"] == usual.get_json()["status"]
    job_id = answer.get_json()["id"]
    assert answer.headers["Location"] == f"{path}/{job_id}"
    poll = front.call("GET", f"{path}/{job_id}")
    assert poll.status_code == 200
    assert poll.get_json()["reason"] == "cell_away"
    assert poll.get_json()["status"] == usual.get_json()["status"]
    assert poll.get_json().keys() == {*read.get_json(), "reason"}
    assert names(poll) == names(read)
    unchanged = front.call("GET", f"{path}/{job_id}", If_None_Match=poll.headers["ETag"])
    assert unchanged.status_code == 304
    assert front.call("HEAD", f"{path}/{job_id}").status_code == 200
    front.find_home()
    # Its cell is back and does not have it yet.
    assert front.call("GET", f"{path}/{job_id}").get_json()["reason"] == "cell_away"
    assert front.hand_over(tmp_path) == 1
    later = front.call("GET", f"{path}/{job_id}").get_json()
    assert later.keys() == read.get_json().keys()
    assert later["id"] == job_id and later["created_at"] == poll.get_json()["created_at"]


def test_why_and_what_ran_can_be_asked(front: RegionFront) -> None:
    front.lose_home()
    job_id = front.submit()
    wait = front.call("GET", f"/jobs/{job_id}/wait").get_json()
    assert (wait["reason"], wait["status"], wait["id"]) == ("cell_away", "queued", job_id)
    assert front.call("GET", f"/jobs/{job_id}/runs").get_json() == {"runs": []}


def test_a_job_for_later_is_scheduled(front: RegionFront) -> None:
    front.lose_home()
    job_id = front.submit({**JOB, "execute_at": "2099-01-01T00:00:00Z"})
    assert front.call("GET", f"/jobs/{job_id}").get_json()["status"] == "scheduled"


def test_what_only_the_cell_knows_is_a_503_and_not_a_404(front: RegionFront) -> None:
    before = front.submit()
    front.lose_home()
    for path in (f"/jobs/{before}", "/jobs", "/tenant", "/leaderboard?role=engineer"):
        answer = front.call("GET", path)
        assert answer.status_code == 503, path
        assert answer.headers["Retry-After"]


def test_a_process_without_a_region_takes_nothing_in(cells: TestCells, tmp_path: Path) -> None:
    _, key = cells.tenant()
    with routing(cells, tmp_path, region="") as router:
        front = RegionFront(cells, router, key)
        front.submit()
        front.lose_home()
        began = time.monotonic()
        assert front.call("POST", "/jobs", JOB).status_code == 503
        assert time.monotonic() - began < 2.0


def test_a_job_can_be_cancelled_before_it_is_handed_over(
    front: RegionFront, tmp_path: Path
) -> None:
    front.lose_home()
    job_id = front.submit()
    application = front.submit(APPLICATION, "/applications")
    answer = front.call("DELETE", f"/jobs/{job_id}")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "cancelled")
    assert front.call("DELETE", f"/jobs/{job_id}").status_code == 200
    assert front.call("GET", f"/jobs/{job_id}").get_json()["status"] == "cancelled"
    answer = front.call("DELETE", f"/applications/{application}")
    assert (answer.status_code, answer.get_json()["status"]) == (200, "withdrawn")
    front.find_home()
    front.hand_over(tmp_path)
    assert front.call("GET", f"/jobs/{job_id}").get_json()["status"] == "cancelled"
    assert front.call("GET", f"/applications/{application}").get_json()["status"] == "withdrawn"


def test_a_batch_is_taken_in_whole_with_a_result_for_each(
    front: RegionFront, tmp_path: Path
) -> None:
    front.lose_home()
    body = {"jobs": [JOB, {"type": "unknown"}, JOB]}
    answer = front.call("POST", "/jobs/batch", body, Idempotency_Key="b")
    assert answer.status_code == 202, answer.text
    first, wrong, second = answer.get_json()["results"]
    assert wrong["error"]["code"] == "VALIDATION_FAILED"
    for one in (first, second):
        assert front.call("GET", f"/jobs/{one['id']}").get_json()["status"] == "queued"
    again = front.call("POST", "/jobs/batch", body, Idempotency_Key="b")
    assert again.get_json() == answer.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    front.find_home()
    front.hand_over(tmp_path)
    for one in (first, second):
        found = front.call("GET", f"/jobs/{one['id']}").get_json()
        assert found["status"] == "queued" and "reason" not in found


def test_a_large_payload_is_kept(front: RegionFront, tmp_path: Path) -> None:
    front.lose_home()
    job_id = front.submit({"type": "echo", "payload": {"text": "x" * 200_000}})
    front.find_home()
    assert front.hand_over(tmp_path) == 1
    [[blob]] = front.cells.home.rows("SELECT payload_blob FROM jobs WHERE id = %s::uuid", job_id)
    assert len(open_blobs(str(tmp_path)).get(str(blob))) > 200_000


def test_the_registry_may_be_away_too(front: RegionFront) -> None:
    front.submit()
    front.lose_home()
    name = front.cells.registry.url.database
    with transaction(front.cells.host.engine) as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
    try:
        assert front.submit()
    finally:
        with transaction(front.cells.host.engine) as connection:
            connection.exec_driver_sql(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
