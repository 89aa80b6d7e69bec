"""A cell is lost for good: another one is promoted in its place, and the lost one comes back."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from app.scheduler.maintenance.mover import Mover
from app.scheduler.maintenance.placement_check import PlacementCheck, TenantCopier
from app.stack.programs import flask
from models.cells.away import read_away
from models.cells.intake_jobs import keep_group
from models.cells.moves import cancel_move, read_move, request_move
from models.cells.placements import change_placement, place_tenant, read_placement
from models.cells.promotion import promote, replaced
from models.jobs.admit import admit_group
from models.jobs.hand_over import IntakeRequest
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.store.session import transaction
from tests import ROOT
from tests.support.cell_databases import TestCells
from tests.support.intake_requests import handover, statuses
from tests.support.waiting import wait_for

NIGHTLY = """
    INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type, payload)
    VALUES (%s, %s, 'nightly', '0 3 * * *', 'UTC', 'skip', 'one', 'echo', '{}')
"""


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


def copy_all(cells: TestCells) -> None:
    """What the scheduler of the home cell does every few seconds."""
    TenantCopier(cells.home.engine, cells.home.leader, cells.databases).run_once(0.0)


def submission(tenant_id: int) -> Submission:
    return Submission(new_id(), tenant_id, "echo", "short", "{}")


def command(cells: TestCells, *words: str) -> subprocess.CompletedProcess[str]:
    """``cells promote`` as an operator calls it."""
    env = {
        **os.environ,
        "FAIRLINE_DATABASE_URL": cells.registry_url,
        "FAIRLINE_REGISTRY_URL": cells.registry_url,
    }
    return subprocess.run(
        flask("cells", "promote", *words),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def weights(cells: TestCells, tenant: str = "acme") -> dict[str, float]:
    placement = read_placement(cells.registry, tenant)
    assert placement is not None
    return dict(placement.weights)


def test_the_command_places_the_tenants_in_the_other_cell_with_terms_keys_and_schedules(
    cells: TestCells,
) -> None:
    tenant_id, _ = cells.tenant()
    cells.home.run("UPDATE tenants SET submit_per_second = 7, types = '{echo}'")
    cells.home.run(
        "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (%s, 'short', 5)", tenant_id
    )
    cells.home.run(NIGHTLY, new_id(), tenant_id)
    copy_all(cells)
    cells.home.leave()
    done = command(cells, "cell-eu", "--to", "cell-us", "--yes")
    assert done.returncode == 0, done.stderr
    assert "1 tenants of cell-eu live in cell-us now" in done.stdout
    assert weights(cells) == {"cell-us": 1.0}
    read = "SELECT id, name, submit_per_second, types, share FROM tenants"
    assert cells.host.rows(read) == [(tenant_id, "acme", 7.0, ["echo"], 1.0)]
    assert cells.host.rows("SELECT tenant_id, depth FROM tenant_limits") == [(tenant_id, 5)]
    assert cells.host.rows("SELECT count(*) FROM api_keys") == [(1,)]
    assert cells.host.rows("SELECT name FROM schedules") == [("nightly",)]
    with cells.registry.connect() as connection:
        state = connection.exec_driver_sql("SELECT state FROM cells WHERE name = 'cell-eu'")
        assert state.scalar() == "draining"
        acts = connection.exec_driver_sql("SELECT what FROM audit_log ORDER BY what")
        assert [row.what for row in acts] == ["cell.change", "tenant.move"]


def test_a_cell_that_answers_is_not_replaced_without_force(cells: TestCells) -> None:
    cells.tenant()
    copy_all(cells)
    done = command(cells, "cell-eu", "--to", "cell-us", "--yes")
    assert done.returncode == 1 and "cell-eu answers" in done.stderr
    assert weights(cells) == {"cell-eu": 1.0}
    assert command(cells, "cell-eu", "--to", "cell-us", "--yes", "--force").returncode == 0
    assert weights(cells) == {"cell-us": 1.0}


def test_unknown_cells_and_one_that_is_away_too_are_refused(cells: TestCells) -> None:
    cells.home.leave()
    assert "There is no cell 'x'" in command(cells, "x", "--to", "cell-us", "--yes").stderr
    assert "another cell" in command(cells, "cell-eu", "--to", "cell-eu", "--yes").stderr
    assert "does not answer" in command(cells, "cell-us", "--to", "cell-eu", "--yes").stderr


def test_a_tenant_without_a_copy_stays_and_is_reported(cells: TestCells) -> None:
    cells.tenant("acme")
    copy_all(cells)
    cells.tenant("later")
    cells.home.leave()
    done = command(cells, "cell-eu", "--to", "cell-us", "--yes")
    assert done.returncode == 1 and "no copy of later" in done.stderr
    assert weights(cells, "acme") == {"cell-us": 1.0}
    assert weights(cells, "later") == {"cell-eu": 1.0}


def test_a_tenant_that_cannot_be_installed_keeps_no_other(cells: TestCells) -> None:
    for name in ("acme", "later"):
        cells.tenant(name)
    copy_all(cells)
    with cells.registry.connect() as connection:
        connection.exec_driver_sql("""
            UPDATE tenant_copies SET rows = jsonb_set(rows, '{tenants,0,weight}', '"-1"')
            WHERE tenant = 'acme'""")
    cells.home.leave()
    done = command(cells, "cell-eu", "--to", "cell-us", "--yes")
    assert done.returncode == 1 and "acme stays where it is" in done.stderr
    assert weights(cells, "acme") == {"cell-eu": 1.0}
    assert weights(cells, "later") == {"cell-us": 1.0}


def test_doing_it_again_changes_nothing(cells: TestCells) -> None:
    cells.tenant()
    copy_all(cells)
    cells.home.leave()
    assert promote(cells.databases, "cell-eu", "cell-us").tenants == ["acme"]
    before = read_placement(cells.registry, "acme")
    cells.host.run("UPDATE tenants SET weight = 3")
    assert promote(cells.databases, "cell-eu", "cell-us").tenants == []
    assert read_placement(cells.registry, "acme") == before
    assert cells.host.rows("SELECT weight FROM tenants") == [(3.0,)]


def test_whoever_died_before_the_placement_changed_goes_on(cells: TestCells) -> None:
    """The tenant is in the other cell already, and nobody uses it there yet."""
    from models.cells.copies import install_copy, read_copy

    tenant_id, _ = cells.tenant()
    copy_all(cells)
    copy = read_copy(cells.registry, "acme")
    assert copy is not None
    with transaction(cells.host.engine) as connection:
        install_copy(connection, copy)
    cells.home.leave()
    assert promote(cells.databases, "cell-eu", "cell-us").tenants == ["acme"]
    assert weights(cells) == {"cell-us": 1.0}
    assert cells.host.rows("SELECT id FROM tenants") == [(tenant_id,)]


def test_requests_that_were_taken_in_become_jobs_of_the_promoted_cell(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    copy_all(cells)
    cells.home.leave()
    request = IntakeRequest("acme", "cell-eu", (submission(tenant_id),))
    keep_group(cells.host.engine, [request])
    promote(cells.databases, "cell-eu", "cell-us")
    assert handover(cells, tmp_path).run_once(time.monotonic()) == 1
    assert statuses(cells.host) == {request.id: "queued"}


@pytest.mark.timeout(120)
def test_the_lost_cell_comes_back_and_its_jobs_follow_their_tenant(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    old = submission(tenant_id)
    admit_group(cells.home.engine, [SubmissionGroup((old,))], False)
    copy_all(cells)
    cells.home.leave()
    promote(cells.databases, "cell-eu", "cell-us")
    new = submission(tenant_id)
    admit_group(cells.host.engine, [SubmissionGroup((new,))], False)
    cells.home.come_back()
    cells.home.leader.run_once(0.0)
    PlacementCheck(cells.home.engine, cells.home.leader, cells.databases).run_once(0.0)
    assert [row.tenant_id for row in read_away(cells.home.engine)] == [tenant_id]
    mover = Mover(cells.databases, "mover", known_seconds=0.0)

    def moved() -> bool:
        mover.run_once(time.monotonic())
        return read_move(cells.registry, "acme") is None

    wait_for(moved, 60.0)
    assert statuses(cells.host) == {old.id: "queued", new.id: "queued"}
    assert statuses(cells.home) == {}
    assert cells.home.rows("SELECT name FROM tenants") == []
    assert weights(cells) == {"cell-us": 1.0}


def test_a_spread_tenant_has_the_other_cell_in_place_of_the_lost_one(cells: TestCells) -> None:
    tenant_id, _ = cells.tenant()
    cells.home.run(NIGHTLY, new_id(), tenant_id)
    copy_all(cells)
    known = read_placement(cells.registry, "acme")
    assert known is not None
    both = {"cell-eu": 3.0, "cell-us": 1.0}
    with transaction(cells.registry) as connection:
        assert change_placement(connection, "acme", known.version, both)
    cells.host.run(
        "INSERT INTO tenants (id, name, share) OVERRIDING SYSTEM VALUE VALUES (%s, 'acme', 0.25)",
        tenant_id,
    )
    cells.home.leave()
    promote(cells.databases, "cell-eu", "cell-us")
    assert weights(cells) == {"cell-us": 4.0}
    assert cells.host.rows("SELECT share FROM tenants") == [(1.0,)]
    assert cells.host.rows("SELECT name FROM schedules") == [("nightly",)]


def test_a_move_to_the_lost_cell_begins_again_with_the_other_one(cells: TestCells) -> None:
    cells.tenant("acme", cells.host)
    request_move(cells.registry, "acme", {"cell-eu": 1.0})
    with cells.registry.connect() as connection:
        connection.exec_driver_sql("UPDATE moves SET step = 'keys', fence = 4")
    cells.home.leave()
    promote(cells.databases, "cell-eu", "cell-us")
    move = read_move(cells.registry, "acme")
    assert move is not None and move.step == "prepare" and move.fence == 5
    assert move.admitting == {"cell-us": 1.0}


def test_a_move_that_was_cancelled_is_taken_back_without_the_lost_cell(cells: TestCells) -> None:
    cells.tenant("acme", cells.host)
    request_move(cells.registry, "acme", {"cell-eu": 1.0})
    cancel_move(cells.registry, "acme")
    cells.home.leave()
    promote(cells.databases, "cell-eu", "cell-us")
    Mover(cells.databases, "mover", known_seconds=0.0).run_once(time.monotonic())
    assert read_move(cells.registry, "acme") is None
    assert weights(cells) == {"cell-us": 1.0}


def test_a_move_from_the_lost_cell_is_over(cells: TestCells) -> None:
    cells.tenant()
    copy_all(cells)
    request_move(cells.registry, "acme", {"cell-us": 1.0})
    cells.home.leave()
    promote(cells.databases, "cell-eu", "cell-us")
    assert read_move(cells.registry, "acme") is None
    assert weights(cells) == {"cell-us": 1.0}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"lost": 1.0}, {"to": 1.0}),
        ({"lost": 2.0, "b": 1.0}, {"b": 1.0, "to": 2.0}),
        ({"lost": 2.0, "to": 1.0}, {"to": 3.0}),
        ({"lost": 0.0, "b": 1.0}, {"b": 1.0}),
        ({"lost": 1.0, "to": 0.0}, {"to": 1.0}),
    ],
)
def test_placements_after_the_loss(before: dict[str, float], after: dict[str, float]) -> None:
    assert replaced(before, "lost", "to") == after


@pytest.mark.timeout(120)
def test_hundreds_of_tenants_take_seconds(cells: TestCells) -> None:
    number = 300
    with transaction(cells.home.engine) as connection:
        connection.exec_driver_sql(
            "INSERT INTO tenants (name) SELECT 't' || n FROM generate_series(1, %s) AS n",
            (number,),
        )
    with transaction(cells.registry) as connection:
        for place in range(1, number + 1):
            place_tenant(connection, f"t{place}", {"cell-eu": 1.0})
    copier = TenantCopier(cells.home.engine, cells.home.leader, cells.databases)
    for _ in range(3):
        copier.run_once(0.0)
    cells.home.leave()
    began = time.monotonic()
    assert len(promote(cells.databases, "cell-eu", "cell-us").tenants) == number
    # Five minutes are allowed for 10,000; twice as many on a machine that does much else.
    assert time.monotonic() - began < 2 * 30.0 * number / 1_000
