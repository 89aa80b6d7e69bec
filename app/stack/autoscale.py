"""``python -m app.stack.autoscale``: passes the autoscaler's decisions to the supervisor.

A separate process, so that a database that is down or frozen stops this one, never the
supervisor. Tenants with reserved slots get a dedicated worker per pool. Decisions from before it
started are ignored: they may be of a stack that was stopped since.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Any

from sqlalchemy import Engine

from app.stack.control import NotRunning, ask
from app.stack.home import Home
from app.stack.options import MOST_SLOTS, read_options
from models.pools import POOLS, reserved, slice_queue
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
