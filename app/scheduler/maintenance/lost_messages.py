"""Finds dispatched jobs whose message was lost, long before their lease expires.

While the queue of a pool of gevent workers is empty, every message has reached a worker, which
claims at once. Prefork workers fetch messages ahead of their free slots, so their jobs wait for the
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

logger = logging.getLogger(__name__)

#: What the policy counts in.
FIND_SECONDS = 1.0


class LostMessages(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, counts: QueueCounts) -> None:
        super().__init__(engine, leader)
        self._counts = counts
        #: By queue.
        self._waits: dict[str, float] = {}

    def run_once(self, now: float) -> int:
        """Expire leases, for the reaper; how many."""
        claiming = [pool.name for pool in POOLS.values() if pool.concurrency == "gevent"]
        found = self._read(FIND_UNCLAIMED, pools=claiming, seconds=LEAST_SECONDS)
        queues = {slice_queue(row.pool, row.slice): row for row in found}
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
        expired = self._write(EXPIRE_UNCLAIMED, pool=pool, slice=slice_name, seconds=seconds)
        if expired:
            self._waits[name] = next_wait(wait, lost=True)
            logger.warning("%d messages of the queue %s are lost", expired, name)
        return expired
