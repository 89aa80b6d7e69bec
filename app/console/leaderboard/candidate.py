"""``/console/leaderboard/<id>``: one application, from its submission to its score and its record.

The application itself is not live: it does not change, and may have a megabyte.
"""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import orjson
from gevent import Timeout
from sqlalchemy import Connection, Row

from app.api.http.state import read_standby
from app.console.formatting import SHOWN_CHARACTERS, pretty
from app.console.jobs.job import ShownDocument, read_payload
from app.console.leaderboard.page import PATH
from app.console.page import PageRequest, live_page
from app.errors import BlobStoreUnavailable, ContentUnreadable, NotFound
from app.reads.contents import readable_error, readable_rationale, readable_result
from app.reads.ranks import ScoreRank, read_ranks
from app.reads.views import record_of
from models.encryption.key_ring import DecryptionError
from models.jobs.ids import parse_id
from models.jobs.states import APPLICATION_STATUS, ApplicationStatus, JobStatus
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.rubric import CriterionMark, weighted_score

#: Of those with the same score, no more are counted.
MOST_TIED = 1000
#: How long reading a large application from the blob store may take.
BLOB_SECONDS = 5.0

#: Once the job is retired, a scored application still has its own record.
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


def read_candidate(asked: PageRequest) -> dict[str, Any]:
    """The state of the application."""
    application_id = parse_id(asked.values["application_id"])
    with read_standby() as connection:
        found = connection.exec_driver_sql(READ_CANDIDATE, {"id": application_id}).first()
        if found is None:
            raise NotFound("There is no such application.")
        row = readable_row(found)
        place = read_place(connection, row) if row.score is not None else None
    # If its job is retired, an application that still exists was scored.
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


def readable_row(row: Row[Any]) -> SimpleNamespace:
    """The row, decrypted; a record that cannot be is left out, and the rationale says why."""
    whose = (row.tenant_id, row.id)
    changed = {
        "rationale": readable_rationale(row.rationale, row.record, *whose),
        "error_message": readable_error(row.error_message, *whose),
        "record": None,
    }
    with suppress(DecryptionError):
        changed["record"] = readable_result(row.record, *whose)
    return SimpleNamespace(**{**row._mapping, **changed})


def read_place(connection: Connection, row: SimpleNamespace) -> dict[str, Any]:
    """Its rank, and how many others share it."""
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
    """The weighted score of a record's marks, computed again."""
    if not criteria:
        return None
    return Decimal(str(weighted_score(CriterionMark(**mark) for mark in criteria)))


def read_application(row: SimpleNamespace, record: dict[str, Any] | None) -> ShownDocument:
    """What was submitted, cut if it is long."""
    try:
        with Timeout(BLOB_SECONDS, BlobStoreUnavailable()):
            text, from_blob = read_payload(row.id)
    except ContentUnreadable as error:
        return ShownDocument(trouble=error.detail)
    except (BlobStoreUnavailable, NotFound) as error:
        deleted = "It was deleted with its job; the score and its record are kept."
        return ShownDocument(trouble=error.detail if row.has_job else deleted)
    # Parsed as the worker does, because the hash is of the result.
    payload = (orjson.loads(text) if from_blob else json.loads(text))["payload"]
    same = None
    if record and record["input"]:
        scored = ApplicationText(row.candidate, row.role, payload)
        same = scored.fingerprint() == record["input"]
    plain = plain_text(payload)
    whole = readable(payload, len(text)) if plain is None else plain
    cut_from = len(whole) if len(whole) > SHOWN_CHARACTERS else None
    return ShownDocument(whole[:SHOWN_CHARACTERS], cut_from, same_input=same)


def readable(payload: object, characters: int) -> str:
    """Indented JSON; long payloads in one line, as indented deep brackets become megabytes."""
    if characters > 2 * SHOWN_CHARACTERS:
        return orjson.dumps(payload).decode()
    return pretty(payload)


def plain_text(payload: str | dict[str, Any]) -> str | None:
    """The application, if it is a text; the leaderboard's form used to wrap it in an object."""
    if isinstance(payload, dict):
        payload = payload["text"] if payload.keys() == {"text"} else payload
    return payload if isinstance(payload, str) else None


CANDIDATE = live_page(f"{PATH}/<application_id>", "console/candidate.html", read_candidate)
