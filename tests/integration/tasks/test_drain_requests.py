"""A worker is drained through its row: it hears of it, ends its jobs, and goes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from models.presence import Presence, announce, request_drain
from tasks.worker.slots import Host
from tests import ROOT
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def requested(database: DatabaseFixture) -> list[str]:
    sql = "SELECT name FROM processes WHERE drain_requested_at IS NOT NULL ORDER BY name"
    return [row[0] for row in database.query(sql)]


def test_a_worker_hears_of_it_with_its_next_heartbeat(fixture: OneWorker) -> None:
    fixture.flush()
    assert not fixture.worker.slots.draining
    assert request_drain(fixture.database.engine, "w1") == 1
    fixture.flush()
    assert fixture.worker.slots.draining


def test_it_is_asked_for_until_it_has_begun(database: DatabaseFixture) -> None:
    heard: list[str] = []
    stopping = threading.Event()  # as a prefork parent tells its children
    host = Host(stop_requested=stopping.is_set, retire=lambda: heard.append("drain"))
    with one_worker(database, host=host) as fixture:
        fixture.flush()
        request_drain(database.engine, "w1")
        fixture.flush()
        fixture.flush()
        assert heard == ["drain", "drain"]
        stopping.set()
        fixture.flush()
    assert heard == ["drain", "drain"]


def test_a_drain_is_asked_for_once_and_of_living_workers_only(database: DatabaseFixture) -> None:
    for name, kind in (("here", "worker"), ("lost", "worker"), ("http_client", "api")):
        announce(database.engine, Presence(name, kind))
    announce(database.engine, Presence("leaving", "worker", draining=True))
    database.execute(
        "UPDATE processes SET heartbeat_at = now() - interval '11 s' WHERE name = 'lost'"
    )
    asked = {
        name: request_drain(database.engine, name)
        for name in ("lost", "http_client", "leaving", "no")
    }
    assert asked == {"lost": 0, "http_client": 0, "leaving": 0, "no": 0}
    assert [request_drain(database.engine, "here") for _ in range(2)] == [1, 0]
    assert requested(database) == ["here"]


def test_forked_processes_are_drained_with_their_parent(database: DatabaseFixture) -> None:
    for name, parent in (("c1", "p1"), ("c2", "p1"), ("c3", "p2"), ("p1x", None)):
        announce(database.engine, Presence(name, "worker", parent=parent))
    assert request_drain(database.engine, "c1") == 0, "a child cannot go alone"
    assert request_drain(database.engine, "p1") == 2
    assert requested(database) == ["c1", "c2"]


class Works:
    """Real processes, and what is read of them."""

    def __init__(self, database: DatabaseFixture, folder: Path, processes: ExitStack) -> None:
        self.database = database
        self._folder, self._processes = folder, processes
        for name in ("blobs", "broker"):
            (folder / name).mkdir()
        self._env = {
            "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
            "FAIRLINE_BROKER_URL": f"filesystem://{folder / 'broker'}",
            "FAIRLINE_BLOB_URL": str(folder / "blobs"),
            "FAIRLINE_JOB_MODULES": "tests.support.patient_jobs",
            "PYTHONPATH": ".",
        }

    def start(self, name: str, argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
        log = self._folder / f"{name}.log"
        return self._processes.enter_context(command(argv, self._env, log))

    def submit(self, type_: str, pool: str, **payload: object) -> str:
        return self.database.submit(type=type_, pool=pool, payload=json.dumps(payload))

    def wait(self, holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                logs = [path.read_text()[-2_000:] for path in self._folder.glob("*.log")]
                raise AssertionError("\n".join([f"waited {seconds} s for {what}", *logs]))
            time.sleep(0.05)

    def wait_status(self, status: str, *ids: str) -> None:
        self.wait(
            lambda: {self.database.job(job_id).status for job_id in ids} == {status},
            f"{len(ids)} jobs to be {status}",
        )


def test_a_drained_worker_ends_its_jobs_and_new_ones_go_elsewhere(
    database: DatabaseFixture, tmp_path: Path
) -> None:
    database.leader.resign()
    with ExitStack() as processes:
        works = Works(database, tmp_path, processes)
        works.start("scheduler", SCHEDULER)
        green = [works.start(f"green-{n}", worker("medium", 4)) for n in range(2)]
        forked = works.start("forked", worker("long", 2, "prefork"))
        slots = "SELECT coalesce(sum(slots), 0) FROM processes"
        works.wait(lambda: database.query(slots)[0][0] == 4 + 4 + 2, "the workers to be there")

        go_on = tmp_path / "go on"
        forked_job, green_job = [
            works.submit("await_file", pool, path=str(go_on)) for pool in ("long", "medium")
        ]
        works.wait_status("running", forked_job, green_job)
        before = {job_id: database.job(job_id) for job_id in (forked_job, green_job)}
        drained = next(p for p in green if before[green_job].worker.endswith(f":{p.pid}"))
        rest = next(process for process in green if process is not drained)
        parents = database.query("SELECT parent FROM processes WHERE pools = '{long}'")
        assert {row[0].rpartition(":")[2] for row in parents} == {str(forked.pid)}
        assert request_drain(database.engine, before[green_job].worker) == 1
        assert request_drain(database.engine, parents[0][0]) == 2

        # A prefork child without a job does not wait for the other one: its row is gone soon.
        serving = "SELECT name FROM processes WHERE kind = 'worker' AND NOT draining"
        works.wait(lambda: len(database.query(serving)) == 1, "all but one to drain")
        later = [works.submit("sleep", "medium", seconds=0.05) for _ in range(8)]
        works.wait_status("succeeded", *later)
        assert {database.job(job_id).worker for job_id in later} == {
            row[0] for row in database.query(serving)
        }
        assert {database.job(job_id).status for job_id in before} == {"running"}

        go_on.touch()
        assert [drained.wait(60), forked.wait(60)] == [0, 0]
        for job_id, row in before.items():
            job = database.job(job_id)
            assert (job.status, job.lease, job.worker) == ("succeeded", row.lease, row.worker)
            assert (job.attempt, job.crashes, job.deferrals) == (1, 0, 0)
        assert rest.poll() is None
        names = database.query("SELECT name FROM processes WHERE kind = 'worker'")
        assert [row[0].rpartition(":")[2] for row in names] == [str(rest.pid)]
    assert not database.miscounted()


@pytest.mark.parametrize(("pool", "kind"), [("medium", "gevent"), ("long", "prefork")])
def test_a_worker_whose_pod_is_stopped_ends_its_jobs_first(
    database: DatabaseFixture, tmp_path: Path, pool: str, kind: str
) -> None:
    """By the chart's preStop hook. SIGTERM alone would end the job at its next checkpoint."""
    database.leader.resign()
    with ExitStack() as processes:
        works = Works(database, tmp_path, processes)
        works.start("scheduler", SCHEDULER)
        argv = worker(pool, 2, kind)
        stopped = works.start("stopped", argv)
        slots = "SELECT coalesce(sum(slots), 0) FROM processes"
        works.wait(lambda: database.query(slots)[0][0] == 2, "the worker to be there")
        job_id = works.submit("count", pool, to=100, seconds_each=0.1)
        works.wait_status("running", job_id)
        lease = database.job(job_id).lease
        hook = [sys.executable, "-m", "tasks.retire"]
        subprocess.run([*hook, argv[argv.index("-n") + 1]], cwd=ROOT, check=True)
        stopped.terminate()
        assert stopped.wait(60) == 0
        job = database.job(job_id)
        assert (job.status, job.lease, job.attempt) == ("succeeded", lease, 1)
        gone = subprocess.run(
            [*hook, "worker-nobody@%h"], cwd=ROOT, capture_output=True, check=False
        )
        assert (gone.returncode, gone.stderr) == (1, b"there is no worker worker-nobody@%h\n")
