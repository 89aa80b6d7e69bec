"""Requests that were taken in for a cell that is away are handed over once, whatever dies when."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from app.scheduler.maintenance import intake_handover
from app.scheduler.maintenance.intake_handover import IntakeHandover
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.blobs import open_blobs, payload_key
from models.cells.away import close_tenant, open_tenant
from models.cells.intake_jobs import (
    begin_handing_over,
    cancel_kept,
    find_kept,
    keep_group,
    request_of,
    waiting_tenants,
)
from models.cells.placements import change_placement, read_placement
from models.encryption.key_ring import PREFIX
from models.jobs.admit import admit_group
from models.jobs.hand_over import IntakeRequest, hand_over
from models.jobs.ids import new_id
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission, SubmissionGroup
from models.store.session import transaction
from tests import ROOT
from tests.support.cell_databases import TestCell, TestCells, two_cells
from tests.support.encryption_keys import encrypting, new_key

DAY = 86_400.0
DIGEST, OTHER_DIGEST = b"d" * 32, b"o" * 32


@pytest.fixture(scope="module")
def made_cells(postgres: Running[EmbeddedPostgres]) -> Iterator[TestCells]:
    with two_cells(postgres) as made:
        yield made


@pytest.fixture
def cells(made_cells: TestCells) -> TestCells:
    """Two cells and a registry with nothing in them."""
    return made_cells.empty()


def handover(cells: TestCells, blobs: Path) -> IntakeHandover:
    return IntakeHandover(
        cells.host.engine,
        cells.host.leader,
        cells.databases,
        open_blobs(str(blobs)),
        host=cells.host.name,
        keep_seconds=DAY,
    )


def request(
    tenant_id: int, jobs: int = 1, key: str | None = None, digest: bytes = DIGEST, **fields: object
) -> IntakeRequest:
    """A request of the tenant ``acme`` of the home cell."""
    values = {"type": "echo", "pool": "short", "payload": '{"a": 1}', **fields}
    items = tuple(Submission(id=new_id(), tenant_id=tenant_id, **values) for _ in range(jobs))  # type: ignore[arg-type]
    given = None if key is None else IdempotencyKey(key, digest)
    return IntakeRequest("acme", "cell-eu", items, given)


def begin(cells: TestCells, one: IntakeRequest, cell: str = "cell-eu") -> bool:
    """Begin as a leader does that dies then."""
    return bool(begin_handing_over(cells.host.engine, {one.id: cell}, cells.host.leader.epoch))


def spread(cells: TestCells, tenant_id: int, weights: dict[str, float]) -> None:
    """As a move would: the tenant is in the other cell too, with the same id."""
    cells.host.run(
        "INSERT INTO tenants (id, name) OVERRIDING SYSTEM VALUE VALUES (%s, 'acme')", tenant_id
    )
    known = read_placement(cells.registry, "acme")
    assert known is not None
    version = known.version + 1
    with transaction(cells.registry) as connection:
        assert change_placement(connection, "acme", known.version, weights)
    for cell in (cells.home, cells.host):
        (open_tenant if weights.get(cell.name) else close_tenant)(cell.engine, tenant_id, version)


def statuses(cell: TestCell) -> dict[str, str]:
    """The jobs of a cell."""
    rows = cell.rows("SELECT id::text, status::text FROM jobs")
    return {str(job_id): str(status) for job_id, status in rows}


def kept(cells: TestCells) -> list[str]:
    return [str(row[0]) for row in cells.host.rows("SELECT id::text FROM intake_jobs")]


def record_inserts(cell: TestCell) -> None:
    """Note every job that is inserted, also one that is deleted and inserted again."""
    cell.run("CREATE TABLE seen (id uuid)")
    cell.run("""
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END $$""")
    cell.run("CREATE TRIGGER noted AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION note()")


def inserted(cell: TestCell) -> list[str]:
    return sorted(str(row[0]) for row in cell.rows("SELECT id::text FROM seen"))


def test_requests_become_jobs_of_their_cell_with_their_ids_keys_and_times(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one, batch = request(tenant_id, key="k"), request(tenant_id, jobs=3)
    assert keep_group(cells.host.engine, [one, batch]) == [
        Admitted((one.id,)),
        Admitted(tuple(item.id for item in batch.submissions)),
    ]
    cells.host.run("UPDATE intake_jobs SET created_at = created_at - interval '5 minutes'")
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 2
    ids = {one.id, *(item.id for item in batch.submissions)}
    assert statuses(cells.home) == dict.fromkeys(ids, "queued")
    assert kept(cells) == []
    [[key, first]] = cells.home.rows("SELECT key, job_ids[1]::text FROM idempotency_keys")
    assert (key, first) == ("k", one.id)
    [[oldest]] = cells.home.rows("SELECT max(now() - created_at) FROM jobs")
    assert timedelta(minutes=4) < oldest < timedelta(minutes=6)  # type: ignore[operator]
    assert statuses(cells.host) == {}


def test_nothing_happens_while_the_cell_is_away_and_everything_when_it_is_back(
    cells: TestCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_handover, "AWAY_SECONDS", 0.0)
    tenant_id, _ = cells.tenant()
    one, role = request(tenant_id), handover(cells, tmp_path)
    keep_group(cells.host.engine, [one])
    cells.home.leave()
    assert role.run_once(time.monotonic()) == 0
    assert kept(cells) == [one.id]
    cells.home.come_back()
    assert role.run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"}


def test_whoever_dies_before_the_cell_has_them_leaves_them_to_the_next(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    assert begin(cells, one)
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {one.id: "queued"}
    assert kept(cells) == []


def test_whoever_dies_after_the_cell_has_them_inserts_nothing_again_even_if_the_job_is_gone(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    begin(cells, one)
    [done] = hand_over(cells.home.engine, cells.host.name, [one])
    assert done.fresh
    cells.home.run("DELETE FROM jobs")  # it has ended, and was retired
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {}
    assert kept(cells) == []


def test_only_a_leader_begins(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    assert begin_handing_over(cells.host.engine, {one.id: "cell-eu"}, 1) == []


def test_a_key_of_before_the_outage_with_the_same_request_is_an_alias(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, jobs=2, key="k"), request(tenant_id, jobs=2, key="k")
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [again])
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home).keys() == {item.id for item in first.submissions}
    for mine, other in zip(again.submissions, first.submissions, strict=True):
        row = find_kept(cells.host.engine, [mine.id])[mine.id]
        assert row.alias(mine.id) == other.id
        assert row.body == ""
    assert waiting_tenants(cells.host.engine) == []
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 0


def test_an_alias_is_found_again_by_who_finds_the_request_handed_over(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, key="k"), request(tenant_id, key="k")
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [again])
    hand_over(cells.home.engine, cells.host.name, [again])  # and died
    handover(cells, tmp_path).run_once(time.monotonic())
    assert find_kept(cells.host.engine, [again.id])[again.id].alias(again.id) == first.id


def test_a_key_of_before_the_outage_with_another_request_ends_the_job_with_a_clear_error(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    first = request(tenant_id, key="k", digest=OTHER_DIGEST)
    work = json.dumps({"candidate": "Ada", "role": "general", "payload": {}})
    other = request(
        tenant_id,
        key="k",
        type="score_application",
        pool="medium",
        payload=work,
        candidate="Ada",
        role="general",
    )
    admit_group(cells.home.engine, [SubmissionGroup(first.submissions, first.key)], False)
    keep_group(cells.host.engine, [other])
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {first.id: "queued", other.id: "dead"}
    [row] = cells.home.rows(
        "SELECT error_class, error_message, finished_at IS NOT NULL, ended_xid IS NOT NULL"
        " FROM jobs WHERE id = %s::uuid",
        other.id,
    )
    assert row[0] == "PERMANENT" and "Idempotency-Key" in str(row[1]) and row[2] and row[3]
    assert cells.home.rows("SELECT id::text FROM applications") == [(other.id,)]
    counted = "SELECT sum(dead)::int, sum(queued)::int FROM job_counts WHERE tenant_id = %s"
    assert cells.home.rows(counted, tenant_id) == [(1, 1)]
    assert kept(cells) == []


def test_a_key_is_used_once_in_the_intake(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    first, again = request(tenant_id, key="k"), request(tenant_id, key="k")
    other = request(tenant_id, key="k", digest=OTHER_DIGEST)
    [admitted] = keep_group(cells.host.engine, [first])
    assert admitted == Admitted((first.id,))
    repeated, reused = keep_group(cells.host.engine, [again, other])
    assert isinstance(repeated, Admitted) and repeated.repeated and repeated.ids == (first.id,)
    assert reused == KeyReused()
    assert keep_group(cells.host.engine, [first]) == [Admitted((first.id,))]  # a lost answer
    assert kept(cells) == [first.id]


def test_cancelled_jobs_are_cancelled_in_their_cell_and_later_cancellations_are_refused(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    batch = request(tenant_id, jobs=2)
    stays, goes = (item.id for item in batch.submissions)
    keep_group(cells.host.engine, [batch])
    row = find_kept(cells.host.engine, [goes])[goes]
    assert cancel_kept(cells.host.engine, row, goes)
    assert cancel_kept(cells.host.engine, row, goes)
    begin(cells, batch)
    assert not cancel_kept(cells.host.engine, row, stays)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {stays: "queued", goes: "cancelled"}


def test_requests_follow_a_tenant_that_was_moved_meanwhile(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id, key="k")
    keep_group(cells.host.engine, [one])
    close_tenant(cells.home.engine, tenant_id, 2)
    role = handover(cells, tmp_path)
    assert role.run_once(time.monotonic()) == 0
    assert statuses(cells.home) == {} and kept(cells) == [one.id]
    spread(cells, tenant_id, {"cell-us": 1.0})
    assert role.run_once(time.monotonic()) == 1
    assert statuses(cells.home) == {}
    assert statuses(cells.host) == {one.id: "queued"}
    assert kept(cells) == []


def test_jobs_of_a_suspended_tenant_wait_in_its_cell(cells: TestCells, tmp_path: Path) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id)
    keep_group(cells.host.engine, [one])
    cells.home.run("UPDATE tenants SET suspended_at = now()")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {one.id: "queued"}


def test_the_depth_of_the_queue_does_not_count_again(cells: TestCells, tmp_path: Path) -> None:
    tenant_id, _ = cells.tenant()
    cells.home.run(
        "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (%s, 'short', 1)", tenant_id
    )
    requests = [request(tenant_id) for _ in range(3)]
    keep_group(cells.host.engine, requests)
    handover(cells, tmp_path).run_once(time.monotonic())
    assert len(statuses(cells.home)) == 3


@pytest.mark.parametrize("gone", [False, True])
def test_requests_of_a_deleted_tenant_are_deleted(
    cells: TestCells, tmp_path: Path, gone: bool
) -> None:
    tenant_id, _ = cells.tenant()
    keep_group(cells.host.engine, [request(tenant_id)])
    cells.home.run("UPDATE tenants SET deleted_at = now()")
    if gone:
        with cells.registry.connect() as connection:
            connection.exec_driver_sql("DELETE FROM placements")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert kept(cells) == [] and statuses(cells.home) == {}


def test_requests_of_a_tenant_are_not_those_of_a_later_one_with_its_name(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    keep_group(cells.host.engine, [request(tenant_id)])
    cells.home.run("DELETE FROM api_keys")
    cells.home.run("DELETE FROM tenants")
    cells.home.run("INSERT INTO tenants (name) VALUES ('acme')")
    handover(cells, tmp_path).run_once(time.monotonic())
    assert kept(cells) == [] and statuses(cells.home) == {}


def test_large_payloads_wait_in_their_row_and_are_in_the_store_before_their_job_is(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    one = request(tenant_id, payload="null")
    [item] = one.submissions
    placed = item._replace(payload_blob=payload_key(item.id))
    keep_group(
        cells.host.engine, [one._replace(submissions=(placed,), blobs={item.id: b"large" * 9})]
    )
    handover(cells, tmp_path).run_once(time.monotonic())
    assert open_blobs(str(tmp_path)).get(payload_key(item.id)) == b"large" * 9
    assert cells.home.rows("SELECT payload_blob FROM jobs") == [(payload_key(item.id),)]


def test_what_is_kept_is_encrypted_and_becomes_a_readable_job(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    with encrypting(new_key("k1")):
        one = request(tenant_id, key="k", payload='{"secret": "s3cr3t"}')
        keep_group(cells.host.engine, [one])
        [[body]] = cells.host.rows("SELECT body FROM intake_jobs")
        assert str(body).startswith(PREFIX)
        row = find_kept(cells.host.engine, [one.id])[one.id]
        found = request_of(row, tenant_id)
        assert found is not None and found.submissions == one.submissions
        repeated = keep_group(cells.host.engine, [request(tenant_id, key="k")])[0]
        assert isinstance(repeated, Admitted) and repeated.ids == (one.id,)
        assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
        # Its digest is the one that the cell itself would have stored.
        again = request(tenant_id, key="k")
        [outcome] = admit_group(
            cells.home.engine, [SubmissionGroup(again.submissions, again.key)], False
        )
        assert isinstance(outcome, Admitted) and outcome.ids == (one.id,)


def test_one_request_that_cannot_be_inserted_does_not_keep_the_others(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    bad = request(tenant_id, priority=1_000_000)  # no column takes it
    good = [request(tenant_id) for _ in range(3)]
    keep_group(cells.host.engine, [bad, *good])
    handover(cells, tmp_path).run_once(time.monotonic())
    assert statuses(cells.home) == {one.id: "queued" for one in good}
    assert kept(cells) == [bad.id]


def test_two_at_once_hand_everything_over_once(cells: TestCells, tmp_path: Path) -> None:
    tenant_id, _ = cells.tenant()
    requests = [request(tenant_id, key=f"k{n}" if n % 2 else None) for n in range(1_500)]
    for first in range(0, len(requests), 500):
        keep_group(cells.host.engine, requests[first : first + 500])
    record_inserts(cells.home)
    roles = [handover(cells, tmp_path) for _ in range(2)]
    threads = [threading.Thread(target=drain, args=(role, cells)) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inserted(cells.home) == sorted(one.id for one in requests)
    assert kept(cells) == []


def drain(role: IntakeHandover, cells: TestCells) -> None:
    deadline = time.monotonic() + 60.0
    while kept(cells) and time.monotonic() < deadline:
        role.run_once(time.monotonic())


ROLE = """
import sys, time
from app.scheduler.maintenance.intake_handover import IntakeHandover
from models.blobs import open_blobs
from models.cells.databases import CellDatabases
from models.leadership import Leader
from models.settings import DatabaseSettings
from models.store.session import open_engine
registry_url, host_url, blobs, name = sys.argv[1:]
settings = DatabaseSettings(database_url=registry_url)
engine = open_engine(settings.model_copy(update={"database_url": host_url}))
leader = Leader(engine, name)
databases = CellDatabases(open_engine(settings), settings)
role = IntakeHandover(engine, leader, databases, open_blobs(blobs), host="cell-us",
                      keep_seconds=86400.0)
