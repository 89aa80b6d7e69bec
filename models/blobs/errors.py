"""What can go wrong with the blob store."""

from __future__ import annotations


class BlobError(Exception):
    """The blob store is away, or refuses."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BlobMissing(BlobError):
    """There is no such blob."""
