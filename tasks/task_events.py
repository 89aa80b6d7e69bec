"""What Celery and Flower are told about the jobs of a message; what counts is in the row.

A message is a Celery task under the id of its first job. How that job's run ended becomes the
task's state by what the task raises: Celery sends the event, acknowledges the message as ever, and
retries nothing by itself. Other jobs of the message have no task of their own; those that are dead
get one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from celery.exceptions import Ignore, Retry

from models.jobs.settle import Ending
from models.jobs.states import JobStatus

logger = logging.getLogger(__name__)

#: Dead jobs of one message that get a task: each is an event of its own.
MOST_FAILED = 20


class JobFailed(Exception):
    """The job is dead: its class of failure and its message."""


class JobPostponed(Exception):
    """The job will run again."""


def state_of(ending: Ending | None) -> Exception | None:
    """What a task raises to be shown as its job's run ended; None for a success."""
    state: Exception | None = Ignore()  # cancelled, or no run of this worker
    match ending:
        case Ending(JobStatus.SUCCEEDED):
            state = None
        case Ending(JobStatus.DEAD):
            state = JobFailed(reason_of(ending))
        case Ending(JobStatus.SCHEDULED | JobStatus.QUEUED, delay_seconds=seconds):
            state = Retry(exc=JobPostponed(reason_of(ending)), when=round(seconds, 1))
    return state


def reason_of(ending: Ending) -> str:
    """Class and message of a failure; without one, what becomes of the job."""
    if ending.error_class is None:
        return str(ending.status)
    return f"{ending.error_class}: {ending.error_message}"


def report(
    task: Any, endings: Mapping[str, Ending], dispatcher: Any, run_seconds: float | None = None
) -> None:
    """Raise what the message's task is to be shown as, and tell of other dead jobs.

    ``dispatcher`` sends events; None in a prefork child, whose parent sends them. ``run_seconds``
    is what the run took if it began before the task.
    """
    own = endings.get(task.request.id)
    dead = (
        (job_id, ending)
        for job_id, ending in endings.items()
        if job_id != task.request.id and ending.status is JobStatus.DEAD
    )
    for job_id, ending in islice(dead, MOST_FAILED):
        failed = JobFailed(reason_of(ending))
        send(dispatcher, "task-failed", job_id, name=task.name, exception=repr(failed))
    raised = state_of(own)
    if isinstance(raised, Ignore):
        if dispatcher is None:
            return  # in a prefork child: it is shown as succeeded
        # Celery says nothing then, and a success would be wrong.
        send(dispatcher, "task-revoked", task.request.id, terminated=False, expired=False)
    if raised is not None:
        raise raised
    if run_seconds is not None and dispatcher is not None:
        dispatcher.note_runtime(task.request.id, run_seconds)


def send(dispatcher: Any, event: str, job_id: str, **fields: Any) -> None:
    """Send an event; one that cannot be sent costs nothing but itself."""
    if dispatcher is None:
        return
    try:
        dispatcher.send(event, uuid=job_id, received=time.time(), traceback="", **fields)
    except Exception as error:  # noqa: BLE001 - of the broker, or of Celery's dispatcher
        logger.debug("%s for %s cannot be sent: %s", event, job_id, error)
