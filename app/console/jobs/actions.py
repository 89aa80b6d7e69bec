"""What operators do to many jobs: cancel or replay those they ticked, or all that match a filter.

All that match are done in batches. Each request walks on from where the one before ended, from
newer to older ids, so that a job is met once: one that is replayed and dies again stays dead.
A script asks for batch after batch and shows how far it is; without one, each press of the
button is a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from flask import Blueprint, Response, jsonify, redirect, render_template, request
from sqlalchemy import Engine
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access, open_to
from app.api.http.state import patience, read_state
from app.api.services import current_services
from app.console.done import done
from app.console.jobs.filter import GROUPS, LIST, parse_filter, resolve
from app.console.jobs.page import parse_place
from app.errors import FieldError, ValidationFailed
from app.reads.search import Wanted, id_before, search
from models.jobs.cancel import MOST_SEVERAL, Done, cancel_several
from models.jobs.ids import parse_id
from models.jobs.replay import replay_several

jobs_actions = Blueprint("jobs_actions", __name__)

ALL = "/console/jobs/all"
#: More are not counted before the question is asked.
COUNTED = 10_000
#: How long the jobs are counted, and looked for in one batch.
COUNT_SECONDS = 0.2
BATCH_SECONDS = 0.25
#: Ids tell a millisecond.
A_MOMENT = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Action:
    """Something that is done to many jobs."""

    name: str
    #: Imperative and participle.
    verb: str
    past: str
    #: States of those that it can be done to, and what one and many of them are called.
    statuses: tuple[str, ...]
    one: str
    what: str
    act: Callable[[Engine, Sequence[str]], Done]


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "cancel",
            "Cancel",
            "cancelled",
            GROUPS["live"],
            "job that has not ended",
            "jobs that have not ended",
            cancel_several,
        ),
        Action(
            "replay", "Replay", "replayed", ("dead",), "dead letter", "dead letters", replay_several
        ),
    )
}


@jobs_actions.get("/console/jobs/find")
@open_to(Access.CONSOLE)
def get_find() -> AnyResponse:
    """Jump to a job by its id."""
    typed = request.args.get("id", "").strip()
    found = parse_id(typed)
    if found is None:
        return done(LIST, "That is not the id of a job. An id has 36 characters.")
    return redirect(f"{LIST}/{found}", 303)


@jobs_actions.post("/console/jobs/selected")
@open_to(Access.CONSOLE)
def post_selected() -> AnyResponse:
    """Those that were ticked."""
    action = parse_action(request.form.get("action", ""))
    known = [parse_id(text) for text in request.form.getlist("id")]
    ids = [job_id for job_id in known if job_id is not None]
    back = request.form.get("back") or LIST
    if len(ids) != len(known) or len(ids) > MOST_SEVERAL:
        raise ValidationFailed(
            errors=(FieldError("id", f"must be ids of at most {MOST_SEVERAL} jobs"),)
        )
    if not ids:
        return done(back, f"No job is ticked: there is nothing to {action.name}.")
    return done(back, in_words(action, act(action, ids)))


@jobs_actions.get(ALL)
@open_to(Access.CONSOLE)
def get_all() -> str:
    """How many match, and whether that is meant."""
    action, chosen = parse_action(request.args.get("action", "")), parse_filter(request.args)
    # What is submitted after this moment is not meant.
    cursor = parse_place(request.args, "cursor") or id_before(datetime.now(UTC) + A_MOMENT)
    count, more = 0, False
    with read_state() as connection:
        wanted = narrowed(resolve(connection, chosen), action)
        if wanted is not None:
            found = search(connection, wanted, COUNTED, before=cursor, seconds=COUNT_SECONDS)
            count, more = len(found.ids), found.cursor is not None
    context = {
        "action": action,
        "filter": chosen,
        "fields": {**chosen.given, "action": action.name},
        "cursor": cursor,
        "matching": count,
        "at_least": more,
        "missing": wanted is None,
        "back": chosen.url(),
        "batch": MOST_SEVERAL,
    }
    return render_template("console/jobs-all.html", **context)


@jobs_actions.post(ALL)
@open_to(Access.CONSOLE)
def post_all() -> AnyResponse:
    """A batch of all that match; ``cursor`` says where the one before ended."""
    action, chosen = parse_action(request.form.get("action", "")), parse_filter(request.form)
    cursor = parse_place(request.form, "cursor")
    with read_state() as connection:
        wanted = narrowed(resolve(connection, chosen), action)
        if wanted is None:
            fields = [FieldError(name, text) for name, text in chosen.errors.items()]
            raise ValidationFailed(errors=tuple(fields or [FieldError("tenant", "is nobody")]))
        found = search(connection, wanted, MOST_SEVERAL, before=cursor, seconds=BATCH_SECONDS)
    result = act(action, found.ids) if found.ids else Done()
    if request.accept_mimetypes.best == "application/json":
        return batch_document(result, found.cursor)
    words = in_words(action, result)
    if found.cursor is None:
        return done(chosen.url(), words)
    going_on = chosen.url(ALL, action=action.name, cursor=found.cursor)
    return done(going_on, f"{words} More match: press again to go on.")


def batch_document(result: Done, cursor: str | None) -> Response:
    """What a script is told of a batch."""
    counts = {"done": result.changed, "asked": result.asked, "skipped": result.skipped}
    answer: Response = jsonify({**counts, "more": cursor is not None, "cursor": cursor})
    return answer


def parse_action(name: str) -> Action:
    """What shall be done."""
    if name not in ACTIONS:
        raise ValidationFailed(errors=(FieldError("action", "must be cancel or replay"),))
    return ACTIONS[name]


def narrowed(wanted: Wanted | None, action: Action) -> Wanted | None:
    """Those that match and can be acted upon; None if there cannot be any."""
    if wanted is None:
        return None
    asked = wanted.statuses or action.statuses
    statuses = tuple(status for status in action.statuses if status in asked)
    return replace(wanted, statuses=statuses) if statuses else None


def act(action: Action, ids: Sequence[str]) -> Done:
    """Do it, for no longer than an operator is willing to wait."""
    services = current_services()
    with patience(services.read_seconds):
        return action.act(services.engine, ids)


def in_words(action: Action, result: Done) -> str:
    """What happened."""
    jobs = "job" if result.changed == 1 else "jobs"
    told = [f"{result.changed} {jobs} {action.past}"]
    if result.asked:
        told.append(f"{result.asked} running asked to stop")
    if result.skipped:
        why = "had ended already" if action.name == "cancel" else "no dead letters any more"
        told.append(f"{result.skipped} skipped: {why}")
    return f"{', '.join(told)}."
