"""The blob store: what is too large for a row lives here, under a key that the row holds.

A blob is written before the row that names it and deleted after it, so a row never points at
nothing; a blob that no row names is an orphan, found by ``list`` and its age. The store does not
read rows: the collector of orphans asks ``job_of`` and the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from models.blobs.keys import checkpoint_key, job_of, payload_key
from models.blobs.url import open_blobs
from models.store.errors import BlobError, BlobMissing

__all__ = [
    "INLINE_BYTES",
    "BlobError",
    "BlobMissing",
    "BlobStore",
    "checkpoint_key",
    "job_of",
    "open_blobs",
    "payload_key",
]

#: What is larger goes to the store.
INLINE_BYTES = 65_536


class BlobStore(Protocol):
    """A place for bytes by key. Every method may raise ``BlobError``."""

    def put(self, key: str, data: bytes) -> None:
        """Store a blob; it is durable on return. Overwriting the same key is fine."""

    def get(self, key: str) -> bytes:
        """The blob, whole, or ``BlobMissing``."""

    def delete(self, key: str) -> None:
        """Remove a blob; an absent one is fine."""

    def list(self, older_than_seconds: float) -> Iterator[str]:
        """Keys at least that old by the store's own clock, lazily, in bounded memory."""
