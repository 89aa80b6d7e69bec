"""What is in a blob store."""

from __future__ import annotations

from collections.abc import Iterator

from models.blobs import BlobStore


def keys_in(store: BlobStore, age_seconds: float = -1.0) -> Iterator[str]:
    """Keys of blobs that are at least so old."""
    return (one.key for one in store.entries() if one.age_seconds >= age_seconds)
