"""Reads for pollers: concurrent requests share one SELECT, ended ones are kept for a second.

Reads bypass the write model. A kept answer may show a rank up to a second old; nothing
else about it changes. What may be replayed is not kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import orjson
from sqlalchemy import Connection, Engine

from app.api.job_views import JOB_COLUMNS, View, etag_of, job_document, read_jobs
from app.api.ranks import Standing, read_ranks
from app.api.records import NOTHING, told
from app.api.times import rfc3339
from models.arrays import plain_array
from models.group_commit import GroupCommit
from models.prepared import Prepared
from models.session import connection
from models.states import APPLICATION_STATUS, TERMINAL, JobStatus

#: How long an answer that will not change is kept, and how many.
KEEP_SECONDS = 1.0
KEEP_MOST = 2_000
#: A larger result is read again: thousands of them would fill the memory.
KEEP_CHARACTERS = 16_384
#: Statuses after which nothing comes.
LASTING = frozenset({"succeeded", "cancelled", "expired", "scored", "withdrawn"})

#: A scored application outlives its job, which is retired after a while; its result stays.
READ_APPLICATIONS = f"""
    SELECT asked.id::text, application.tenant_id, tenant.name, {JOB_COLUMNS},
           coalesce(job.result, application.record)::text, application.candidate,
           application.role, application.score, application.rationale, application.scored_at
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN applications AS application ON application.id = asked.id
    JOIN tenants AS tenant ON tenant.id = application.tenant_id
    LEFT JOIN jobs AS job ON job.id = asked.id
    WHERE job.id IS NOT NULL OR application.score IS NOT NULL
"""

PREPARED = Prepared("read_applications", READ_APPLICATIONS)

#: What is asked for: a kind and an id.
Asked = tuple[Literal["application", "job"], str]


class Views:
    """Answers pollers."""

    def __init__(self, engine: Engine, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._kept: dict[Asked, tuple[float, View]] = {}
        self._reads: GroupCommit[Asked, View | None] = GroupCommit(
            self._read, name="read", max_group=1_000, gathers=True
        )

    def application(self, application_id: str) -> View | None:
        """The application, or None if there is none."""
        return self._find(("application", application_id))

    def job(self, job_id: str) -> View | None:
        """The job, or None if there is none."""
        return self._find(("job", job_id))

    def _find(self, asked: Asked) -> View | None:
        kept = self._kept.get(asked)
        if kept is not None and time.monotonic() - kept[0] < KEEP_SECONDS:
            return kept[1]
        view = self._reads.submit(asked, self._timeout_seconds)
        if view is not None and view.status in LASTING and view.weight <= KEEP_CHARACTERS:
            if len(self._kept) >= KEEP_MOST:
                self._kept.clear()
            self._kept[asked] = (time.monotonic(), view)
        return view

    def _read(self, group: Sequence[Asked]) -> list[View | None]:
        applications = {id_ for kind, id_ in group if kind == "application"}
        jobs = {id_ for kind, id_ in group if kind == "job"}
        with connection(self._engine) as taken:
            found = {
                "application": read_applications(taken, applications) if applications else {},
                "job": read_jobs(taken, jobs) if jobs else {},
            }
        return [found[kind].get(id_) for kind, id_ in group]


def read_applications(taken: Connection, ids: Iterable[str]) -> dict[str, View]:
    """The applications that there are, by id."""
    rows = PREPARED.execute(taken, {"ids": plain_array(ids)}).all()
    scored = {standing(row) for row in rows if row[22] is not None}
    ranks = read_ranks(taken, scored) if scored else {}
    return {row[0]: application_view(row, ranks.get(standing(row))) for row in rows}


def standing(row: Sequence[Any]) -> Standing:
    """What the rank of a row of READ_APPLICATIONS depends on."""
    return Standing(row[1], row[21], row[22])


def application_view(row: Sequence[Any], rank: int | None) -> View:
    """A row of READ_APPLICATIONS as a view."""
    # A job that is gone was retired, and an application that stayed was scored.
    job_status = JobStatus.SUCCEEDED if row[6] is None else JobStatus(row[6])
    status = APPLICATION_STATUS[job_status].value
    document = job_document(row) | {
        "type": "score_application",
        "pool": "medium",
        "status": status,
        "candidate": row[20],
        "role": row[21],
        "score": None if row[22] is None else float(row[22]),
        "rank": rank,
        "rationale": row[23],
        # Parsed once it is scored: whoever polls before pays nothing for it.
        **(NOTHING if row[22] is None else told(row[19])),
        # As it stands in the row: nothing is gained by parsing it.
        "result": None if row[19] is None else orjson.Fragment(row[19]),
    }
    if row[6] is None:
        document["finished_at"] = rfc3339(row[24])
    mark = f"{row[0]}|{status}|{rank}|{'|'.join(map(str, row[7:19]))}"
    return View(row[1], status, job_status in TERMINAL, etag_of(mark), document)
