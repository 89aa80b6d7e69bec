"""What counts as a crash of a job when its worker is lost."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.scheduler.maintenance.reaper import judge
from models.jobs.states import FailureClass
from tasks.retry.decision import RetryLimits
from tasks.retry.lost import ran_seconds_of

seconds = st.floats(-90, 1e6)
CRASHES = 5


def lost(**row: Any) -> Any:
    """A row of FIND_LOST."""
    fields = {"status": "running", "waiting": False, "cancelled": False, "lost_seconds": None}
    counts = {"attempt": 0, "deferrals": 0, "crashes": 0, "violations": 0}
    where = {"pool": "short", "worker": "w1", "leased_seconds": 0.0}
    return SimpleNamespace(**{**fields, **counts, **where, **row})


def nap(timeout: float) -> Any:
    return SimpleNamespace(timeout_seconds=timeout, limits=RetryLimits(tries=3))


@given(st.booleans(), st.booleans(), seconds, seconds)
def test_a_claim_that_waited_is_no_crash_and_no_timeout(
    dispatched: bool, waiting: bool, ran: float, timeout: float
) -> None:
    status = "dispatched" if dispatched else "running"
    row = lost(status=status, waiting=waiting, lost_seconds=ran)
    ending = judge(row, nap(timeout), Random(0))
    assert ending.lost_claim == (waiting and not dispatched)
    assert (ending.error_class is not None) == (not waiting and not dispatched)
    assert not ending.crashed or ending.error_class is FailureClass.WORKER_CRASH


@given(st.floats(0.001, 1e6), st.floats(0, 1e6))
def test_a_run_that_was_alive_past_its_time_limit_was_ended_by_it(
    ran: float, timeout: float
) -> None:
    ending = judge(lost(lost_seconds=ran), nap(timeout), Random(0))
    assert (ending.error_class is FailureClass.TIMEOUT) == (ran > timeout)
    assert ending.crashed == (ran <= timeout)


@given(st.none() | seconds, st.floats(0, 90), st.none() | seconds)
def test_nobody_pays_for_what_came_after_the_last_sign_of_life(
    leased: float | None, lease: float, lost: float | None
) -> None:
    ran = ran_seconds_of(leased, lease, lost)
    assert ran >= 0.0
    if lost is not None and lost > 0:
        assert ran == lost
    else:
        assert ran <= max(0.0, leased or 0.0), "never beyond the lease"
        assert ran == max(0.0, (leased or 0.0) - lease)


class Row:
    """Counts of a job, as claims, runs and the reaper change them."""

    crashes = 0
    lost_claims = 0

    def lose(self, *, waits: bool, begins: bool, noted: bool) -> None:
        """A worker has claimed the job and dies. ``noted``: a heartbeat came after the begin."""
        told = noted or self.lost_claims > 0
        ending = judge(lost(waiting=waits and not (begins and told)), nap(60.0), Random(0))
        self.crashes += ending.crashed
        self.lost_claims += ending.lost_claim


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=CRASHES + 1))
def test_a_job_that_kills_every_worker_at_once_is_mistaken_once(
    losses: list[tuple[bool, bool]],
) -> None:
    row = Row()
    for waits, noted in losses:
        row.lose(waits=waits, begins=True, noted=noted)
    assert row.lost_claims <= 1
    assert row.crashes >= CRASHES


@given(st.lists(st.booleans()))
def test_a_job_that_never_begins_has_no_crash_however_often_its_worker_dies(
    heartbeats: list[bool],
) -> None:
    row = Row()
    for noted in heartbeats:
        row.lose(waits=True, begins=False, noted=noted)
    assert (row.crashes, row.lost_claims) == (0, len(heartbeats))
