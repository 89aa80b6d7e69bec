"""``python -m app.stack.autoscale``: passes the autoscaler's decisions to the supervisor.

A separate process, so that a database that is down or frozen stops this one, never the
supervisor. Tenants with reserved slots get a dedicated worker per pool. Decisions from before it
started are ignored: they may be of a stack that was stopped since.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from app.stack.control import NotRunning, ask
from app.stack.home import Home
from app.stack.options import MOST_SLOTS, StackOptions, read_options
from app.stack.programs import worker
from app.stack.supervisor import Supervisor
from models.pools import POOLS, is_job_queue, reserved, slice_queue
from models.presence import process_name
from models.settings import DatabaseSettings
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import connect, open_engine

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0

READ_NOW = "SELECT now()"
READ_DESIRED = "SELECT pool, workers, reason FROM desired_workers WHERE updated_at > %(since)s"
READ_RESERVED = """
    SELECT limits.pool, tenant.name AS tenant, limits.reserved AS slots
    FROM tenant_limits AS limits JOIN tenants AS tenant ON tenant.id = limits.tenant_id
    WHERE limits.reserved IS NOT NULL AND tenant.tier = 'enterprise'
"""


def read_now(engine: Engine) -> datetime:
    """The database's time, by which decisions are dated."""
    with connect(engine) as connection:
        now: datetime = connection.exec_driver_sql(READ_NOW).scalar_one()
    return now


def read_wanted(engine: Engine, since: datetime) -> dict[str, Any]:
    """Workers by pool, and slots by slice, as a request to the supervisor."""
    with connect(engine) as connection:
        desired = connection.exec_driver_sql(READ_DESIRED, {"since": since}).all()
        slices = {
            slice_queue(row.pool, reserved(row.tenant)): min(row.slots, MOST_SLOTS)
            for row in connection.exec_driver_sql(READ_RESERVED)
            if row.pool in POOLS
        }
    return {
        "command": "follow",
        "workers": {row.pool: row.workers for row in desired},
        "reasons": {row.pool: row.reason for row in desired},
        "slices": slices,
    }


class Follower:
    """In the supervisor: makes the running workers match what the autoscaler wants.

    Slices that were named in ``SLICES`` stay as they are; those of tenants with reserved slots
    come, change and go with the reservation.
    """

    def __init__(self, supervisor: Supervisor, options: StackOptions, home: Home) -> None:
        self._supervisor = supervisor
        self._options = options
        self._home = home
        #: Slots by queue, of the slices that were started here.
        self._slices: dict[str, int] = {}

    def follow(
        self, workers: Mapping[str, int], slices: Mapping[str, int], reasons: Mapping[str, str]
    ) -> None:
        """Change what differs; workers that have to go finish their jobs first."""
        for pool, count in workers.items():
            name = f"worker-{pool}"
            if pool in self._options.workers and name in self._supervisor.programs:
                self._scale(name, count, reasons[pool])
        wanted = {
            queue: slots
            for queue, slots in slices.items()
            if queue not in self._options.slices and is_job_queue(queue)
        }
        for queue, slots in list(self._slices.items()):
            if wanted.get(queue) != slots:
                self._supervisor.drop(f"worker-{queue}")
                del self._slices[queue]
                if queue not in wanted:
                    self._supervisor.report(f"worker-{queue}: no longer reserved")
        for queue, slots in wanted.items():
            if queue not in self._slices:
                self._supervisor.add(worker(queue, slots, self._options, self._home))
                self._supervisor.report(f"worker-{queue}: {slots} slots")
                self._slices[queue] = slots

    def _scale(self, name: str, count: int, reason: str) -> None:
        before = self._supervisor.count(name)
        if before != count:
            self._supervisor.scale(name, count)
            self._supervisor.report(f"{name}: {count} instead of {before}: {reason}")


def main() -> None:
    """Run until killed; log each change between trouble and none."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    home = Home(read_options().home)
    engine = open_engine(
        DatabaseSettings(), process=process_name("autoscale"), role=DatabaseRole.API
    )
    logged = ""
    since = None
    while True:
        try:
            since = since or read_now(engine)
            error = ask(home, read_wanted(engine, since)).get("error", "")
        except (StateStoreError, NotRunning) as raised:
            error = str(raised)
        if error != logged:
            logger.info("%s", error or "recovered")
            logged = error
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
