"""PostgreSQL killed or frozen: 503 in time, and the same processes recover."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import psycopg2
import pytest

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running, running
from loadtest.attack.corpus.bodies import GOOD
from models.jobs.ids import new_id
from tests import ROOT
from tests.integration.api.test_contract import assert_problem
from tests.support.api_server import Answer, ApiServer, serving

pytestmark = pytest.mark.long

#: What the contract allows between a request and its 503 is two seconds; a busy machine may take
#: twice that.
MOST_SECONDS = 4.0
#: And between the return of the server and the first 202.
MOST_RECOVERY_SECONDS = 10.0
AT_ONCE = 50
FLAT_MEGABYTES = 8.0

Postgres = Running[EmbeddedPostgres]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairline-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def own_postgres(home: Path) -> Iterator[Postgres]:
    """A server that only this module uses, so that it may be killed."""
    service = EmbeddedPostgres(home, {"shared_buffers": "32MB"})
    with running(service, home / "logs") as server:
        service.create_database()
        subprocess.run(
            [sys.executable, "-m", "alembic", "upgrade", "head"],
            cwd=ROOT,
            env={**os.environ, "FAIRLINE_DATABASE_URL": service.url()},
            check=True,
            capture_output=True,
        )
        query(service, "INSERT INTO tenants (name) VALUES ('demo') RETURNING id")
        yield server


@pytest.fixture(scope="module")
def http_client(own_postgres: Postgres, home: Path) -> Iterator[ApiServer]:
    with serving(own_postgres.service.url(), home / "logs") as server:
        yield server


def query(service: EmbeddedPostgres, sql: str) -> list[tuple[object, ...]]:
    connection = psycopg2.connect(
        dbname="fairline", user="postgres", host=str(service.sockets), port=5432
    )
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
    finally:
        connection.close()


@contextmanager
def killed(server: Postgres) -> Iterator[None]:
    """As after a crash; started again at the end."""
    server.kill()
    try:
        yield
    finally:
        server.start()


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """Every process of the server is stopped: connections stay open, nothing responds."""
    postmaster = psutil.Process(server.children[0].pid)
    postmaster.suspend()  # first, so that it starts no further process
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(stopped):
            process.send_signal(signal.SIGCONT)


Outage = Callable[[Postgres], AbstractContextManager[None]]
OUTAGES = pytest.mark.parametrize("outage", [killed, frozen])


def ask_at_once(asks: list[Callable[[], Answer]]) -> list[Answer]:
    """All of them at the same moment."""
    gate = threading.Barrier(len(asks))

    def one(ask: Callable[[], Answer]) -> Answer:
        gate.wait(10)
        return ask()

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(one, asks))


def assert_away(answer: Answer) -> None:
    assert_problem(answer, 503, "STATE_STORE_UNAVAILABLE")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.seconds < MOST_SECONDS, answer.seconds


def assert_recovers(api: ApiServer) -> None:
    """202 from every worker soon: twenty in a row reach both."""
    deadline = time.monotonic() + MOST_RECOVERY_SECONDS
    in_a_row = 0
    while in_a_row < 20:
        in_a_row = in_a_row + 1 if api.post(GOOD).status == 202 else 0
        assert in_a_row or time.monotonic() < deadline


@OUTAGES
def test_submitting_and_asking_get_503_in_time_alone_and_in_a_crowd(
    http_client: ApiServer, own_postgres: Postgres, outage: Outage
) -> None:
    known = f"/applications/{http_client.submit()}"
    asks: list[Callable[[], Answer]] = [
        lambda: http_client.post(GOOD),
        lambda: http_client.get(known),
        lambda: http_client.request("HEAD", known),
        lambda: http_client.get("/leaderboard"),
        lambda: http_client.request("DELETE", known),
        lambda: http_client.post({"type": "echo"}, path="/jobs"),
        lambda: http_client.post({"type": "echo"}, path="/jobs", headers={"Idempotency-Key": "k"}),
        lambda: http_client.post({"jobs": [{"type": "echo"}]}, path="/jobs/batch"),
        lambda: http_client.get(f"/jobs/{new_id()}"),
        lambda: http_client.request("DELETE", f"/jobs/{new_id()}"),
        lambda: http_client.get("/jobs"),
        lambda: http_client.get("/dead-letters"),
        lambda: http_client.post({"filter": {}}, path="/dead-letters/replay"),
        lambda: http_client.post({"ids": [new_id()]}, path="/dead-letters/replay"),
        lambda: http_client.get("/tenant/usage"),
    ]
    workers = [worker.pid for worker in http_client.workers()]
    with outage(own_postgres):
        for ask in (asks[0], asks[1], asks[3]):
            assert_away(ask())
        for answer in ask_at_once([asks[n % len(asks)] for n in range(AT_ONCE)]):
            if answer.body:  # HEAD has none
                assert_away(answer)
            assert (answer.status, answer.headers["retry-after"]) == (503, "2")
            assert answer.seconds < MOST_SECONDS
    assert_recovers(http_client)
    assert [worker.pid for worker in http_client.workers()] == workers


@OUTAGES
def test_process_is_healthy_but_not_ready_meanwhile(
    http_client: ApiServer, own_postgres: Postgres, outage: Outage
) -> None:
    with outage(own_postgres):
        asks: list[Callable[[], Answer]] = [lambda: http_client.get("/readyz")] * 10
        for answer in ask_at_once(asks):
            assert answer.status == 503
            assert answer.json()["status"] == "not ready"
            assert answer.json()["checks"]["database"]["ok"] is False
            assert answer.seconds < MOST_SECONDS
        healthy = http_client.get("/healthz")
        assert (healthy.status, healthy.json()) == (200, {"status": "ok"})
        assert healthy.seconds < MOST_SECONDS
        assert http_client.get("/metrics").status == 503
    assert_recovers(http_client)
    assert http_client.get("/readyz").json()["checks"]["database"] == {"ok": True}


def test_what_needs_no_state_is_refused_as_ever(
    http_client: ApiServer, own_postgres: Postgres
) -> None:
    with killed(own_postgres):
        assert_problem(http_client.post(b"{"), 400, "VALIDATION_FAILED")
        assert_problem(http_client.get("/applications/x"), 404, "NOT_FOUND")
        assert_problem(http_client.get("/nope"), 404, "NOT_FOUND")
    assert_recovers(http_client)


def test_process_born_into_an_outage_answers_in_time_too(
    own_postgres: Postgres, home: Path
) -> None:
    """It has cached no tenant yet; many callers must not wait for each other's lookup."""
    url = own_postgres.service.url()
    with frozen(own_postgres), serving(url, home / "logs", api_workers=1) as api:
        for answer in ask_at_once([lambda: api.post(GOOD)] * AT_ONCE):
            assert_away(answer)


