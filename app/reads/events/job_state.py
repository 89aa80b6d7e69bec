"""The state of a job as its event stream shows it, read for many jobs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Engine, RowMapping

from app.reads.contents import readable_error, readable_result
from app.reads.events.message import message as event_message
from app.reads.events.position import same_course, version_of
from app.reads.times import rfc3339
from models.encryption.key_ring import DecryptionError
from models.jobs.states import JobStatus
from models.store.arrays import plain_array
from models.store.session import connect

#: A larger result is not repeated in an event; the job itself has it.
MOST_RESULT_BYTES = 65_536
#: As if the row had never been seen: no transaction has this number.
UNSEEN = "0"
#: After the last event there is nothing to come back for, yet browsers do.
LAST_RETRY_MS = 30_000

#: Only rows that were written since they were last seen: the server's own mark of a row is
#: compared, so that a thousand jobs that wait cost a thousand look-ups and no row at all.
#: A row that is gone answers with nothing but its id.
READ_CHANGED = f"""
    SELECT watched.id::text, job.xmin::text AS mark, job.tenant_id, job.type, job.status::text,
           job.lease, job.attempt, job.crashes, job.replays, job.cancel_requested_at,
           job.progress::text, job.error_class, job.error_message,
           coalesce(job.finished_at, now()) AS at,
           job.ended_xid IS NOT NULL AND octet_length(job.result::text) > {MOST_RESULT_BYTES}
               AS result_omitted,
           CASE WHEN job.ended_xid IS NOT NULL
                 AND octet_length(job.result::text) <= {MOST_RESULT_BYTES}
                THEN job.result::text END AS result
    FROM unnest(%(ids)s::uuid[], %(seen)s::xid[]) AS watched (id, seen)
    LEFT JOIN jobs AS job ON job.id = watched.id
    WHERE job.id IS NULL OR job.xmin <> watched.seen
"""

#: What a client sees of a job, but for its progress.
COURSE: itemgetter[tuple[Any, ...]] = itemgetter(
    "replays", "lease", "status", "attempt", "crashes", "cancel_requested_at"
)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it was at one moment."""

    tenant_id: int
    status: JobStatus
    #: The server's mark of the row; changes with every write, also invisible ones.
    mark: str
    #: Changes only with what a client sees.
    version: str
    #: JSON.
    data: bytes

    def event_after(self, known: str) -> bytes:
        """The event for a client that knows the version ``known``."""
        name = "progress" if same_course(self.version, known) else self.status.value
        retry_ms = LAST_RETRY_MS if self.status.terminal else None
        return event_message(name, self.data, self.version, retry_ms)


def read_changed(engine: Engine, watched: Sequence[tuple[str, str]]) -> dict[str, JobState | None]:
    """Those of ``(id, mark)`` whose row was written since; None for a row that is gone."""
    asked = {
        "ids": plain_array(job_id for job_id, _ in watched),
        "seen": plain_array(mark for _, mark in watched),
    }
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(READ_CHANGED, asked).mappings().all()
    return {row["id"]: None if row["mark"] is None else job_state(row) for row in rows}


def job_state(row: RowMapping) -> JobState:
    """A row of READ_CHANGED."""
    status = JobStatus(row["status"])
    progress, failure, whose = row["progress"], row["error_class"], (row["tenant_id"], row["id"])
    message, omitted = readable_error(row["error_message"], *whose), row["result_omitted"]
    try:
        result = readable_result(row["result"], *whose)
    except DecryptionError:
        result, omitted = None, True  # the job itself says why
    document: dict[str, Any] = {
        "id": row["id"],
        "type": row["type"],
        "status": status.value,
        "attempt": row["attempt"],
        "crashes": row["crashes"],
        "cancel_requested_at": rfc3339(row["cancel_requested_at"]),
        "progress": None if progress is None else orjson.Fragment(progress),
        "error": None if failure is None else {"class": failure, "message": message},
        # When it ended, or when it was seen to be so.
        "at": rfc3339(row["at"]),
    }
    if status.terminal:
        document["result"] = None if result is None else orjson.Fragment(result)
        if omitted:
            document["result_omitted"] = True
    version = version_of(COURSE(row), progress)
    return JobState(row["tenant_id"], status, row["mark"], version, orjson.dumps(document))
