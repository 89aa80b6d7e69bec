"""What Celery and Flower are told of a message's jobs, and that nobody is told more than that."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore, Retry

from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from tasks.task_events import MOST_FAILED, JobFailed, JobPostponed, report, state_of

DEAD = Ending(JobStatus.DEAD, error_class=FailureClass.PERMANENT, error_message="no such role")
LATER = DEAD._replace(status=JobStatus.SCHEDULED, delay_seconds=2.04)
DONE = Ending(JobStatus.SUCCEEDED)
TASK = SimpleNamespace(name="echo", request=SimpleNamespace(id="first"))


class Sent(list[tuple[str, str]]):
    """A dispatcher of events that keeps them."""

    def send(self, event: str, uuid: str, **_: Any) -> None:
        self.append((event, uuid))


def test_dead_job_fails_its_task_with_class_and_message() -> None:
    with pytest.raises(JobFailed, match="PERMANENT: no such role"):
        report(TASK, {"first": DEAD}, Sent())


def test_job_that_will_run_again_is_retried_by_nobody_but_looks_so() -> None:
    with pytest.raises(Retry) as raised:
        report(TASK, {"first": LATER}, Sent())
    assert str(raised.value).startswith("Retry in 2.0s")
    assert isinstance(raised.value.exc, JobPostponed)
    assert raised.value.sig is None, "there is nothing to send"


def test_success_raises_nothing() -> None:
    sent = Sent()
    report(TASK, {"first": DONE}, sent)
    assert not sent


@pytest.mark.parametrize("endings", [{}, {"first": Ending(JobStatus.CANCELLED)}])
def test_run_that_was_cancelled_or_never_was_is_revoked(endings: dict[str, Ending]) -> None:
    sent = Sent()
    with pytest.raises(Ignore):
        report(TASK, endings, sent)
    assert sent == [("task-revoked", "first")]
    report(TASK, endings, None)  # a prefork child can send nothing


def test_other_dead_jobs_of_a_message_fail_on_their_own_up_to_a_bound() -> None:
    sent, more = Sent(), {f"job-{number}": DEAD for number in range(MOST_FAILED + 5)}
    report(TASK, {"first": DONE, "second": LATER, **more}, sent)
    assert sent == [("task-failed", f"job-{number}") for number in range(MOST_FAILED)]


def test_dispatcher_that_cannot_send_costs_nothing() -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("the broker is away")

    report(TASK, {"first": DONE, "second": DEAD}, SimpleNamespace(send=broken))


@pytest.mark.parametrize("ending", [DEAD, LATER])
def test_what_a_prefork_child_raises_reaches_its_parent(ending: Ending) -> None:
    raised = state_of(ending)
    again = pickle.loads(pickle.dumps(raised))
    assert type(again) is type(raised) and str(again) == str(raised)
