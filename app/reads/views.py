"""Reads for pollers: concurrent requests share one SELECT, jobs that ended are kept for a second.

A kept answer may show a rank up to a second old; nothing else about it changes. What may be
replayed is not kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, Literal

import orjson
from sqlalchemy import Connection, Engine, RowMapping

from app.reads.contents import readable_rationale, readable_result
from app.reads.job_views import CHANGING, JOB_SQL, View, etag_of, job_document, read_jobs
from app.reads.ranks import ScoreRank, read_ranks
from app.reads.times import rfc3339
from models.encryption.key_ring import DecryptionError
from models.jobs.erase import READ_ERASED
from models.jobs.states import APPLICATION_STATUS, TERMINAL, JobStatus
from models.store.arrays import plain_array
from models.store.group_commit import GroupCommit
from models.store.prepared import PreparedStatement
from models.store.roles import is_of_another
from models.store.session import connect

#: How long an answer that will not change is kept, and how many.
KEEP_SECONDS = 1.0
KEEP_MOST = 2_000
#: A larger result is read again: thousands of them would fill the memory.
KEEP_CHARACTERS = 16_384
#: Parts of a score's record.
RECORD = ("model", "rubric", "input", "dropped_quotes")
#: Statuses that never change.
LASTING = frozenset({"succeeded", "cancelled", "expired", "scored", "withdrawn"})

#: A scored application outlives its job, which is retired after a while; its result stays.
READ_APPLICATIONS = f"""
    SELECT asked.id::text, application.tenant_id, tenant.name AS tenant, {JOB_SQL},
           coalesce(job.result, application.record)::text AS result, application.candidate,
           application.role, application.score, application.rationale, application.scored_at
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN applications AS application ON application.id = asked.id
    JOIN tenants AS tenant ON tenant.id = application.tenant_id
    LEFT JOIN jobs AS job ON job.id = asked.id
    WHERE job.id IS NOT NULL OR application.score IS NOT NULL
"""

PREPARED = PreparedStatement("read_applications", READ_APPLICATIONS)

#: The columns of the job that the tag of an application changes with.
TAGGED: itemgetter[tuple[Any, ...]] = itemgetter(*CHANGING)

#: A kind and an id.
Asked = tuple[Literal["application", "job"], str]


class Views:
    """Applications and jobs as pollers read them."""

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

    def forget(self, job_id: str) -> None:
        """Keep no answer about it any longer: it is being erased."""
        for kind in ("application", "job"):
            self._kept.pop((kind, job_id), None)

    def _find(self, asked: Asked) -> View | None:
        """As its tenant or an operator sees it; None for another tenant."""
        view = self._find_any(asked)
        return None if view is None or is_of_another(view.tenant_id) else view

    def _find_any(self, asked: Asked) -> View | None:
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
        found: dict[str, dict[str, View]] = {}
        with connect(self._engine) as connection:
            for kind, read in (("application", read_applications), ("job", read_jobs)):
                ids = {id_ for of, id_ in group if of == kind}
                found[kind] = read(connection, ids) if ids else {}
            missing = {id_ for kind, id_ in group if id_ not in found[kind]}
            erased = read_erased(connection, missing) if missing else {}
        return [found[kind].get(id_) or erased.get(id_) for kind, id_ in group]


def read_erased(connection: Connection, ids: Iterable[str]) -> dict[str, View]:
    """Those that were erased, by id: nothing but whose they were."""
    rows = connection.exec_driver_sql(READ_ERASED, {"ids": plain_array(ids)})
    return {row.id: View(row.tenant_id, "", True, "", {}, erased=True) for row in rows}


def read_applications(connection: Connection, ids: Iterable[str]) -> dict[str, View]:
    """Those of the applications that exist, by id."""
    rows = PREPARED.execute(connection, {"ids": plain_array(ids)}).mappings().all()
    scores = {
        row["id"]: ScoreRank(row["tenant_id"], row["role"], row["score"])
        for row in rows
        if row["score"] is not None
    }
    ranks = read_ranks(connection, set(scores.values())) if scores else {}
    return {
        row["id"]: application_view(row, ranks[scores[row["id"]]] if row["id"] in scores else None)
        for row in rows
    }


def application_view(row: RowMapping, rank: int | None) -> View:
    """A row of READ_APPLICATIONS as a view."""
    # A job that is gone was retired, and an application that stayed was scored.
    job_status = JobStatus.SUCCEEDED if row["status"] is None else JobStatus(row["status"])
    status = APPLICATION_STATUS[job_status].value
    score, unreadable, whose = row["score"], "", (row["tenant_id"], row["id"])
    try:
        result = readable_result(row["result"], *whose)
    except DecryptionError as error:
        result, unreadable = None, str(error)
    record = None if score is None else result
    document = job_document(row) | {
        "type": "score_application",
        "pool": "medium",
        "status": status,
        "candidate": row["candidate"],
        "role": row["role"],
        "score": None if score is None else float(score),
        "rank": rank,
        "rationale": readable_rationale(row["rationale"], record, *whose),
        # Parsed once it is scored: polls before that cost nothing.
        **record_of(record),
        # As it stands in the row: nothing is gained by parsing it.
        "result": None if result is None else orjson.Fragment(result),
    }
    if row["status"] is None:
        document["finished_at"] = rfc3339(row["scored_at"])
    mark = f"{row['id']}|{status}|{rank}|{'|'.join(map(str, TAGGED(row)))}"
    ended = job_status in TERMINAL
    return View(whose[0], status, ended, etag_of(mark), document, unreadable=unreadable)


def record_of(result: str | None) -> dict[str, Any]:
    """``criteria``, ``evidence`` and ``record`` of a score's JSON: how the score came about.

    From the result of the scoring job, or from what the application keeps of it once the job is
    retired. Scores from before records were kept have fewer parts; what is missing is null.
    """
    score = orjson.loads(result) if result else None
    if not isinstance(score, dict):
        return {"criteria": None, "evidence": None, "record": None}
    return {
        "criteria": score.get("criteria"),
        "evidence": score.get("evidence"),
        "record": {name: score.get(name) for name in RECORD},
    }
