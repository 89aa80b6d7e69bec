"""Presence: every process says that it lives, what it carries, and how its pool is doing."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from models.session import connection, pool_stats

#: A process says so this often …
PRESENCE_SECONDS = 2.0
#: … and counts as gone when it has been silent this long.
PRESENCE_LOST_SECONDS = 10.0

ANNOUNCE = """
    INSERT INTO processes (name, kind, pools, slots, busy, draining,
                           db_size, db_in_use, db_waiters)
    VALUES (%(name)s, %(kind)s, %(pools)s::text[], %(slots)s, %(busy)s, %(draining)s,
            %(size)s, %(in_use)s, %(waiters)s)
    ON CONFLICT (name) DO UPDATE
    SET pools = excluded.pools, slots = excluded.slots, busy = excluded.busy,
        draining = excluded.draining, db_size = excluded.db_size,
        db_in_use = excluded.db_in_use, db_waiters = excluded.db_waiters, heartbeat_at = now()
"""
LEAVE = "DELETE FROM processes WHERE name = %(name)s"
FORGET_LOST = "DELETE FROM processes WHERE heartbeat_at < now() - interval '5 minutes'"


@dataclass(frozen=True, slots=True)
class Presence:
    """What a process says of itself."""

    name: str
    kind: str
    pools: Sequence[str] = ()
    slots: int = 0
    busy: int = 0
    draining: bool = False


def process_name(kind: str) -> str:
    """A name that no other living process has; containers need host names of their own."""
    return f"{kind}@{socket.gethostname()}:{os.getpid()}"


def announce(engine: Engine, presence: Presence) -> None:
    """Say that the process lives."""
    stats = pool_stats(engine, "presence")
    with connection(engine) as taken:
        taken.exec_driver_sql(
            ANNOUNCE,
            {
                "name": presence.name,
                "kind": presence.kind,
                "pools": list(presence.pools),
                "slots": presence.slots,
                "busy": presence.busy,
                "draining": presence.draining,
                "size": stats.size,
                "in_use": stats.in_use,
                "waiters": stats.waiters,
            },
        )


def leave(engine: Engine, name: str) -> None:
    """Say good-bye, so that nobody waits for the process to be missed."""
    with connection(engine) as taken:
        taken.exec_driver_sql(LEAVE, {"name": name})
