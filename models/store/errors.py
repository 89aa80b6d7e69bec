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


#: PostgreSQL's code for a write on a server that only reads.
READ_ONLY = "25006"
#: … and how those begin of one that shuts down, crashed or does not take connections yet.
SHUTDOWN = "57P"


def server_is_lost(code: str | None) -> bool:
    """Whether an error says that the connection is of no use: another server may be, or a new one.

    A primary that was replaced keeps its connections and refuses every write on them.
    """
    return code is not None and (code == READ_ONLY or code.startswith(SHUTDOWN))


class BlobError(DescribedError):
    """The blob store is away, or refuses."""


class BlobMissing(BlobError):
    """There is no such blob."""
