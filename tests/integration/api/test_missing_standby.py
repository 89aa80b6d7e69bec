"""A synchronous standby that is away: commits hang, and backends must not pile up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import running
from models.settings import DatabaseSettings
from models.store.abandoned import AbandonedBackends
from models.store.errors import StateStoreUnavailable
from models.store.session import execute, fetch, open_engine
from tests.support.api_server import Answer, serving
from tests.support.standby import REPLICATED, Postgres, ask, migrate, set_server
from tests.support.waiting import wait_for

SUBMISSIONS = 100
AT_ONCE = 25
#: Connections of an API process, and as many that were left behind when the first one was.
MOST_BACKENDS = 2 * 4
BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'fairline' AND pid <> %s"
IS_ACTIVE = """
    SELECT state = 'active' AND query LIKE '%%pg_sleep%%' FROM pg_stat_activity WHERE pid = %s
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    service = EmbeddedPostgres(tmp_path, REPLICATED)
    with running(service, tmp_path / "logs") as started:
        service.create_database()
        migrate(service.url())
        ask(started, "INSERT INTO tenants (name) VALUES ('demo')", database="fairline")
        yield started


class Counter:
    """The most backends of the database that were there at a time."""

    def __init__(self, server: Postgres) -> None:
        self.most = 0
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            [[now]] = ask(self._server, BACKENDS, -1)
            self.most = max(self.most, now)

    def __enter__(self) -> Counter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_submissions_are_refused_in_time_and_backends_stay_few(
    server: Postgres, tmp_path: Path
) -> None:
    url = server.service.url()
    keys = [f"key {number}" for number in range(SUBMISSIONS)]
    with serving(url, tmp_path / "api", api_workers=1, db_statement_seconds=0.8) as api:

        def submit(key: str) -> Answer:
            return api.post({"type": "echo"}, path="/jobs", headers={"Idempotency-Key": key})

        accepted = api.submit_job()
        set_server(server, "synchronous_standby_names", "missing")
        try:
            with Counter(server) as backends, ThreadPoolExecutor(AT_ONCE) as clients:
                answers = list(clients.map(submit, keys))
                until = time.monotonic() + 3
                while time.monotonic() < until:  # whoever writes by itself goes on trying
                    assert api.get(f"/jobs/{accepted}").status == 200, "reads are not affected"
                    time.sleep(0.2)
            ready = api.get("/readyz").json()["checks"]["database"]
            assert ready == {"ok": False, "detail": "only reads"}
            assert {answer.status for answer in answers} == {503}
            # Promised are two seconds; a busy machine may take twice that.
            assert max(answer.seconds for answer in answers) < 4.0
            assert backends.most <= MOST_BACKENDS
        finally:
            set_server(server, "synchronous_standby_names", None)
        deadline = time.monotonic() + 20
        while submit(keys[0]).status != 202:
            assert time.monotonic() < deadline, "it did not recover"
            time.sleep(0.1)
        with ThreadPoolExecutor(AT_ONCE) as clients:
            repeated = list(clients.map(submit, keys))
    assert {answer.status for answer in repeated} == {202}
    told = {answer.json()["id"] for answer in repeated}
    stored = {row[0] for row in ask(server, "SELECT id::text FROM jobs", database="fairline")}
    # A job per key: those whose commit had waited are known by their keys.
    assert len(told) == SUBMISSIONS
    assert stored == told | {accepted}


def engine_of(server: Postgres) -> Engine:
    settings = DatabaseSettings(database_url=server.service.url(), db_statement_seconds=1.0)
    return open_engine(settings, process="waiting")


def test_a_process_opens_no_writing_connection_while_a_commit_hangs(server: Postgres) -> None:
    engine = engine_of(server)
    add = "INSERT INTO tenants (name) VALUES (%(name)s)"
    set_server(server, "synchronous_standby_names", "missing")
    names = {"demo", "recovered"}
    while True:  # the server takes the setting in a moment
        name = f"attempt {len(names)}"
        names.add(name)
        try:
            execute(engine, add, {"name": name})
        except StateStoreUnavailable:
            break
    took = []
    for _ in range(8):
        began = time.monotonic()
        with pytest.raises(StateStoreUnavailable):
            execute(engine, add, {"name": "refused"})
        took.append(time.monotonic() - began)
        assert fetch(engine, "SELECT name FROM tenants WHERE name = 'demo'")
    assert median(took) < 0.8, "refused at once"
    [[backends]] = ask(server, BACKENDS, -1)
    assert backends <= 3
    set_server(server, "synchronous_standby_names", None)
    deadline = time.monotonic() + 20
    while True:
        try:
            execute(engine, add, {"name": "recovered"})
            break
        except StateStoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    stored = {row.name for row in fetch(engine, "SELECT name FROM tenants")}
    assert stored == names, "what hung was committed in the end, the rest never"
    engine.dispose()


@pytest.mark.parametrize("name", ["waiting", "somebody else"])
def test_a_backend_of_another_process_does_not_keep_this_one_from_writing(
    database_url: str, name: str
) -> None:
    """After a failover it may have the number of one that was given up."""
    ours, theirs = (
        open_engine(DatabaseSettings(database_url=database_url), process=process)
        for process in ("waiting", name)
    )
    abandoned = AbandonedBackends()
    with ours.connect() as asked, theirs.connect() as working, ThreadPoolExecutor(1) as other:
        abandoned.add(working.connection.dbapi_connection)
        pid = working.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        sleeping = other.submit(working.exec_driver_sql, "SELECT pg_sleep(4)")
        wait_for(lambda: asked.exec_driver_sql(IS_ACTIVE, (pid,)).scalar_one())
        abandoned.judge(asked.connection.dbapi_connection)
        assert not sleeping.done()
        only_reads = asked.exec_driver_sql("SHOW default_transaction_read_only").scalar_one()
        assert only_reads == ("on" if name == "waiting" else "off")
        asked.exec_driver_sql("SELECT pg_cancel_backend(%s)", (pid,))
        with pytest.raises(DBAPIError, match="canceling statement due to user request"):
            sleeping.result()
        asked.invalidate()
    for engine in (ours, theirs):
        engine.dispose()
