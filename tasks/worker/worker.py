"""The runtime of a worker process: its slots, its ledger and its heartbeat.

Two connections at any concurrency: one for claims, one for everything else. They are shared while a
table of a projection is locked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from random import Random

from sqlalchemy import Engine

from models.blobs import BlobStore, open_blobs
from models.presence import leave
from models.store.errors import StateStoreError
from models.tenant_tallies import RunTallies
from tasks.registry import JobType
from tasks.worker.heartbeat import Heartbeat
from tasks.worker.ledger import Ledger
from tasks.worker.prepare import PreparedTypes
from tasks.worker.quotas import QuotaTracker
from tasks.worker.slots import Host, Slots

logger = logging.getLogger(__name__)


class Worker:
    def __init__(
        self,
        engine: Engine,
        types: Mapping[str, JobType],
        *,
        name: str,
        pools: Sequence[str],
        slots: int,
        blobs: BlobStore | None = None,
        prepared: PreparedTypes | None = None,
        host: Host | None = None,
    ) -> None:
        host = host or Host()
        self.name = name
        self.types = types
        self.engine = engine
        self.blobs = blobs or open_blobs(".run/blobs")
        self.prepared = prepared or PreparedTypes()
        self.chance = Random()
        self.tallies = RunTallies()
        self.quotas = QuotaTracker({one.dependency for one in types.values() if one.dependency})
        self.slots = Slots(engine, types, name=name, count=slots, host=host)
        self.heartbeat = Heartbeat(engine, self.slots, self.tallies, self.quotas, pools, host)
        self.ledger = Ledger(engine, types, self.slots, self.heartbeat, self.tallies, self.quotas)

    def start(self) -> None:
        self.heartbeat.start(self.ledger)

    def stop(self, timeout: float = 10.0) -> None:
        """Write everything that is pending and remove the presence."""
        self.slots.drain()
        self.heartbeat.stop()
        written = self.ledger.close(timeout)
        if not written:
            logger.error("the last results could not be written; their runs are lost")
        try:
            self.tallies.write(self.engine)
            self.quotas.write(self.engine, time.monotonic())
            if written:  # otherwise the reaper finds the runs when the process is silent
                leave(self.engine, self.name)
        except StateStoreError as error:
            logger.warning("could not write the last counts and remove the presence: %s", error)