print("begins", flush=True)
while True:
    leader.run_once(0.0)
    role.run_once(time.monotonic())
"""


@pytest.mark.timeout(180)
def test_whenever_the_role_is_killed_every_request_is_handed_over_once(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    chance = random.Random(19)
    requests = [
        request(tenant_id, jobs=1 + n % 3, key=f"k{n}" if n % 2 else None) for n in range(3_000)
    ]
    for first in range(0, len(requests), 500):
        keep_group(cells.host.engine, requests[first : first + 500])
    record_inserts(cells.home)
    cells.host.leader.resign()
    kills = 0
    deadline = time.monotonic() + 120.0
    while kept(cells) and time.monotonic() < deadline:
        # A lease of a killed one would have to expire first.
        cells.host.run("UPDATE leaders SET expires_at = now() - interval '1 second'")
        process = begun(cells, tmp_path, f"leader-{kills}")
        time.sleep(chance.uniform(0.0, 0.4))
        with process:  # closes its output
            os.kill(process.pid, signal.SIGKILL)
        kills += 1
    assert kept(cells) == []
    assert kills >= 3, "it was to be killed a few times"
    assert inserted(cells.home) == sorted(item.id for one in requests for item in one.submissions)


def begun(cells: TestCells, blobs: Path, name: str) -> subprocess.Popen[bytes]:
    """A process of the role, which has begun."""
    url = cells.host.engine.url.render_as_string(hide_password=False)
    words = (sys.executable, "-c", ROLE, cells.registry_url, url, str(blobs), name)
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, env=dict(os.environ))
    assert process.stdout is not None
    assert process.stdout.readline() == b"begins\n"
    return process
