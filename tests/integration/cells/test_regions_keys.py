"""Idempotency keys of submissions to the API of another region, before, in and after the outage."""

from __future__ import annotations

from pathlib import Path

from models.cells.placements import change_placement
from models.cells.tenant_rows import read_own_rows, write_own_rows
from models.store.session import transaction
from tests.support.region_front import JOB, RegionFront


def test_a_key_is_one_request_in_the_intake(front: RegionFront) -> None:
    front.lose_home()
    first = front.call("POST", "/jobs", JOB, Idempotency_Key="k")
    again = front.call("POST", "/jobs", JOB, Idempotency_Key="k")
    assert again.get_json() == first.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    other = front.call("POST", "/jobs", {**JOB, "priority": 1}, Idempotency_Key="k")
    assert (other.status_code, other.get_json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


def test_a_key_of_before_the_outage_answers_with_the_first_job_in_the_end(
    front: RegionFront, tmp_path: Path
) -> None:
    first = front.submit(Idempotency_Key="k")
    front.lose_home()
    again = front.submit(Idempotency_Key="k")
    assert again != first
    front.find_home()
    front.hand_over(tmp_path)
    found = front.call("GET", f"/jobs/{again}")
    assert (found.status_code, found.get_json()["id"]) == (200, first)
    assert front.call("DELETE", f"/jobs/{again}").get_json()["id"] == first
    assert front.cells.home.rows("SELECT id::text FROM jobs") == [(first,)]


def test_a_key_of_before_the_outage_with_another_request_fails_with_the_reason(
    front: RegionFront, tmp_path: Path
) -> None:
    front.submit(Idempotency_Key="k")
    front.lose_home()
    other = front.submit({**JOB, "priority": 1}, Idempotency_Key="k")
    front.find_home()
    front.hand_over(tmp_path)
    found = front.call("GET", f"/jobs/{other}").get_json()
    assert found["status"] == "dead"
    assert "Idempotency-Key" in found["error"]["message"]


def test_a_key_that_was_used_in_the_outage_is_known_to_the_cell_afterwards(
    front: RegionFront, tmp_path: Path
) -> None:
    front.lose_home()
    first = front.submit(Idempotency_Key="k")
    front.find_home()
    front.hand_over(tmp_path)
    assert front.submit(Idempotency_Key="k") == first


def test_a_tenant_of_several_cells_is_taken_in_for_the_one_that_its_key_belongs_to(
    front: RegionFront, tmp_path: Path
) -> None:
    cells = front.cells
    [[tenant_id]] = cells.home.rows("SELECT id FROM tenants")
    with transaction(cells.host.engine) as connection:
        write_own_rows(connection, read_own_rows(cells.home.engine, int(str(tenant_id))), share=0.5)
    known = front.router.placement_of("acme")
    assert known is not None
    with transaction(cells.registry) as connection:
        both = {"cell-eu": 1.0, "cell-us": 1.0}
        assert change_placement(connection, "acme", known.version, both)
    front.router.cache.refresh()
    placement = front.router.placement_of("acme")
    assert placement is not None
    key = next(f"k{n}" for n in range(100) if placement.choose(f"k{n}".encode()) == "cell-eu")
    front.lose_home()
    assert front.submit()  # without a key it goes to the other cell
    assert cells.host.rows("SELECT count(*) FROM jobs") == [(1,)]
    job_id = front.submit(Idempotency_Key=key)
    assert cells.host.rows("SELECT count(*) FROM intake_jobs") == [(1,)]
    assert front.call("GET", f"/jobs/{job_id}").get_json()["reason"] == "cell_away"
    front.find_home()
    assert front.call("GET", f"/jobs/{job_id}").get_json()["reason"] == "cell_away"
    assert front.hand_over(tmp_path) == 1
    assert "reason" not in front.call("GET", f"/jobs/{job_id}").get_json()
    assert cells.home.rows("SELECT id::text FROM jobs") == [(job_id,)]
    assert front.submit(Idempotency_Key=key) == job_id
