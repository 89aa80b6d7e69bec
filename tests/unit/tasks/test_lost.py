"""What counts as a crash of a job when its worker is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.retry.lost import Loss, begins_on_record, loss_of, ran_seconds_of

seconds = st.floats(-90, 1e6)
CRASHES = 5


@given(st.booleans(), st.booleans(), seconds, seconds)
def test_a_claim_that_waited_is_no_crash_and_no_timeout(
    dispatched: bool, waiting: bool, ran: float, timeout: float
) -> None:
    loss = loss_of(dispatched=dispatched, waiting=waiting, ran_seconds=ran, timeout_seconds=timeout)
    assert (loss is Loss.MESSAGE) == dispatched
    assert (loss is Loss.CLAIM) == (waiting and not dispatched)
    assert (loss in (Loss.CRASH, Loss.TIMEOUT)) == (not waiting and not dispatched)


@given(seconds, seconds, st.floats(0, 1e6))
def test_a_longer_run_is_not_less_of_a_timeout(ran: float, more: float, timeout: float) -> None:
    def judged(ran_seconds: float) -> Loss:
        return loss_of(
            dispatched=False, waiting=False, ran_seconds=ran_seconds, timeout_seconds=timeout
        )

    shorter, longer = sorted((ran, more))
    assert judged(shorter) is Loss.CRASH or judged(longer) is Loss.TIMEOUT
    assert (judged(ran) is Loss.TIMEOUT) == (ran > timeout)


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
        told = noted or begins_on_record(self.lost_claims)
        waiting = waits and not (begins and told)
        loss = loss_of(dispatched=False, waiting=waiting, ran_seconds=0.0, timeout_seconds=60.0)
        self.crashes += loss is Loss.CRASH
        self.lost_claims += loss is Loss.CLAIM


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
