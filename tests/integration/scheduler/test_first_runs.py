"""The first seconds of a job type: how soon its run times are known."""

from __future__ import annotations

import time

from app.policy.fairshare import default_seconds
from app.reads.estimates import Estimates
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import one_worker
from tests.support.waiting import wait_for


def test_a_type_that_was_never_measured_is_known_within_a_second_of_its_first_runs(
    database: DatabaseFixture,
) -> None:
    """No heartbeat, and no turn of the Classifier."""
    estimates, began = Estimates(database.engine), time.monotonic()
    assert estimates.seconds("echo", "short", 0.0) == default_seconds("short")
    with one_worker(database) as fixture:
        fixture.act = lambda ctx, payload: time.sleep(0.01)

        def runs_are_known() -> bool:
            fixture.execute(fixture.refs(2))
            now = time.monotonic() - began
            return estimates.seconds("echo", "short", now) < default_seconds("short")

        wait_for(runs_are_known)
        assert 0.01 <= estimates.known(time.monotonic() - began)["echo"] < 1.0
