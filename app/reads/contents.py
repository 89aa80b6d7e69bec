"""Content of jobs as readers get it: decrypted where it was stored encrypted.

A text that cannot be decrypted is shown as the reason in brackets, so that one row does not spoil a
list. For a document there is no such stand-in: the caller decides.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from app.reads.times import rfc3339
from models.encryption.key_ring import PREFIX, ContentKind, DecryptionError, Place, is_encrypted
from models.encryption.values import decrypt_json, decrypt_text

ERROR = ContentKind.ERROR


def readable_text(stored: str | None, place: Place) -> str | None:
    """The text, or why it cannot be read."""
    if stored is None:
        return None
    try:
        return decrypt_text(stored, place)
    except DecryptionError as error:
        return f"[{error}]"


def readable_error(stored: str | None, tenant_id: int, job_id: str) -> str | None:
    """The error message of a job or of one of its attempts."""
    # First: most jobs have none.
    return None if stored is None else readable_text(stored, Place(tenant_id, job_id, ERROR))


def readable_result(stored: str | None, tenant_id: int, job_id: str) -> str | None:
    """The result of a job, or the record of its application, as JSON text.

    DecryptionError if it cannot be read.
    """
    if stored is None or not is_encrypted(stored):
        return stored
    return decrypt_json(stored, Place(tenant_id, job_id, ContentKind.RESULT))


def readable_rationale(
    stored: str | None, record: str | None, tenant_id: int, application_id: str
) -> str | None:
    """Why an application has its score: stored by itself, or in the record if that is encrypted."""
    if stored is not None or record is None:
        return readable_text(stored, Place(tenant_id, application_id, ContentKind.RATIONALE))
    try:
        score = orjson.loads(readable_result(record, tenant_id, application_id) or "null")
    except DecryptionError as error:
        return f"[{error}]"
    return score.get("rationale") if isinstance(score, dict) else None


def readable_log(
    stored: str | None, tenant_id: int, job_id: str, written_at: datetime
) -> list[dict[str, Any]]:
    """The lines that a run logged; without them, one that says why they cannot be read."""
    if stored is None:
        return []
    try:
        text = decrypt_json(stored, Place(tenant_id, job_id, ContentKind.LOG))
    except DecryptionError as error:
        return [{"at": rfc3339(written_at), "level": "error", "message": f"[{error}]"}]
    lines: list[dict[str, Any]] = orjson.loads(text)
    return lines


def readable_traceback(stored: str | None, tenant_id: int, job_id: str) -> str | None:
    return readable_text(stored, Place(tenant_id, job_id, ContentKind.TRACEBACK))


def readable_detail(kind: str, detail: str, tenant_id: int, job_id: str | None) -> str:
    """What an event tells, as JSON text: a replayed job's error, or why a tick was skipped."""
    if PREFIX not in detail:
        return detail
    document = orjson.loads(detail)
    if kind == "job_replayed" and job_id is not None and document.get("error"):
        error = document["error"]
        error["message"] = readable_error(error["message"], tenant_id, job_id)
    if "schedule" in document and isinstance(document.get("reason"), str):
        place = Place(tenant_id, document["schedule"], ContentKind.REASON)
        document["reason"] = readable_text(document["reason"], place)
    return orjson.dumps(document).decode()
