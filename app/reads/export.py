"""Everything that is stored of one application, as one document: the rows as they are.

One statement, so that the parts fit together. Blobs are read by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection

#: An idempotency key has the time of its jobs.
READ_EXPORT = """
    SELECT application.tenant_id, to_json(application)::text AS application,
           to_json(job)::text AS job,
           (SELECT json_agg(run ORDER BY run.lease)::text FROM attempts AS run
            WHERE run.job_id = application.id) AS attempts,
           (SELECT json_agg(said ORDER BY said.lease)::text FROM run_logs AS said
            WHERE said.job_id = application.id) AS logs,
           (SELECT to_json(saved)::text FROM checkpoints AS saved
            WHERE saved.job_id = application.id) AS checkpoint,
           (SELECT json_agg(event ORDER BY event.id)::text FROM events AS event
            WHERE event.tenant_id = application.tenant_id AND event.job_id = application.id)
               AS events,
           (SELECT json_agg(json_build_object('key', used.key, 'created_at', used.created_at))::text
            FROM idempotency_keys AS used
            WHERE used.tenant_id = application.tenant_id AND used.created_at = job.created_at
              AND used.job_ids = ARRAY[application.id]) AS idempotency_keys,
           (SELECT json_agg(copy ORDER BY copy.id)::text FROM jobs AS copy
            WHERE copy.resubmitted_from = application.id
              AND copy.tenant_id = application.tenant_id) AS resubmitted
    FROM applications AS application LEFT JOIN jobs AS job ON job.id = application.id
    WHERE application.id = %(id)s::uuid
"""
#: Parts of the document, with what stands for none.
PARTS: dict[str, Any] = {
    **dict.fromkeys(("application", "job", "checkpoint")),
    **dict.fromkeys(("attempts", "logs", "events", "idempotency_keys", "resubmitted"), ()),
}
#: Where a part names a blob: which part, the column with its name, and what to replace.
BLOBS = (
    ("job", "payload_blob", "payload"),
    ("checkpoint", "blob", "state"),
    ("resubmitted", "payload_blob", "payload"),
)


@dataclass(frozen=True, slots=True)
class ApplicationExport:
    """What is stored of an application."""

    tenant_id: int
    #: By table; see PARTS.
    document: dict[str, Any]

    def named_blobs(self) -> list[tuple[dict[str, Any], str, str]]:
        """A row, the field that a blob holds in its place, and the name of the blob."""
        found = []
        for part, column, field in BLOBS:
            of_part = self.document[part]
            rows = of_part if isinstance(of_part, list) else [of_part] if of_part else []
            found += [(row, field, row[column]) for row in rows if row[column] is not None]
        return found


def read_export(connection: Connection, application_id: str) -> ApplicationExport | None:
    """The application with everything that belongs to it; None if there is none."""
    row = connection.exec_driver_sql(READ_EXPORT, {"id": application_id}).first()
    if row is None:
        return None
    texts = {part: getattr(row, part) for part in PARTS}
    document = {
        part: PARTS[part] if text is None else orjson.loads(text) for part, text in texts.items()
    }
    return ApplicationExport(row.tenant_id, document)
