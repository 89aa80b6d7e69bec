"""Where new jobs go: into the pool in which their type was measured to belong.

Read at most once a second, by the request that finds the last look too old; the others go on
with what is known, and so does this one if the state store takes its time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence

from sqlalchemy import Engine

from app.admission import Submission
from app.admission.moved_types import Moved, placed, read_moved
from models.pools import POOLS
from models.store.errors import StateStoreError
from models.store.session import connect

logger = logging.getLogger(__name__)

#: A look is good for this long.
LOOK_SECONDS = 1.0
#: How long a request waits for one.
WAIT_SECONDS = 0.25


class PoolsOfTypes:
    """The types that moved, as of a second ago."""

    def __init__(self, engine: Engine, served_pools: Collection[str]) -> None:
        self._engine = engine
        self._served = {name for name in served_pools if name in POOLS}
        self._moved: Moved = {}
        self._due = 0.0
        self._looking = threading.Lock()

    def place(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """The submissions, those of moved types in their new pool."""
        if time.monotonic() >= self._due:
            self._refresh()
        return placed(submissions, self._moved)

    def _refresh(self) -> None:
        if not self._looking.acquire(blocking=False):
            return  # somebody is at it
        self._due = time.monotonic() + LOOK_SECONDS
        # Beside the request: a store that hangs has to be waited for only once, at admission.
        look = threading.Thread(target=self._look, name="pools of types", daemon=True)
        look.start()
        look.join(WAIT_SECONDS)

    def _look(self) -> None:
        try:
            with connect(self._engine) as connection:
                self._moved = read_moved(connection, self._served)
        except StateStoreError as error:
            logger.debug("types stay where they are: %s", error)
        finally:
            self._looking.release()
