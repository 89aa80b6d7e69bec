"""Wrong clocks: of machines that submit jobs, and of a database whose clock is set back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sqlalchemy import Engine

from models.leadership import LEASE_SECONDS, VOID_SECONDS, Leader, is_recent
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


@pytest.mark.parametrize(
    ("left", "ends"), [(30, False), (VOID_SECONDS - 20, False), (VOID_SECONDS + 20, True)]
)
def test_a_lease_of_before_the_clock_was_set_back_keeps_nobody_from_leading(
    engine: Engine, left: int, ends: bool
) -> None:
    """Its holder was killed, so it was not given up; nobody would lead for hours."""
    database = DatabaseFixture(engine)
    before = database.leader.epoch
    database.execute("UPDATE leaders SET expires_at = now() + make_interval(secs => %s)", left)
    other = Leader(engine, "other")
    other.run_once(0.0)
    assert (other.epoch is not None) == ends
    if other.epoch is not None and before is not None:
        assert other.epoch > before


def test_a_sign_of_life_of_before_the_clock_was_set_back_is_none() -> None:
    ages = (None, -7_200.0, -1.0, 0.0, 5.0, 7.0)
    recent = [age for age in ages if is_recent(age, LEASE_SECONDS)]
    assert recent == [-1.0, 0.0, 5.0]
