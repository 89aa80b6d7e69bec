"""What can go wrong with the state store and the blob store."""

from __future__ import annotations


class DescribedError(Exception):
    """An error whose message is its docstring, unless it is given one."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class StateStoreError(DescribedError):
    """The state store could not do what was asked."""


class StateStoreUnavailable(StateStoreError):
    """The state store did not answer in time."""


class StatementTooSlow(StateStoreUnavailable):
    """The state store is there, but a statement took too long: it waits for a lock."""


class BlobError(DescribedError):
    """The blob store is away, or refuses."""


class BlobMissing(BlobError):
    """There is no such blob."""
