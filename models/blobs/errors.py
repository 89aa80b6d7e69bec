"""What can go wrong with the blob store."""

from __future__ import annotations

from models.store.errors import DescribedError


class BlobError(DescribedError):
    """The blob store is away, or refuses."""


class BlobMissing(BlobError):
    """There is no such blob."""
