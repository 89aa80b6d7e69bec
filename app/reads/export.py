"""Everything that is stored of one application, as one document: the rows as they are, decrypted.

One statement, so that the parts fit together. Blobs are read by the caller.

Jobs that were resubmitted from it, its copies, may be many and large: the oldest are in the
document, the rest by their ids. A copy is exported like an application, by its own id.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection

from app.reads.contents import readable_detail
from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_text, decrypt_value

#: Copies in a document, as long as their rows and their blobs have no more bytes each.
MOST_COPIES = 100
MOST_BYTES = 8_000_000
#: Ids of further copies in a document.
MOST_IDS = 10_000
#: Events in a document: the newest.
MOST_EVENTS = 100

#: An idempotency key has the time of its jobs. No more copies are looked at than a document can
#: name, so that a million of them cost no more than that.
READ_EXPORT = f"""
    SELECT owner.tenant_id, to_json(application)::text AS application,
           to_json(job)::text AS job,
           (SELECT json_agg(run ORDER BY run.lease)::text FROM attempts AS run
            WHERE run.job_id = asked.id) AS attempts,
           (SELECT json_agg(said ORDER BY said.lease)::text FROM run_logs AS said
            WHERE said.job_id = asked.id) AS logs,
           (SELECT to_json(saved)::text FROM checkpoints AS saved
            WHERE saved.job_id = asked.id) AS checkpoint,
           reported.events, reported.older_events,
           (SELECT json_agg(json_build_object('key', used.key, 'created_at', used.created_at))::text
            FROM idempotency_keys AS used
            WHERE used.tenant_id = owner.tenant_id AND used.created_at = job.created_at
              AND used.job_ids = ARRAY[asked.id]) AS idempotency_keys,
           copied.resubmitted, copied.more_ids
    FROM (VALUES (%(id)s::uuid)) AS asked (id)
    LEFT JOIN applications AS application ON application.id = asked.id
    LEFT JOIN jobs AS job ON job.id = asked.id
    CROSS JOIN LATERAL (
        SELECT coalesce(application.tenant_id, job.tenant_id) AS tenant_id
    ) AS owner
    CROSS JOIN LATERAL (
        WITH told AS MATERIALIZED (
            SELECT id FROM events WHERE tenant_id = owner.tenant_id AND job_id = asked.id
        )
        SELECT (SELECT json_agg(event ORDER BY event.id)::text FROM events AS event
                WHERE event.id IN (SELECT id FROM told ORDER BY id DESC LIMIT {MOST_EVENTS})
               ) AS events,
               (SELECT greatest(count(*) - {MOST_EVENTS}, 0) FROM told) AS older_events
    ) AS reported
    CROSS JOIN LATERAL (
        WITH copies AS MATERIALIZED (
            SELECT id FROM jobs WHERE resubmitted_from = asked.id AND tenant_id = owner.tenant_id
            LIMIT {MOST_COPIES + MOST_IDS + 1}
        ), oldest AS (
            SELECT id FROM copies ORDER BY id LIMIT {MOST_COPIES}
        ), weighed AS (
            SELECT id, sum(octet_length(payload::text) + coalesce(octet_length(result::text), 0)
                           + coalesce(octet_length(error_message), 0)) OVER (ORDER BY id) AS bytes
            FROM jobs JOIN oldest USING (id)
        ), shown AS MATERIALIZED (
            SELECT id FROM weighed WHERE bytes <= {MOST_BYTES}
        )
        SELECT array(SELECT to_json(copy)::text FROM jobs AS copy
                     WHERE copy.id IN (SELECT id FROM shown) ORDER BY copy.id) AS resubmitted,
               array(SELECT id::text FROM copies
                     WHERE id NOT IN (SELECT id FROM shown) ORDER BY id) AS more_ids
    ) AS copied
    WHERE application.id IS NOT NULL OR job.resubmitted_from IS NOT NULL
"""
JOB_CONTENT = {
    "payload": ContentKind.PAYLOAD,
    "result": ContentKind.RESULT,
    "error_message": ContentKind.ERROR,
}
#: Parts of the document that are one text, with what stands for none.
PARTS: dict[str, Any] = {
    **dict.fromkeys(("application", "job", "checkpoint")),
    **dict.fromkeys(("attempts", "logs", "events", "idempotency_keys"), ()),
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
    #: Whether it is that of a copy.
    of_copy: bool


@dataclass(frozen=True, slots=True)
class ApplicationExport:
    """What is stored of an application."""

    tenant_id: int
    #: By table; see PARTS. Copies oldest first.
    document: dict[str, Any]
    #: Ids of the copies that are not in the document, and perhaps of one more than it may name.
    more_ids: list[str]

    def named_blobs(self) -> list[NamedBlob]:
        """Those in place of which the document is to have what they contain; of copies last."""
        return [
            NamedBlob(
                row,
                field,
                row[column],
                Place(self.tenant_id, owner_of(row), kind),
                part == "resubmitted",
            )
            for part, column, field, kind in BLOBS
            for row in rows_of(self.document[part])
            if row[column] is not None
        ]

    def leave_out_from(self, copy: dict[str, Any]) -> None:
        """Only name this copy and those after it."""
        copies = self.document["resubmitted"]
        first = next(place for place, row in enumerate(copies) if row is copy)
        self.more_ids[:0] = [row["id"] for row in copies[first:]]
        del copies[first:]

    def named_copies(self) -> dict[str, Any]:
        """The copies that are not in the document."""
        return {
            "count": min(len(self.more_ids), MOST_IDS),
            "at_least": len(self.more_ids) > MOST_IDS,
            "ids": self.more_ids[:MOST_IDS],
        }


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


def read_export(connection: Connection, job_id: str) -> ApplicationExport | None:
    """The application, or the copy of one, with everything that belongs to it; None if there is
    none."""
    row = connection.exec_driver_sql(READ_EXPORT, {"id": job_id}).first()
    if row is None:
        return None
    texts = {part: getattr(row, part) for part in PARTS}
    document = {
        part: PARTS[part] if text is None else orjson.loads(text) for part, text in texts.items()
    }
    for part, found in document.items():
        decrypt_part(part, rows_of(found), row.tenant_id)
    document["older_events"] = row.older_events
    document["resubmitted"] = []
    for text in row.resubmitted:
        copy = orjson.loads(text)
        decrypt_part("resubmitted", [copy], row.tenant_id)
        document["resubmitted"].append(copy)
        time.sleep(0)  # it may be large, and other requests wait for this process
    return ApplicationExport(row.tenant_id, document, row.more_ids)
