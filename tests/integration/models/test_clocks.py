"""The order of a queue is that of acceptance, whatever the clocks of the API's machines say."""

from __future__ import annotations

import os
import subprocess
import sys

from sqlalchemy import Engine

from tests import ROOT
from tests.support.database_fixture import DatabaseFixture

HOUR_NS = 3_600_000_000_000
#: A process whose wall clock is wrong; it submits a job as the API does.
SUBMIT = """
import sys, time
shift, real_ns, real = int(sys.argv[1]), time.time_ns, time.time
time.time_ns = lambda: real_ns() + shift
time.time = lambda: real() + shift / 1e9
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.settings import DatabaseSettings
from models.store.session import fetch, open_engine
engine = open_engine(DatabaseSettings())
fetch(engine, "SELECT 1 FROM tenants")  # who submits is looked up before anything else
job = Submission(new_id(), 1, "echo", "medium", "{}")
admit_group(engine, [SubmissionGroup((job,))], False)
print(job.id)
"""


def submit_with_clock(engine: Engine, shift: int) -> str:
    url = engine.url.render_as_string(hide_password=False)
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, str(shift)],
        cwd=ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": url},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_jobs_are_queued_in_the_order_of_acceptance_by_machines_with_wrong_clocks(
    engine: Engine,
) -> None:
    database = DatabaseFixture(engine)
    accepted = [
        submit_with_clock(engine, HOUR_NS),
        submit_with_clock(engine, -HOUR_NS),
        database.submit(),
        submit_with_clock(engine, HOUR_NS),
        database.submit(),
    ]
    assert sorted(accepted) == accepted
    database.leader.run_once(0.0)  # the processes may have taken longer to start than a lease
    assert [dispatch.id for dispatch in database.dispatch()] == accepted
