"""An application that a worker is scoring is stopped by it, and erased by the scheduler."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.jobs.erase import request_erasure
from tests.integration.scheduler.test_erasures import NAME, assert_erased, rows_about
from tests.integration.tasks.test_cancels import SilentClaude, closed
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import worker_process


def test_a_run_that_waits_for_the_model_is_cut_and_erased(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    database = DatabaseFixture(engine)
    closed.clear()
    with (
        SilentClaude() as claude,
        worker_process(
            database,
            rabbitmq.service.url(),
            tmp_path,
            "medium",
            2,
            "gevent",
            FAIRLINE_SCORER="claude",
            FAIRLINE_CLAUDE_BASE_URL=claude.url,
            FAIRLINE_CLAUDE_API_KEY=claude.api_key,
        ) as process,
    ):
        claude.behave("wait")
        scoring = database.submit_application(NAME)
        process.wait_running(scoring)
        process.wait(lambda: claude.requests, "the model to be called")
        state = request_erasure(engine, 1, scoring)
        assert state is not None
        assert state.erased_at is None
        assert rows_about(database, NAME) == set()
        gone = "SELECT FROM erasures WHERE erased_at IS NOT NULL"
        process.wait(lambda: database.query(gone), "the scheduler to erase it", 40)
        assert closed.wait(15), "the call to the model is cut"
        assert_erased(database, scoring)
