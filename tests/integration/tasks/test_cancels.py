"""A running job is cancelled within 5 s, in greenlets and in processes; others do not notice."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from sqlalchemy import Engine, Row

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.fakes.claude import FakeClaude, Handler
from loadtest.fakes.claude_behaviours import BEHAVIOURS, Behaviour, Request
from models.jobs.cancel import cancel
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import WorkerProcess, worker_process

#: Promised from the request to the ended row: 5 s. A busy machine may take twice that.
SECONDS = 10.0
MODULES = {
    "FAIRLINE_JOB_MODULES": "tests.support.cancelled_jobs",
    "FAIRLINE_CANCEL_GRACE_SECONDS": "60",
    "FAIRLINE_POOLS": "{}",
}


def wait_for_close(client: Handler, _: Request) -> None:
    client.connection.settimeout(60)
    if client.connection.recv(1) == b"":
        closed.set()
    client.close_connection = True


closed = threading.Event()


class SilentClaude(FakeClaude):
    behaviours: ClassVar[Mapping[str, Behaviour]] = {**BEHAVIOURS, "wait": wait_for_close}


def cancel_running(shop: WorkerProcess, *job_ids: str) -> float:
    """Cancel what runs; when."""
    for job_id in job_ids:
        shop.wait_running(job_id)
    time.sleep(0.5)  # claimed; and now its function is called
    for job_id in job_ids:
        cancel(shop.database.engine, 1, job_id)
    return time.monotonic()


def ended(shop: WorkerProcess, job_id: str, since: float, within: float = SECONDS) -> Row[object]:
    row = shop.wait_ended(job_id, 30)
    took = time.monotonic() - since
    assert took < within, f"{row.type} took {took:.1f} s"
    return row


def test_a_green_run_is_cut_at_its_next_yield(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    url = rabbitmq.service.url()
    with (
        SilentClaude() as claude,
        worker_process(
            DatabaseFixture(engine),
            url,
            tmp_path,
            "medium",
            7,
            "gevent",
            **MODULES,
            FAIRLINE_SCORER="claude",
            FAIRLINE_CLAUDE_BASE_URL=claude.url,
            FAIRLINE_CLAUDE_API_KEY=claude.api_key,
        ) as shop,
    ):
        claude.behave("wait")
        marker, look = tmp_path / "marker", tmp_path / "look"
        neighbour = shop.submit("sleep", "medium", seconds=12)
        patient = shop.submit("look_up", "medium", path=str(look))
        scoring = shop.database.submit_application()
        sleeping = shop.submit("sleep", "medium", seconds=120)
        cleaning = shop.submit("clean_up", "medium", path=str(marker), seconds=0.3)
        messy = shop.submit("fail_to_clean_up", "medium")
        saving = shop.submit("save_often", "medium")
        process = shop.wait_running(neighbour).worker
        shop.wait(lambda: claude.requests, "the model to be called")
        # All slots are taken: this one is claimed and waits.
        waiting = shop.submit("clean_up", "medium", path=str(tmp_path / "never"), seconds=0)
        cut = (scoring, sleeping, cleaning, messy, saving, waiting)
        since = cancel_running(shop, patient, *cut)
        for job_id in cut:
            row = ended(shop, job_id, since)
            assert (row.status, row.attempt, row.error_class) == ("cancelled", 0, None), row.type
        assert closed.wait(1), "the connection to the model is closed"
        assert marker.read_text() == "cleaned up"
        assert not (tmp_path / "never").exists(), "it never began"
        assert shop.database.job(patient).status == "running"
        kept = shop.submit("catch_everything", "medium")
        since = cancel_running(shop, kept)  # there is a slot for it
        row = ended(shop, kept, since)
        assert (row.status, row.result) == ("cancelled", None), "whatever it returns"
        look.touch()
        assert shop.wait_ended(patient).status == "cancelled"
        row = shop.wait_ended(neighbour)
        assert (row.status, row.worker, row.lease) == ("succeeded", process, 1)
        assert not shop.database.query("SELECT 1 FROM tallies WHERE kind = 'type' AND amount > 0")
        assert not shop.database.miscounted()


def test_a_run_in_its_own_process_is_cut_at_its_next_bytecode(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    url, database = rabbitmq.service.url(), DatabaseFixture(engine)
    with worker_process(database, url, tmp_path, "long", 2, "prefork", **MODULES) as shop:
        marker, look = tmp_path / "marker", tmp_path / "look"
        # Cleaning up may take its time: it is not killed before the grace is over.
        cleaning = shop.submit("long_clean_up", "long", path=str(marker), seconds=4)
        patient = shop.submit("long_look_up", "long", path=str(look))
        process = shop.wait_running(cleaning).worker
        since = cancel_running(shop, cleaning, patient)
        row = ended(shop, cleaning, since, SECONDS + 4)
        assert (row.status, row.worker, row.crashes) == ("cancelled", process, 0)
        assert marker.read_text() == "cleaned up"
        counting = shop.submit("count", "long", to=3, seconds_each=0.1)
        row = shop.wait_ended(counting)
        assert (row.status, row.worker, row.lease) == ("succeeded", process, 1), "not hit"
        assert shop.database.job(patient).status == "running"
        look.touch()
        assert shop.wait_ended(patient).status == "cancelled"
