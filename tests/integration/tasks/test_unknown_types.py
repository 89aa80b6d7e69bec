"""Jobs of a type that a worker does not know are deferred, and delay no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import worker_process

#: Far more than fit into the window at a time: their messages arrive in bursts.
UNKNOWN = 300
DEFERRED = "SELECT count(*) FROM jobs WHERE type = 'unheard_of' AND deferrals > 0"


@pytest.mark.parametrize("kind", ["gevent", "prefork"])
def test_jobs_of_an_unknown_type_stop_nothing(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path, kind: str
) -> None:
    database = DatabaseFixture(engine)
    unknown = [database.submit(type="unheard_of", pool="medium") for _ in range(UNKNOWN)]
    url = rabbitmq.service.url()
    with worker_process(database, url, tmp_path, "medium", 20, kind) as process:
        process.wait(lambda: database.query(DEFERRED)[0][0] == UNKNOWN, "them to be deferred", 60)
        known = [process.submit("nap", "medium", seconds=0.1) for _ in range(20)]
        assert {process.wait_ended(job_id).status for job_id in known} == {"succeeded"}
    row = database.job(unknown[0])
    assert (row.status, row.attempt, row.crashes) == ("scheduled", 0, 0)
    assert "does not know the job type 'unheard_of'" in row.error_message
