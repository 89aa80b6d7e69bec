"""A tenant's cell is away: the API of another region takes its submissions in.

The router as an API process has it, in the test's own process, with the databases of two cells and
the registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from app.cells.router import CellRouter
from app.config import Settings
from app.scheduler.maintenance.intake_handover import IntakeHandover
from app.scheduler.maintenance.placement_check import TenantCopier
from app.server.cells import build_router
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from app.tenants.changes import issue_key, revoke_key
from models.blobs import open_blobs
from models.cells.placements import change_placement
from models.cells.tenant_rows import read_own_rows, write_own_rows
from models.store.session import transaction
from tests.support.cell_databases import NO_BROKER, TestCells, two_cells
from tests.support.waiting import wait_for

JOB = {"type": "echo", "payload": {"a": 1}}
APPLICATION = {"candidate": "Ada", "role": "engineer", "payload": {"years": 3}}


class RegionFront:
    """The API of the other region, called as a tenant."""

    def __init__(self, cells: TestCells, router: CellRouter, key: str) -> None:
        self.cells = cells
        self.router = router
        self.key = key
        self._client = Client(router)

    def call(
        self, method: str, path: str, body: Any = None, *, key: str = "", **headers: str
    ) -> TestResponse:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {"Authorization": f"Bearer {key or self.key}", **given}
        return self._client.open(path, method=method, headers=sent, json=body)

    def submit(self, body: Mapping[str, Any] = JOB, path: str = "/jobs", **headers: str) -> str:
        answer = self.call("POST", path, body, **headers)
        assert answer.status_code == 202, answer.text
        return str(answer.get_json()["id"])

    def lose_home(self) -> None:
        """Take the cell away, and wait until this process knows."""
        self.cells.home.leave()

        def known() -> bool:
            self.call("GET", "/jobs")
            return self.router.is_away("cell-eu")

        wait_for(known, 20.0)

    def refresh(self) -> None:
        """Read what changed, as the process does every second."""
        app = self.router.app_of("cell-eu")
        assert app is not None
        app.extensions["fairline"].tenants.directory.refresh()

    def find_home(self) -> None:
        self.cells.home.come_back()
        wait_for(lambda: not self.router.is_away("cell-eu"), 20.0)

    def hand_over(self, blobs: Path) -> int:
        """One turn of the host's scheduler."""
        cells = self.cells
        role = IntakeHandover(
            cells.host.engine,
            cells.host.leader,
            cells.databases,
            open_blobs(str(blobs)),
            host="cell-us",
            keep_seconds=86_400.0,
        )
        return role.run_once(time.monotonic())


@contextmanager
def routing(cells: TestCells, blobs: Path, region: str = "us") -> Iterator[CellRouter]:
    """An API process of a region, whose own database is the registry's."""
    settings = Settings(
        database_url=cells.registry_url,
        registry_url=cells.registry_url,
        broker_url=NO_BROKER,
        blob_url=str(blobs),
        region=region,
        db_connect_seconds=0.5,
        admission_seconds=1.0,
    )
    router = build_router(settings)
    router.cache.refresh()
    try:
        yield router
    finally:
        router.end_serving()


@pytest.fixture(scope="module")
def made_cells(postgres: Running[EmbeddedPostgres]) -> Iterator[TestCells]:
    with two_cells(postgres) as made:
        yield made


@pytest.fixture
def cells(made_cells: TestCells) -> TestCells:
    """Two cells and a registry with nothing in them."""
    return made_cells.empty()


@pytest.fixture
def front(cells: TestCells, tmp_path: Path) -> Iterator[RegionFront]:
    """A process that knows the tenant: it has called before."""
    _, key = cells.tenant()
    with routing(cells, tmp_path) as router:
        known = RegionFront(cells, router, key)
        assert known.call("GET", "/jobs").status_code == 200
        yield known


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


def limited(cells: TestCells) -> None:
    cells.home.run("UPDATE tenants SET submit_per_second = 1, submit_burst = 2, changed_at = now()")


def suspended(cells: TestCells) -> None:
    cells.home.run("UPDATE tenants SET suspended_at = now(), changed_at = now()")


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


def test_a_tenant_without_a_copy_is_refused_by_such_a_process(
    cells: TestCells, tmp_path: Path
) -> None:
    _, key = cells.tenant()
    cells.home.leave()
    with routing(cells, tmp_path) as router:
        front = RegionFront(cells, router, key)
        assert front.call("POST", "/jobs", JOB).status_code == 503


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
