"""Finds dispatched jobs whose message was lost, long before their lease expires.

While the queue of a pool of gevent workers is empty, every message has reached a worker, which
claims at once. Prefork workers fetch messages ahead of their free slots: a message was lost if it
is not claimed although every one of them has a slot to spare. Otherwise its job waits for the
lease.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from app.broker.queue_counts import QueueCounts
from app.policy.lost_messages import LEAST_SECONDS, next_wait
from app.scheduler.role import RoleQueries
from models.jobs.reap import EXPIRE_UNCLAIMED, FIND_UNCLAIMED
from models.leadership import Leader
from models.pools import POOLS, slice_queue
from models.presence import PRESENCE_SECONDS, SERVING
from models.store.prepared import PreparedStatement

logger = logging.getLogger(__name__)

#: What the policy counts in.
FIND_SECONDS = 1.0
#: Queues of which every worker has a free slot, as they reported last.
READ_IDLE = f"""
    SELECT queue FROM (
        SELECT unnest(pools) AS queue, sum(slots - busy) AS free
        FROM processes WHERE {SERVING} GROUP BY unnest(pools), coalesce(parent, name)
    ) AS worker
    GROUP BY queue HAVING min(free) > 0
"""
PREPARED = PreparedStatement("find_unclaimed", FIND_UNCLAIMED)


class LostMessages(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, counts: QueueCounts) -> None:
        super().__init__(engine, leader)
        self._counts = counts
        #: By queue.
        self._waits: dict[str, float] = {}

    def run_once(self, now: float) -> int:
        """Expire leases, for the reaper; how many."""
        found = self._read(PREPARED, pools=list(POOLS), seconds=LEAST_SECONDS)
        queues = {slice_queue(row.pool, row.slice): row for row in found}
        idle = {row.queue for row in self._read(READ_IDLE)} if queues else set()
        queues = {name: row for name, row in queues.items() if claims(row.pool) or name in idle}
        self._waits = {name: next_wait(wait, lost=False) for name, wait in self._waits.items()}
        expired = 0
        for name, row in queues.items():
            empty_at = self._counts.empty_at(name)
            if empty_at is not None:
                expired += self._expire(name, row.pool, row.slice, now - empty_at)
        self._counts.ask(queues)
        return expired

    def _expire(self, name: str, pool: str, slice_name: str, since_seconds: float) -> int:
        """Those that were dispatched long before the queue was found empty."""
        wait = self._waits.get(name, LEAST_SECONDS)
        seconds = wait + max(0.0, since_seconds)
        if not claims(pool):
            seconds += PRESENCE_SECONDS  # the report of a free slot is so old
        expired = self._write(EXPIRE_UNCLAIMED, pool=pool, slice=slice_name, seconds=seconds)
        if expired:
            self._waits[name] = next_wait(wait, lost=True)
            logger.warning("%d messages of the queue %s are lost", expired, name)
        return expired


def claims(pool: str) -> bool:
    """Whether workers of the pool claim each message as it comes, whatever their slots do."""
    return POOLS[pool].concurrency == "gevent"
