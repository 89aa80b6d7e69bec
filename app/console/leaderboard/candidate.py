"""``/console/leaderboard/<id>``: one application, from its submission to its score and its record.

The application itself is read for whoever opens the page and not again while it is watched: it
does not change, and may have a megabyte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
from gevent import Timeout
from sqlalchemy import Connection, Row

from app.api.http.state import read_state
from app.api.services import current_services
from app.console.formatting import SHOWN_CHARACTERS, pretty
from app.console.leaderboard.page import PATH
from app.console.page import LivePage, PageRequest
from app.errors import NotFound
from app.reads.ranks import ScoreRank, read_ranks
from app.reads.views import record_of
from models.blobs import BlobError
from models.jobs.ids import parse_id
from models.jobs.states import APPLICATION_STATUS, ApplicationStatus, JobStatus
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.rubric import CriterionMark, weighted_score

#: Of those who share a score, no more are counted.
MOST_TIED = 1000
#: How long a large application may take to come from the blob store.
BLOB_SECONDS = 5.0

#: What a scored application shows when its job is retired is its own.
READ_CANDIDATE = """
    SELECT application.id::text, application.tenant_id, tenant.name AS tenant,
           application.candidate, application.role, application.score, application.rationale,
           application.scored_at, coalesce(job.result, application.record)::text AS record,
           job.id IS NOT NULL AS has_job, job.status, job.attempt, job.deferrals, job.crashes,
           job.created_at, job.execute_at, job.not_after, job.started_at, job.finished_at,
           job.error_class, job.error_message, job.cancel_requested_at,
           job.execute_at > now() AS put_off
    FROM applications AS application
    JOIN tenants AS tenant ON tenant.id = application.tenant_id
    LEFT JOIN jobs AS job ON job.id = application.id
    WHERE application.id = %(id)s::uuid AND (job.id IS NOT NULL OR application.score IS NOT NULL)
"""
COUNT_TIED = f"""
    SELECT count(*) FROM (
        SELECT 1 FROM applications
        WHERE tenant_id = %(tenant)s AND role = %(role)s AND score = %(score)s
        LIMIT {MOST_TIED + 1}
    ) AS tied
"""
READ_PAYLOAD = "SELECT payload::text, payload_blob FROM jobs WHERE id = %(id)s::uuid"


@dataclass(frozen=True, slots=True)
class ShownApplication:
    """The application as the page shows it."""

    text: str = ""
    #: Characters of the whole, if that is more.
    cut_from: int | None = None
    #: Why there is nothing.
    missing: str = ""
    #: Whether it is what the score was made from; None if no hash was kept.
    same_input: bool | None = None


def read_candidate(asked: PageRequest) -> dict[str, Any]:
    """Where the application stands now."""
    application_id = parse_id(asked.values["application_id"])
    with read_state() as connection:
        row = connection.exec_driver_sql(READ_CANDIDATE, {"id": application_id}).first()
        if row is None:
            raise NotFound("There is no such application.")
        place = read_place(connection, row) if row.score is not None else None
    # A job that is gone was retired, and an application that stayed was scored.
    status = APPLICATION_STATUS[JobStatus(row.status or JobStatus.SUCCEEDED)]
    score = record_of(row.record if row.score is not None else None)
    usage = (json.loads(row.record) if score["record"] else {}).get("usage")
    return {
        "path_of_all": PATH,
        "row": row,
        "status": status.value,
        "waiting": status in (ApplicationStatus.PENDING, ApplicationStatus.SCORING),
        "place": place,
        "usage": usage,
        "amount": amount(score["criteria"]),
        **score,
        "application": lambda: read_application(row, score["record"]),
    }


def read_place(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """Rank, and how many others have it."""
    standing = ScoreRank(row.tenant_id, row.role, row.score)
    asked = {"tenant": row.tenant_id, "role": row.role, "score": row.score}
    others = int(connection.exec_driver_sql(COUNT_TIED, asked).scalar_one()) - 1
    rank = read_ranks(connection, {standing})[standing]
    return {"rank": ordinal(rank), "others": min(others, MOST_TIED), "more": others > MOST_TIED}


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    teen = number // 10 % 10 == 1
    ending = "th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def amount(criteria: list[dict[str, Any]] | None) -> Decimal | None:
    """What the marks of a record amount to, done again."""
    if not criteria:
        return None
    return Decimal(str(weighted_score(CriterionMark(**mark) for mark in criteria)))


def read_application(row: Row[Any], record: dict[str, Any] | None) -> ShownApplication:
    """What was submitted, cut if it is long."""
    with read_state() as connection:
        found = connection.exec_driver_sql(READ_PAYLOAD, {"id": row.id}).first()
    if found is None:
        return ShownApplication(
            missing="It was removed with its job; the score and its record stay."
        )
    text, blob = found
    if blob is not None:
        try:
            with Timeout(BLOB_SECONDS, BlobError("The store did not answer in time.")):
                text = current_services().blobs.get(blob).decode()
        except BlobError:
            return ShownApplication(missing="The store for large applications does not answer.")
    # Each as the worker reads it, which is what the hash is of.
    payload = (json.loads(text) if blob is None else orjson.loads(text))["payload"]
    same = None
    if record and record["input"]:
        scored = ApplicationText(row.candidate, row.role, payload)
        same = scored.fingerprint() == record["input"]
    whole = payload["text"] if is_text(payload) else readable(payload, len(text))
    if len(whole) <= SHOWN_CHARACTERS:
        return ShownApplication(whole, same_input=same)
    return ShownApplication(whole[:SHOWN_CHARACTERS], len(whole), same_input=same)


def readable(payload: dict[str, Any], characters: int) -> str:
    """As people read it; what is long in one line: indented, deep brackets become megabytes."""
    if characters > 2 * SHOWN_CHARACTERS:
        return orjson.dumps(payload).decode()
    return pretty(payload)


def is_text(payload: dict[str, Any]) -> bool:
    """Whether it is a text and nothing else, as the leaderboard's form sends it."""
    return payload.keys() == {"text"} and isinstance(payload["text"], str)


CANDIDATE = LivePage(f"{PATH}/<application_id>", "console/candidate.html", read_candidate)
