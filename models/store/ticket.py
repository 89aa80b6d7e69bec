"""A ticket of a group commit: an item, and its result once its group is written."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from models.store.errors import StateStoreUnavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


class Ticket(Generic[Item, Result]):
    """An item of a group, and its result once it is written or refused.

    A plain lock, held until then: it costs less than an event, and there is one waiter.
    """

    __slots__ = ("_pending", "abandoned", "error", "item", "value", "weight")

    def __init__(self, item: Item, weight: int) -> None:
        self.item = item
        self.weight = weight
        #: The caller no longer waits; skip the item if it has not been written yet.
        self.abandoned = False
        self._pending = threading.Lock()
        self._pending.acquire()
        self.value: Result | None = None
        self.error: BaseException | None = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the result; whether it is there."""
        if not self._pending.acquire(timeout=-1 if timeout is None else timeout):
            return False
        self._pending.release()
        return True

    def result(self, timeout: float | None = None) -> Result:
        """The item's own result, once its group is committed."""
        if not self.wait(timeout):
            self.abandoned = True
            raise StateStoreUnavailable
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # set whenever no error is

    @property
    def done(self) -> bool:
        """Whether the item was written or refused."""
        return not self._pending.locked()

    def finish(self) -> None:
        """Let the caller go on."""
        self._pending.release()
