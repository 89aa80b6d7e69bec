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


def cancel_running(process: WorkerProcess, *job_ids: str) -> float:
    """Cancel what runs; when."""
    for job_id in job_ids:
        process.wait_running(job_id)
    time.sleep(0.5)  # claimed; and now its function is called
    for job_id in job_ids:
        cancel(process.database.engine, 1, job_id)
    return time.monotonic()


def ended(
    process: WorkerProcess, job_id: str, since: float, within: float = SECONDS
) -> Row[object]:
    row = process.wait_ended(job_id, 30)
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
        ) as process,
    ):
        claude.behave("wait")
        marker, look = tmp_path / "marker", tmp_path / "look"
        over = tmp_path / "over"
        neighbour = process.submit("look_up", "medium", path=str(over))
        patient = process.submit("look_up", "medium", path=str(look))
        scoring = process.database.submit_application()
        sleeping = process.submit("sleep", "medium", seconds=120)
        cleaning = process.submit("clean_up", "medium", path=str(marker), seconds=0.3)
        messy = process.submit("fail_to_clean_up", "medium")
        saving = process.submit("save_often", "medium")
        name = process.wait_running(neighbour).worker
        process.wait(lambda: claude.requests, "the model to be called")
        process.wait(marker.exists, "what cleans up to begin")
        # All slots are taken: this one is claimed and waits.
        waiting = process.submit("clean_up", "medium", path=str(tmp_path / "never"), seconds=0)
        cut = (scoring, sleeping, cleaning, messy, saving, waiting)
        since = cancel_running(process, patient, *cut)
        for job_id in cut:
            row = ended(process, job_id, since)
            assert (row.status, row.attempt, row.error_class) == ("cancelled", 0, None), row.type
        assert closed.wait(15), "the connection to the model is closed"
        assert marker.read_text() == "cleaned up"
        assert not (tmp_path / "never").exists(), "it never began"
        assert process.database.job(patient).status == "running"
        kept = process.submit("catch_everything", "medium")
        since = cancel_running(process, kept)  # there is a slot for it
        row = ended(process, kept, since)
        assert (row.status, row.result) == ("cancelled", None), "whatever it returns"
        look.touch()
        assert process.wait_ended(patient).status == "cancelled"
        over.touch()
        row = process.wait_ended(neighbour)
        assert (row.status, row.worker, row.lease) == ("succeeded", name, 1)
        assert not process.database.query(
            "SELECT 1 FROM tallies WHERE kind = 'type' AND amount > 0"
        )
        assert not process.database.miscounted()


def test_a_run_in_its_own_process_is_cut_at_its_next_bytecode(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    url, database = rabbitmq.service.url(), DatabaseFixture(engine)
    with worker_process(database, url, tmp_path, "long", 2, "prefork", **MODULES) as process:
        marker, look = tmp_path / "marker", tmp_path / "look"
        # Cleaning up may take its time: it is not killed before the grace is over.
        cleaning = process.submit("long_clean_up", "long", path=str(marker), seconds=4)
        patient = process.submit("long_look_up", "long", path=str(look))
        name = process.wait_running(cleaning).worker
        process.wait(marker.exists, "what cleans up to begin")
        since = cancel_running(process, cleaning, patient)
        row = ended(process, cleaning, since, SECONDS + 4)
        assert (row.status, row.worker, row.crashes) == ("cancelled", name, 0)
        assert marker.read_text() == "cleaned up"
        counting = process.submit("count", "long", to=3, seconds_each=0.1)
        row = process.wait_ended(counting)
        assert (row.status, row.worker, row.lease) == ("succeeded", name, 1), "not hit"
        assert process.database.job(patient).status == "running"
        look.touch()
        assert process.wait_ended(patient).status == "cancelled"
