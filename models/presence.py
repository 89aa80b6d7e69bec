"""Presence: every process reports that it is alive, its slots and its connection pool.

In return it learns whether it was asked to drain. The request is in the row before anything acts
on it: a process that dies in between has ended anyway, and the next one has another name.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Engine

from models.store.session import execute, fetch, pool_stats

#: A process reports this often …
PRESENCE_SECONDS = 2.0
#: … and counts as gone when it has been silent this long.
PRESENCE_LOST_SECONDS = 10.0
#: Condition on a row of ``processes``: the process is alive.
ALIVE = f"heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds'"
#: … and it is a worker that takes jobs.
SERVING = f"kind = 'worker' AND NOT draining AND {ALIVE}"
#: Signal to a worker that is one too many, before SIGTERM: it may take its time. What it runs ends
#: there instead of going on elsewhere from its next checkpoint.
RETIRE = signal.SIGUSR2
#: Workers learn of a change (a circuit, a quota) with their next report, this much later.
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
    RETURNING drain_requested_at IS NOT NULL AS drain
"""
#: A worker is named by the process that stops as a whole: forked ones by their parent.
REQUEST_DRAIN = f"""
    UPDATE processes SET drain_requested_at = now()
    WHERE coalesce(parent, name) = %(worker)s AND drain_requested_at IS NULL AND {SERVING}
    RETURNING name
"""
LEAVE = "DELETE FROM processes WHERE name = %(name)s"
FORGET_LOST = "DELETE FROM processes WHERE heartbeat_at < now() - interval '5 minutes'"


@dataclass(frozen=True, slots=True)
class Presence:
    """What a process reports."""

    name: str
    kind: str
    pools: Sequence[str] = ()
    slots: int = 0
    busy: int = 0
    draining: bool = False
    #: Name of the process that forked it, if it was forked.
    parent: str | None = None
    #: Celery's name of the worker.
    node: str = ""


def process_name(kind: str) -> str:
    """``kind@host:pid``; of a Celery worker, whose node name has its host, ``node:pid``.

    No other living process has it, provided that containers have different host names.
    """
    node = kind if "@" in kind else f"{kind}@{socket.gethostname()}"
    return f"{node}:{os.getpid()}"


def announce(engine: Engine, presence: Presence) -> bool:
    """Report that the process is alive; whether it was asked to drain."""
    stats = asdict(pool_stats(engine, "presence"))
    [row] = fetch(engine, ANNOUNCE, {**stats, **asdict(presence), "pools": list(presence.pools)})
    return bool(row.drain)


def request_drain(engine: Engine, worker: str) -> int:
    """Ask a worker to end once its jobs have; how many processes are asked."""
    return execute(engine, REQUEST_DRAIN, {"worker": worker})


def leave(engine: Engine, name: str) -> None:
    """Remove the process, so that it is not taken for lost later."""
    execute(engine, LEAVE, {"name": name})
