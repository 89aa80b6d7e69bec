"""Deletes blobs whose rows are gone, without waiting long for a store that does not answer.

Other roles share the thread, and each call to a distant store may take half a minute to fail. What
is left is found by the collector, or by whoever noted it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from models.blobs import BlobStore
from models.store.errors import BlobError

logger = logging.getLogger(__name__)

#: Deletes of one turn take so long at most.
TURN_SECONDS = 10.0
#: A failure that took longer says that the store does not answer: it is not asked for so long.
SLOW_SECONDS = 1.0
REST_SECONDS = 120.0


class BlobDeletes:
    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._rests_until = 0.0

    def delete(self, keys: Iterable[str]) -> list[str]:
        """Delete blobs, as long as that does not take too long; which were deleted.

        One that cannot be deleted is passed over.
        """
        began, deleted, failure = time.monotonic(), [], None
        for key in keys:
            now = time.monotonic()
            if now < self._rests_until or now - began > TURN_SECONDS:
                break
            try:
                self._blobs.delete(key)
                deleted.append(key)
            except BlobError as error:
                failure = error
                if time.monotonic() - now > SLOW_SECONDS:
                    self._rests_until = time.monotonic() + REST_SECONDS
        if failure is not None:
            logger.warning("blobs are left for now: %s", failure)
        return deleted
