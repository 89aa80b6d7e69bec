"""Requests are handed over once, whatever dies when."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.scheduler.maintenance.intake_handover import IntakeHandover
from models.cells.intake_jobs import begin_handing_over, keep_group
from models.jobs.hand_over import hand_over
from tests import ROOT
from tests.support.cell_databases import TestCells
from tests.support.intake_requests import (
    begin,
    handover,
    inserted,
    kept,
    record_inserts,
    request,
    statuses,
)


@pytest.fixture
def cells(region_cells: TestCells) -> TestCells:
    return region_cells


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
from app.scheduler.maintenance import intake_handover
from app.scheduler.maintenance.intake_handover import IntakeHandover
from models.blobs import open_blobs
from models.cells.databases import CellDatabases
from models.leadership import Leader
from models.settings import DatabaseSettings
from models.store.session import open_engine
registry_url, host_url, blobs, name = sys.argv[1:]
hand_over = intake_handover.hand_over
def slowly(*given):  # a quick machine would be done before the first of them is killed
    time.sleep(0.08)
    done = hand_over(*given)
    time.sleep(0.08)
    return done
intake_handover.hand_over = slowly
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


@pytest.mark.timeout(240)
def test_whenever_the_role_is_killed_every_request_is_handed_over_once(
    cells: TestCells, tmp_path: Path
) -> None:
    tenant_id, _ = cells.tenant()
    chance = random.Random(19)
    requests = [
        request(tenant_id, jobs=1 + n % 3, key=f"k{n}" if n % 2 else None) for n in range(1_500)
    ]
    for first in range(0, len(requests), 500):
        keep_group(cells.host.engine, requests[first : first + 500])
    record_inserts(cells.home)
    cells.host.leader.resign()
    kills, seconds = 0, 0.4
    deadline = time.monotonic() + 150.0
    while (left := kept(cells)) and time.monotonic() < deadline:
        # A lease of a killed one would have to expire first.
        cells.host.run("UPDATE leaders SET expires_at = now() - interval '1 second'")
        process = begun(cells, tmp_path, f"leader-{kills}")
        time.sleep(chance.uniform(0.0, seconds))
        with process:  # closes its output
            os.kill(process.pid, signal.SIGKILL)
        kills += 1
        if kept(cells) == left:  # the machine is busy
            seconds *= 1.5
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