class Crowd:
    """Clients that submit without pause and record the answers."""

    def __init__(self, api: ApiServer, clients: int) -> None:
        self.api = api
        self.told: list[Answer] = []
        self.accepted = threading.Event()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._submit) for _ in range(clients)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _submit(self) -> None:
        while not self._stop.is_set():
            answer = self.api.post(GOOD)
            self.told.append(answer)
            if answer.status == 202:
                self.accepted.set()
            else:
                self._stop.wait(0.05)

    def wait_until_accepted(self) -> float:
        """Seconds until the next 202."""
        began = time.monotonic()
        self.accepted.clear()
        assert self.accepted.wait(MOST_RECOVERY_SECONDS)
        return time.monotonic() - began

    def wait_for(self, answers: int) -> None:
        """Wait for that many more answers."""
        goal = len(self.told) + answers
        while len(self.told) < goal:
            time.sleep(0.01)


def test_every_202_of_a_crowd_survives_kills_and_freezes_and_memory_stays(
    http_client: ApiServer, own_postgres: Postgres
) -> None:
    workers = [worker.pid for worker in http_client.workers()]
    with Crowd(http_client, clients=12) as crowd:
        crowd.wait_for(200)
        sizes = []
        # The last one is longer than a statement may take.
        for outage, refusals in ((killed, 100), (frozen, 24), (killed, 100), (frozen, 48)):
            with outage(own_postgres):
                crowd.wait_for(refusals)
            crowd.wait_until_accepted()
            crowd.wait_for(50)
            sizes.append(http_client.resident_megabytes())
    told = Counter(answer.status for answer in crowd.told)
    assert set(told) == {202, 503}
    for answer in crowd.told:
        if answer.status == 503:
            assert_away(answer)
    accepted = {answer.json()["id"] for answer in crowd.told if answer.status == 202}
    stored = query(
        own_postgres.service, "SELECT jobs.id::text FROM jobs JOIN applications USING (id)"
    )
    assert accepted <= {row[0] for row in stored}
    assert [worker.pid for worker in http_client.workers()] == workers
    # The first outage is the warm-up: both kinds of memory have been touched after it.
    assert sizes[-1] - sizes[0] < FLAT_MEGABYTES, sizes


def test_unknown_id_is_not_found_again_after_the_outage(
    http_client: ApiServer, own_postgres: Postgres
) -> None:
    with killed(own_postgres):
        assert_away(http_client.get(f"/applications/{new_id()}"))
    assert_recovers(http_client)
    assert_problem(http_client.get(f"/applications/{new_id()}"), 404, "NOT_FOUND")


@OUTAGES
def test_those_who_wait_for_an_end_hear_of_it_after_the_outage_or_in_time(
    http_client: ApiServer, own_postgres: Postgres, outage: Outage
) -> None:
    http_client.post(GOOD)
    read = http_client.submit()
    with ThreadPoolExecutor(3) as callers:
        submitted = callers.submit(http_client.post, GOOD, headers={"Prefer": "wait=3"})
        asked = callers.submit(http_client.get, f"/applications/{read}", {"Prefer": "wait=3"})
        patient = callers.submit(http_client.get, f"/applications/{read}", {"Prefer": "wait=20"})
        time.sleep(1.0)
        with outage(own_postgres):
            assert submitted.result(10).status == 202, "it is accepted"
            assert_problem(asked.result(10), 503, "STATE_STORE_UNAVAILABLE")
        assert_recovers(http_client)
        cancel = f"UPDATE jobs SET status = 'cancelled' WHERE id = '{read}' RETURNING id"
        query(own_postgres.service, cancel)
        answer = patient.result(10)
    assert (answer.status, answer.json()["status"]) == (200, "withdrawn")
