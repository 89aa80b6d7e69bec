"""What operators do to one job: cancel it, replay it, take its documents whole.

Documents are sent as plain text that no browser takes for anything else.
"""

from __future__ import annotations

from flask import Blueprint, Response
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access, open_to
from app.api.http.state import read_state
from app.console.done import done
from app.console.jobs.actions import ACTIONS, act
from app.console.jobs.filter import LIST
from app.console.jobs.job import read_payload, read_result
from app.errors import NotFound
from models.jobs.ids import parse_id

job_actions = Blueprint("job_actions", __name__)

FIND_JOB = "SELECT 1 FROM jobs WHERE id = %(id)s::uuid"
#: Nothing in it is run, whatever it says.
INERT = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@job_actions.post("/console/jobs/<job_id>/cancel")
@open_to(Access.CONSOLE)
def post_cancel(job_id: str) -> AnyResponse:
    """At once if it waits, soon if it runs."""
    known = existing(job_id)
    result = act(ACTIONS["cancel"], [known])
    words = "The job had ended already."
    if result.changed:
        words = "The job is cancelled."
    elif result.asked:
        words = "The job runs and was asked to stop."
    return done(f"{LIST}/{known}", words)


@job_actions.post("/console/jobs/<job_id>/replay")
@open_to(Access.CONSOLE)
def post_replay(job_id: str) -> AnyResponse:
    """Back to the line with a fresh count."""
    known = existing(job_id)
    result = act(ACTIONS["replay"], [known])
    words = "The job is in the line again." if result.changed else "The job is no dead letter."
    return done(f"{LIST}/{known}", words)


@job_actions.get("/console/jobs/<job_id>/payload")
@open_to(Access.CONSOLE)
def get_payload(job_id: str) -> Response:
    return plain(read_payload(known_id(job_id)))


@job_actions.get("/console/jobs/<job_id>/result")
@open_to(Access.CONSOLE)
def get_result(job_id: str) -> Response:
    return plain(read_result(known_id(job_id)))


def known_id(text: str) -> str:
    """The id as rows have it."""
    found = parse_id(text)
    if found is None:
        raise NotFound("There is no such job.")
    return found


def existing(text: str) -> str:
    """The id of a job that is there."""
    known = known_id(text)
    with read_state() as connection:
        if connection.exec_driver_sql(FIND_JOB, {"id": known}).first() is None:
            raise NotFound("There is no such job, or it was retired.")
    return known


def plain(text: str) -> Response:
    """A document as text."""
    return Response(text, 200, INERT, content_type="text/plain; charset=utf-8")
