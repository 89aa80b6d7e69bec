"""What operators do to jobs: cancel, replay or discard one, selected ones, or all that match.

All that match are processed in batches, one per request, from newer to older ids, so that a job is
met once: one that is replayed and dies again stays dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from flask import jsonify, redirect, render_template, request
from sqlalchemy import Engine
from werkzeug.wrappers import Response

from app.admission.replays import replay_for_tenants
from app.api.http.query import known_id
from app.api.http.state import read_state, write_state
from app.api.services import current_services
from app.console.jobs.filter import GROUPS, LIST, parse_filter, resolve
from app.console.jobs.job import NO_JOB
from app.console.jobs.order import parse_place
from app.console.page import done, find_row, route
from app.errors import FieldError, ValidationFailed, invalid_field
from app.reads.search import Wanted, id_before, search
from models.audit import Act
from models.jobs.cancel import MOST_SEVERAL, Done, cancel_several
from models.jobs.discard import DISCARDED, discard_several
from models.jobs.ids import parse_id
from models.store.clock import DATABASE_CLOCK

ALL = "/console/jobs/all"
#: More are not counted before the question is asked.
COUNTED = 10_000
#: How long the jobs are counted, and searched for in one batch.
COUNT_SECONDS = 0.2
BATCH_SECONDS = 0.25
#: The resolution of ids.
A_MOMENT = timedelta(milliseconds=1)
#: What a replay is recorded as, and any of the actions.
REPLAYS = (Act.JOB_REPLAY, Act.REPLAY_REQUEST)
ALL_ACTS = (Act.JOB_CANCEL, *REPLAYS, Act.JOB_DISCARD)

FIND_JOB = "SELECT 1 FROM jobs WHERE id = %(id)s::uuid"
FIND_DISCARDED = f"SELECT {DISCARDED} AS discarded FROM jobs AS job WHERE id = %(id)s::uuid"


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done to jobs."""

    name: str
    #: Imperative and participle.
    verb: str
    past: str
    #: States in which it can be done, and what one and several such jobs are called.
    statuses: tuple[str, ...]
    one: str
    what: str
    #: Why it was not done to others.
    skipped: str
    act: Callable[[Engine, Sequence[str]], Done]


def replay_within_limits(engine: Engine, ids: Sequence[str]) -> Done:
    """As far as the limits of their tenants have room; the others follow later."""
    return replay_for_tenants(engine, current_services().tenant_limits, ids)


ONGOING = ("unfinished job", "unfinished jobs", "already finished")
DEAD = ("dead letter", "dead letters", "no longer dead letters")
ACTIONS = {
    "cancel": Action("cancel", "Cancel", "cancelled", GROUPS["live"], *ONGOING, cancel_several),
    "replay": Action("replay", "Replay", "replayed", ("dead",), *DEAD, replay_within_limits),
    "discard": Action("discard", "Discard", "discarded", ("dead",), *DEAD, discard_several),
}


@route("GET", "/console/jobs/find")
def get_find() -> Response:
    found = parse_id(request.args.get("id", "").strip())
    if found is None:
        return done(LIST, "Not a job id: an id has 36 characters.")
    return redirect(f"{LIST}/{found}", 303)


@route("POST", "/console/jobs/<job_id>/cancel", acts=(Act.JOB_CANCEL,))
def post_cancel(job_id: str) -> Response:
    """At once if it is waiting, soon if it is running."""
    known = existing(job_id)
    result = act(ACTIONS["cancel"], [known])
    notice = "The job had already finished."
    if result.changed:
        notice = "The job is cancelled."
    elif result.asked:
        notice = "The job is running and is being stopped."
    return done(f"{LIST}/{known}", notice)


@route("POST", "/console/jobs/<job_id>/replay", acts=REPLAYS)
def post_replay(job_id: str) -> Response:
    """Queued again, with attempts reset."""
    known = existing(job_id)
    result = act(ACTIONS["replay"], [known])
    notice = "The job is queued again." if result.changed else no_dead_letter(known)
    if result.later:
        notice = "The job will be queued again once the limits of its tenant have room."
    return done(f"{LIST}/{known}", notice)


@route("POST", "/console/jobs/<job_id>/discard", acts=(Act.JOB_DISCARD,))
def post_discard(job_id: str) -> Response:
    """No longer a dead letter; its record stays."""
    known = existing(job_id)
    changed = act(ACTIONS["discard"], [known]).changed
    notice = "The dead letter is discarded." if changed else no_dead_letter(known)
    return done(f"{LIST}/{known}", notice)


