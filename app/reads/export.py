"""Everything that is stored of one application, as one document: the rows as they are, decrypted.

One statement, so that the parts fit together. Blobs are read by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection

from app.reads.contents import readable_detail
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_text, decrypt_value

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
JOB_CONTENT = {
    "payload": ContentKind.PAYLOAD,
    "result": ContentKind.RESULT,
    "error_message": ContentKind.ERROR,
}
#: Parts of the document, with what stands for none.
PARTS: dict[str, Any] = {
    **dict.fromkeys(("application", "job", "checkpoint")),
    **dict.fromkeys(("attempts", "logs", "events", "idempotency_keys", "resubmitted"), ()),
}
#: Where a part names a blob: which part, the column with its name, what to replace and its kind.
BLOBS = (
    ("job", "payload_blob", "payload", ContentKind.PAYLOAD),
    ("checkpoint", "blob", "state", ContentKind.CHECKPOINT),
    ("resubmitted", "payload_blob", "payload", ContentKind.PAYLOAD),
)
#: What may be encrypted, by part.
CONTENT: dict[str, dict[str, ContentKind]] = {
    "application": {"rationale": ContentKind.RATIONALE, "record": ContentKind.RESULT},
    "job": JOB_CONTENT,
    "resubmitted": JOB_CONTENT,
    "attempts": {"error_message": ContentKind.ERROR},
    "logs": {"log": ContentKind.LOG, "traceback": ContentKind.TRACEBACK},
    "checkpoint": {"state": ContentKind.CHECKPOINT},
}
TEXTS = ("error_message", "rationale", "traceback")


class NamedBlob(NamedTuple):
    """A blob, and where the document is to have what it contains."""

    row: dict[str, Any]
    field: str
    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class ApplicationExport:
    """What is stored of an application."""

    tenant_id: int
    #: By table; see PARTS.
    document: dict[str, Any]

    def named_blobs(self) -> list[NamedBlob]:
        """Those in place of which the document is to have what they contain."""
        return [
            NamedBlob(row, field, row[column], Place(self.tenant_id, owner_of(row), kind))
            for part, column, field, kind in BLOBS
            for row in rows_of(self.document[part])
            if row[column] is not None
        ]


def rows_of(part: Any) -> list[dict[str, Any]]:
    """The rows of a part, which may be one, several or none."""
    return part if isinstance(part, list) else [part] if part else []


def owner_of(row: dict[str, Any]) -> str:
    """The id of the job that a row is about."""
    return str(row["job_id"] if "job_id" in row else row["id"])


def decrypt_part(part: str, rows: list[dict[str, Any]], tenant_id: int) -> None:
    """Put in place what is encrypted in the rows; DecryptionError if a key is missing."""
    for row in rows:
        for name, kind in CONTENT.get(part, {}).items():
            place = Place(tenant_id, owner_of(row), kind)
            if name in TEXTS:
                row[name] = None if row[name] is None else decrypt_text(row[name], place)
            else:
                row[name] = decrypt_value(row[name], place)
        if part == "events":
            told = orjson.dumps(row["detail"]).decode()
            job_id = row["job_id"]
            row["detail"] = orjson.loads(readable_detail(row["kind"], told, tenant_id, job_id))


def read_export(connection: Connection, application_id: str) -> ApplicationExport | None:
    """The application with everything that belongs to it; None if there is none."""
    row = connection.exec_driver_sql(READ_EXPORT, {"id": application_id}).first()
    if row is None:
        return None
    texts = {part: getattr(row, part) for part in PARTS}
    document = {
        part: PARTS[part] if text is None else orjson.loads(text) for part, text in texts.items()
    }
    for part, found in document.items():
        decrypt_part(part, rows_of(found), row.tenant_id)
    return ApplicationExport(row.tenant_id, document)
