"""What can go wrong with the state store."""

from __future__ import annotations


class StateStoreError(Exception):
    """The state store could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class StateStoreUnavailable(StateStoreError):
    """The state store did not answer in time."""


class StatementTooSlow(StateStoreUnavailable):
    """The state store is there, but a statement took too long: it waits for somebody's lock."""