def no_dead_letter(job_id: str) -> str:
    """Why nothing was replayed or discarded."""
    if find_row(FIND_DISCARDED, NO_JOB, id=job_id).discarded:
        return "The job was a dead letter and has been discarded."
    return "The job is not a dead letter."


@route("POST", "/console/jobs/selected", acts=ALL_ACTS)
def post_selected() -> Response:
    """Those selected in the list."""
    action = parse_action(request.form.get("action", ""))
    known = [parse_id(text) for text in request.form.getlist("id")]
    ids = [job_id for job_id in known if job_id is not None]
    back = request.form.get("back") or LIST
    if len(ids) != len(known) or len(ids) > MOST_SEVERAL:
        raise invalid_field("id", f"must be ids of at most {MOST_SEVERAL} jobs")
    if not ids:
        return done(back, f"No jobs selected: nothing to {action.name}.")
    return done(back, describe(action, act(action, ids)))


@route("GET", ALL)
def get_all() -> str:
    """How many match, and whether that is meant."""
    action, chosen = parse_action(request.args.get("action", "")), parse_filter(request.args)
    # What is submitted after this moment is not meant.
    cursor = parse_place(request.args, "cursor") or id_before(DATABASE_CLOCK.now() + A_MOMENT)
    count, more = 0, False
    with read_state() as connection:
        wanted = narrowed(resolve(connection, chosen), action)
        if wanted is not None:
            found = search(connection, wanted, COUNTED, before=cursor, seconds=COUNT_SECONDS)
            count, more = len(found.ids), found.cursor is not None
    return render_template(
        "console/jobs-all.html",
        action=action,
        filter=chosen,
        fields={**chosen.given, "action": action.name},
        cursor=cursor,
        matching=count,
        at_least=more,
        missing=wanted is None,
        back=chosen.url(),
        batch=MOST_SEVERAL,
    )


@route("POST", ALL, acts=ALL_ACTS)
def post_all() -> Response:
    """A batch of all that match; ``cursor`` says where the one before ended."""
    action, chosen = parse_action(request.form.get("action", "")), parse_filter(request.form)
    cursor = parse_place(request.form, "cursor")
    with read_state() as connection:
        wanted = narrowed(resolve(connection, chosen), action)
        if wanted is None:
            fields = [FieldError(name, text) for name, text in chosen.errors.items()]
            raise ValidationFailed(errors=tuple(fields or [FieldError("tenant", "is unknown")]))
        found = search(connection, wanted, MOST_SEVERAL, before=cursor, seconds=BATCH_SECONDS)
    result = act(action, found.ids) if found.ids else Done()
    if request.accept_mimetypes.best == "application/json":
        counts = {"done": result.changed, "asked": result.asked, "skipped": result.skipped}
        counts["later"] = result.later
        return jsonify({**counts, "more": found.cursor is not None, "cursor": found.cursor})
    notice = describe(action, result)
    if found.cursor is None:
        return done(chosen.url(), notice)
    following = chosen.url(ALL, action=action.name, cursor=found.cursor)
    return done(following, f"{notice} More jobs match: press again to continue.")


def existing(text: str) -> str:
    known = known_id(text, NO_JOB)
    find_row(FIND_JOB, NO_JOB, id=known)
    return known


def parse_action(name: str) -> Action:
    if name not in ACTIONS:
        raise invalid_field("action", f"must be one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def narrowed(wanted: Wanted | None, action: Action) -> Wanted | None:
    """Those that match and in whose state the action is possible; None if there are none."""
    if wanted is None:
        return None
    asked = wanted.statuses or action.statuses
    statuses = tuple(status for status in action.statuses if status in asked)
    return replace(wanted, statuses=statuses) if statuses else None


def act(action: Action, ids: Sequence[str]) -> Done:
    """Do it, for no longer than an operator is willing to wait."""
    with write_state() as engine:
        return action.act(engine, ids)


def describe(action: Action, result: Done) -> str:
    parts = [f"{result.changed} {'job' if result.changed == 1 else 'jobs'} {action.past}"]
    if result.asked:
        parts.append(f"{result.asked} running being stopped")
    if result.later:
        parts.append(f"{result.later} to follow as fast as the limits of their tenants allow")
    if result.skipped:
        parts.append(f"{result.skipped} skipped: {action.skipped}")
    return f"{', '.join(parts)}."
