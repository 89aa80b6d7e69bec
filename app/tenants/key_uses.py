"""When keys were last used: collected in memory, written in the background once a minute.

A request only adds its key to a set. What is written is at most a minute behind, and a process
that dies takes the last minute with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from sqlalchemy import Engine

from models.store.session import execute

#: A key's time is not written again before.
WRITE_SECONDS = 60.0

#: Of several processes one writes; a row that somebody else changes is left for the next turn.
WRITE_USES = f"""
    UPDATE api_keys AS key SET last_used_at = now()
    FROM (SELECT id FROM api_keys
          WHERE id = ANY (%(ids)s::text[])
                AND (last_used_at IS NULL
                     OR last_used_at <= now() - interval '{WRITE_SECONDS:g} seconds')
          ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS used
    WHERE key.id = used.id
"""


class KeyUses:
    """The keys that this process has seen in use."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        #: Short parts of keys used since they were written last.
        self.used: set[str] = set()
        #: When each may be written again.
        self._next: dict[str, float] = {}

    def write(self) -> None:
        """Write the time of the keys that were used, those of the last minute later."""
        now = self._clock()
        # A copy: requests go on adding to it.
        due = [key for key in tuple(self.used) if now >= self._next.get(key, -math.inf)]
        if not due:
            return
        execute(self._engine, WRITE_USES, {"ids": due})
        self.used.difference_update(due)
        self._next.update(dict.fromkeys(due, now + WRITE_SECONDS))
