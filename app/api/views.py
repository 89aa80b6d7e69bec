"""Reads for pollers: concurrent requests share one SELECT, ended ones are kept for a second.

Reads bypass the write model. A kept answer may show a rank up to a second old; nothing
else about an ended application changes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Engine

from app.api.ranks import Standing, read_ranks
from models.group_commit import GroupCommit
from models.session import connection
from models.states import APPLICATION_STATUS, JobStatus

#: How long the answer for an ended application is kept, and how many.
KEEP_SECONDS = 1.0
KEEP_MOST = 2_000

READ_APPLICATIONS = """
    SELECT asked.id::text, application.tenant_id, tenant.name, application.candidate,
           application.role, application.score, application.rationale, job.status,
           job.priority, job.attempt, job.crashes, job.created_at, job.execute_at,
           job.not_after, job.dispatched_at, job.started_at, job.finished_at,
           job.error_class, job.error_message, job.result::text
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN applications AS application ON application.id = asked.id
    JOIN tenants AS tenant ON tenant.id = application.tenant_id
    JOIN jobs AS job ON job.id = asked.id
"""


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application as its sender sees it."""

    tenant_id: int
    job_status: JobStatus
    status: str
    etag: str
    document: dict[str, Any]


class Views:
    """Answers pollers."""

    def __init__(self, engine: Engine, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._kept: dict[str, tuple[float, ApplicationView]] = {}
        self._reads: GroupCommit[str, ApplicationView | None] = GroupCommit(self._read, name="read")

    def application(self, application_id: str) -> ApplicationView | None:
        """The application, or None if there is none."""
        kept = self._kept.get(application_id)
        if kept is not None and time.monotonic() - kept[0] < KEEP_SECONDS:
            return kept[1]
        view = self._reads.submit(application_id, self._timeout_seconds)
        if view is not None and view.job_status.terminal:
            if len(self._kept) >= KEEP_MOST:
                self._kept.clear()
            self._kept[application_id] = (time.monotonic(), view)
        return view

    def _read(self, ids: Sequence[str]) -> list[ApplicationView | None]:
        with connection(self._engine) as taken:
            rows = taken.exec_driver_sql(READ_APPLICATIONS, {"ids": list(set(ids))}).all()
            scored = {standing(row) for row in rows if row[5] is not None}
            ranks = read_ranks(taken, scored) if scored else {}
        views = {row[0]: application_view(row, ranks.get(standing(row))) for row in rows}
        return [views.get(application_id) for application_id in ids]


def standing(row: Sequence[Any]) -> Standing:
    """What the rank of a row of READ_APPLICATIONS depends on."""
    return Standing(row[1], row[4], row[5])


def application_view(row: Sequence[Any], rank: int | None) -> ApplicationView:
    """A row of READ_APPLICATIONS as a document."""
    job_status = JobStatus(row[7])
    status = APPLICATION_STATUS[job_status].value
    document = {
        "id": row[0],
        "type": "score_application",
        "tenant": row[2],
        "pool": "medium",
        "priority": row[8],
        "status": status,
        "candidate": row[3],
        "role": row[4],
        "score": None if row[5] is None else float(row[5]),
        "rank": rank,
        "rationale": row[6],
        "attempt": row[9],
        "crashes": row[10],
        "created_at": rfc3339(row[11]),
        "execute_at": rfc3339(row[12]),
        "not_after": rfc3339(row[13]),
        "dispatched_at": rfc3339(row[14]),
        "started_at": rfc3339(row[15]),
        "finished_at": rfc3339(row[16]),
        "progress": None,
        # As it stands in the row: nothing is gained by parsing it.
        "result": None if row[19] is None else orjson.Fragment(row[19]),
        "error": None if row[17] is None else {"class": row[17], "message": row[18]},
    }
    mark = f"{row[0]}{status}{rank}{row[9]}{row[10]}{row[14]}{row[15]}{row[12]}"
    etag = f'"{hashlib.blake2b(mark.encode(), digest_size=9).hexdigest()}"'
    return ApplicationView(row[1], job_status, status, etag, document)


def rfc3339(moment: datetime | None) -> str | None:
    """A time as RFC 3339 in UTC."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
