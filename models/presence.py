"""Presence: every process says that it lives, what it carries, and how its pool is doing.

In return it hears whether somebody wants it drained. The request is in the row before anybody
acts on it: a process that dies in between has ended anyway, and the next one has another name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from models.store.session import connect, pool_stats

#: A process says so this often …
PRESENCE_SECONDS = 2.0
#: … and counts as gone when it has been silent this long.
PRESENCE_LOST_SECONDS = 10.0
#: Condition on a row of ``processes``: the process is alive.
ALIVE = f"heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds'"
#: Workers hear of a change (a circuit, a quota) with their next sign of life, this much later.
NEWS_SECONDS = PRESENCE_SECONDS + 0.5

ANNOUNCE = """
    INSERT INTO processes (name, kind, pools, slots, busy, draining,
                           db_size, db_in_use, db_waiters, parent, node)
    VALUES (%(name)s, %(kind)s, %(pools)s::text[], %(slots)s, %(busy)s, %(draining)s,
            %(size)s, %(in_use)s, %(waiters)s, %(parent)s, %(node)s)
    ON CONFLICT (name) DO UPDATE
    SET pools = excluded.pools, slots = excluded.slots, busy = excluded.busy,
        draining = excluded.draining, db_size = excluded.db_size,
        db_in_use = excluded.db_in_use, db_waiters = excluded.db_waiters, heartbeat_at = now()
    RETURNING drain_requested_at IS NOT NULL
"""
#: A worker is named by the process that stops as a whole: forked ones by their parent.
REQUEST_DRAIN = f"""
    UPDATE processes SET drain_requested_at = now()
    WHERE coalesce(parent, name) = %(worker)s AND kind = 'worker'
      AND drain_requested_at IS NULL AND NOT draining
      AND {ALIVE}
    RETURNING name
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
    #: Name of the process that forked it, if it was forked.
    parent: str | None = None
    #: What Celery calls the worker.
    node: str = ""


def process_name(kind: str) -> str:
    """``kind@host:pid``; of a Celery worker, whose node name has its host, ``node:pid``.

    No other living process has it, provided that containers have different host names.
    """
    node = kind if "@" in kind else f"{kind}@{socket.gethostname()}"
    return f"{node}:{os.getpid()}"


def announce(engine: Engine, presence: Presence) -> bool:
    """Say that the process lives; whether somebody wants it drained."""
    stats = pool_stats(engine, "presence")
    with connect(engine) as connection:
        drained: bool = connection.exec_driver_sql(
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
                "parent": presence.parent,
                "node": presence.node,
            },
        ).scalar_one()
    return drained


def request_drain(engine: Engine, worker: str) -> int:
    """Ask a worker to end once its jobs have; how many processes will hear of it."""
    with connect(engine) as connection:
        return connection.exec_driver_sql(REQUEST_DRAIN, {"worker": worker}).rowcount


def leave(engine: Engine, name: str) -> None:
    """Say good-bye, so that nobody waits for the process to be missed."""
    with connect(engine) as connection:
        connection.exec_driver_sql(LEAVE, {"name": name})
