"""Names of blobs. A key contains its kind and its job, so that the collector can look at the row;
the mark of a cell contains its number.

The two hex digits are the random end of the id: they spread a kind over 256 folders. The front
of an id is a time and would fill one folder after the other.
"""

from __future__ import annotations

import re
from secrets import token_hex
from typing import NamedTuple

from models.jobs.ids import parse_id
from models.store.errors import BlobError

#: The longest key. A part of it is a file name, which may have 255 bytes.
KEY_CHARACTERS = 200

_PART = r"[a-z0-9][a-z0-9._-]*"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{10}([0-9a-f]{2})"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_PAYLOAD = re.compile(rf"payloads/([0-9a-f]{{2}})/({_ID})")
#: The previous version wrote no random part.
_CHECKPOINT = re.compile(
    rf"checkpoints/([0-9a-f]{{2}})/({_ID})\.{_NUMBER}\.{_NUMBER}(?:\.[0-9a-f]+)?"
)
#: The folder of what says which cells use the store.
CELLS = "cells"
_CELL = re.compile(rf"{CELLS}/([1-9][0-9]*)")


class BlobEntry(NamedTuple):
    """A blob as a store lists it."""

    key: str
    bytes: int
    #: By the store's own clock.
    age_seconds: float


def payload_key(job_id: str) -> str:
    """Where the payload of a job lives."""
    job_id = _canonical(job_id)
    return f"payloads/{job_id[-2:]}/{job_id}"


def checkpoint_key(job_id: str, lease: int, number: int) -> str:
    """Where a run's checkpoint is to live. Each has its own key: the row decides which one counts.

    With a random part: after lost commits two workers have the same lease number.
    """
    if lease < 0 or number < 0:
        raise ValueError(f"no lease and checkpoint: {lease}, {number}")
    job_id = _canonical(job_id)
    return f"checkpoints/{job_id[-2:]}/{job_id}.{lease}.{number}.{token_hex(4)}"


def job_of(key: str) -> str | None:
    """The id of the job that a key belongs to, None if the key is not one of ours."""
    found = _PAYLOAD.fullmatch(key) or _CHECKPOINT.fullmatch(key)
    if found is None:
        return None
    folder, job_id, end = found.groups()
    return job_id if folder == end else None


def cell_key(number: int) -> str:
    """An empty blob that says: the cell with this number uses the store."""
    return f"{CELLS}/{number}"


def cell_of(key: str) -> int | None:
    """The number of the cell that a key says uses the store, None if it is no such key."""
    found = _CELL.fullmatch(key)
    return None if found is None else int(found[1])


def is_key(text: str) -> bool:
    """Whether a store takes this name: relative, no ``..``, no hidden file, one alphabet."""
    return len(text) <= KEY_CHARACTERS and ".." not in text and _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key, if it is one."""
    if not is_key(key):
        raise BlobError(f"not a key of a blob: {key[:KEY_CHARACTERS]!r}")
    return key


def _canonical(job_id: str) -> str:
    canonical = parse_id(job_id)
    if canonical is None:
        raise ValueError(f"not the id of a job: {job_id!r}")
    return canonical
