"""Any order of anything: submissions, losses, crashes, cancellations and time against a model.

The machine drives the product's own statements on real PostgreSQL and compares every row,
count, bill, key, checkpoint and record of a run with its model after each act. The examples
are the same in every run. To look for new ones, as long as you like:

    FAIRLINE_MACHINE_EXAMPLES=5000 python -m pytest tests/integration/test_state_machine.py

What they find becomes a sentence in ``test_regressions.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from app.stack.postgres import EmbeddedPostgres
from app.stack.services import Running
from models.blobs import open_blobs
from models.jobs.states import LEGAL_MOVES, JobStatus
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.integration.conftest import fresh_database
from tests.support.database_fixture import DatabaseFixture
from tests.support.state_machine.clock import Clock
from tests.support.state_machine.front import FrontDoor
from tests.support.state_machine.hands import Workers
from tests.support.state_machine.line import Line

EXAMPLES = int(os.environ.get("FAIRLINE_MACHINE_EXAMPLES", "0"))
#: Moves that a short run need not come upon.
RARE = {
    (JobStatus.RUNNING, JobStatus.EXPIRED),
    (JobStatus.DISPATCHED, JobStatus.CANCELLED),
    (JobStatus.DEAD, JobStatus.QUEUED),
    (JobStatus.DEAD, JobStatus.CANCELLED),
}


class JobMachine(FrontDoor, Line, Workers):
    """Clients, scheduler and workers, one act at a time.

    One rule on purpose: Hypothesis leaves some rules out of each example, and a job's way
    needs nearly all of them.
    """

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        acts = [*self.worker_acts(), *self.client_acts(), *self.scheduler_acts()]
        getattr(self, data.draw(st.sampled_from(acts), label="act"))(data)


@pytest.fixture
def database(postgres: Running[EmbeddedPostgres]) -> Iterator[DatabaseFixture]:
    """On a database of its own: its clock would mislead everybody else."""
    with fresh_database(postgres) as url:
        engine = open_engine(DatabaseSettings(database_url=url, db_pool_size=5))
        with engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO tenants (name) VALUES ('demo'), ('other')")
        yield DatabaseFixture(engine)
        engine.dispose()


@pytest.mark.timeout(0 if EXAMPLES else 400)  # a failure takes its time to shrink
def test_every_job_is_where_the_model_says_whatever_happens(
    database: DatabaseFixture, tmp_path: Path
) -> None:
    clock = Clock(database.engine)
    blobs = open_blobs(f"file://{tmp_path}")
    run_state_machine_as_test(
        lambda: JobMachine(database, clock, blobs),  # type: ignore[arg-type]  # any factory will do
        settings=settings(
            max_examples=EXAMPLES or 60,
            stateful_step_count=100 if EXAMPLES else 50,
            derandomize=not EXAMPLES,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    legal = {(old, new) for old, moves in LEGAL_MOVES.items() for new in moves}
    unseen = legal - JobMachine.moves.keys()
    assert JobMachine.given[True] and JobMachine.given[False]
    assert unseen <= RARE, "a machine that does not get about proves little"
