"""What a watcher of one job sees, read for many jobs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Engine

from app.api.times import rfc3339
from app.events.message import message
from app.events.position import same_course, version_of
from models.session import connection
from models.states import JobStatus

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
    SELECT watched.id::text, job.xmin::text, job.tenant_id, job.type, job.status::text,
           job.lease, job.attempt, job.crashes, job.replays, job.cancel_requested_at,
           job.progress::text, job.error_class, job.error_message,
           coalesce(job.finished_at, now()),
           job.ended_xid IS NOT NULL AND octet_length(job.result::text) > {MOST_RESULT_BYTES},
           CASE WHEN job.ended_xid IS NOT NULL
                 AND octet_length(job.result::text) <= {MOST_RESULT_BYTES}
                THEN job.result::text END
    FROM unnest(%(ids)s::uuid[], %(seen)s::xid[]) AS watched (id, seen)
    LEFT JOIN jobs AS job ON job.id = watched.id
    WHERE job.id IS NULL OR job.xmin <> watched.seen
"""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it was at one moment."""

    tenant_id: int
    status: JobStatus
    #: The server's mark of the row; changes with every write, also those that nobody sees.
    mark: str
    #: What a client sees, named; changes only with it.
    version: str
    #: JSON.
    data: bytes

    def told_after(self, known: str) -> bytes:
        """The event for a client that knows the version ``known``."""
        name = "progress" if same_course(self.version, known) else self.status.value
        retry_ms = LAST_RETRY_MS if self.status.terminal else None
        return message(name, self.data, self.version, retry_ms)


def read_changed(engine: Engine, watched: Sequence[tuple[str, str]]) -> dict[str, JobState | None]:
    """Those of ``(id, mark)`` whose row was written since; None for a row that is gone."""
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(
            READ_CHANGED,
            {
                # As literals: adapting a list costs more than reading its rows.
                "ids": f"{{{','.join(job_id for job_id, _ in watched)}}}",
                "seen": f"{{{','.join(mark for _, mark in watched)}}}",
            },
        ).all()
    return {row[0]: None if row[1] is None else job_state(row) for row in rows}


def job_state(row: Sequence[Any]) -> JobState:
    """A row of READ_CHANGED."""
    status = JobStatus(row[4])
    document: dict[str, Any] = {
        "id": row[0],
        "type": row[3],
        "status": status.value,
        "attempt": row[6],
        "crashes": row[7],
        "cancel_requested_at": rfc3339(row[9]),
        "progress": None if row[10] is None else orjson.Fragment(row[10]),
        "error": None if row[11] is None else {"class": row[11], "message": row[12]},
        # When it ended, or when it was seen to be so.
        "at": rfc3339(row[13]),
    }
    if status.terminal:
        document["result"] = None if row[15] is None else orjson.Fragment(row[15])
        if row[14]:
            document["result_omitted"] = True
    version = version_of((row[8], row[5], row[4], row[6], row[7], row[9]), row[10])
    return JobState(row[2], status, row[1], version, orjson.dumps(document))
