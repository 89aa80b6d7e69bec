"""Presence: every process reports that it is alive, its slots and its connection pool.

In return it learns whether it was asked to drain, and the database's clock. The request is in the
row before anything acts on it: a process that dies in between has ended anyway, and the next one
has another name.

``renewed_at``: at this time the worker had renewed every lease that was due. A run whose lease
ended before it, and whose worker is alive, is therefore no longer held by that worker; otherwise
the worker could not renew it yet. A worker that is new holds none.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import NamedTuple

from sqlalchemy import Engine

from models.audit import Act, record, recording
from models.store.clock import CLOCK_SQL, DATABASE_CLOCK
from models.store.errors import StatementTooSlow
from models.store.prepared import SHORT_LOCK_WAIT, PreparedStatement
from models.store.session import execute, fetch, pool_stats
from models.tallies import TallyKind, count_rows

#: A process reports this often …
PRESENCE_SECONDS = 2.0
#: … and counts as lost after three missed reports.
PRESENCE_LOST_SECONDS = 3 * PRESENCE_SECONDS
#: Condition on a row of ``processes``: the process is alive.
ALIVE = f"heartbeat_at > now() - interval '{PRESENCE_LOST_SECONDS:g} seconds'"
#: … and it is a worker that takes jobs.
SERVING = f"kind = 'worker' AND NOT draining AND {ALIVE}"
#: Condition on a row of a running ``job``: its worker is lost, and the reaper about to find it.
WORKER_LOST = f"""(job.status = 'running' AND EXISTS (
        SELECT FROM processes WHERE processes.name = job.worker AND NOT ({ALIVE})))"""
#: Workers learn of a change (a circuit, a quota) with their next report, this much later.
NEWS_SECONDS = PRESENCE_SECONDS + 0.5

#: Set by gunicorn for the processes that it forks: see gunicorn.conf.py.
INSTANCE = "FAIRLINE_INSTANCE"

#: Somebody's lock on the row or the table is not waited for: the leases are to be renewed.
ANNOUNCE = f"""
    INSERT INTO processes (name, kind, pools, slots, busy, draining,
                           db_size, db_in_use, db_waiters, parent, node, renewed_at)
    VALUES (%(name)s, %(kind)s, %(pools)s::text[], %(slots)s, %(busy)s, %(draining)s,
            %(size)s, %(in_use)s, %(waiters)s, %(parent)s, %(node)s,
            CASE %(kind)s::text WHEN 'worker' THEN coalesce(%(renewed_at)s, now()) END)
    ON CONFLICT (name) DO UPDATE
    SET pools = excluded.pools, slots = excluded.slots, busy = excluded.busy,
        draining = excluded.draining, db_size = excluded.db_size,
        db_in_use = excluded.db_in_use, db_waiters = excluded.db_waiters, heartbeat_at = now(),
        renewed_at = coalesce(%(renewed_at)s, processes.renewed_at)
    RETURNING drain_requested_at IS NOT NULL AS drain, now() AS at,
              {CLOCK_SQL} AS clock
"""
PREPARED = PreparedStatement("announce", ANNOUNCE, settings=SHORT_LOCK_WAIT)
#: Those of the given processes whose row nobody has locked; locked by us from here on.
UNLOCKED_PROCESSES = """
    SELECT name FROM processes WHERE name = ANY (%(names)s::text[]) FOR NO KEY UPDATE SKIP LOCKED
"""
#: … and who can report: nobody, while somebody holds a lock on the table that keeps out writes.
ABLE_TO_REPORT = f"""
    SELECT name FROM ({UNLOCKED_PROCESSES}) AS unlocked
    WHERE NOT EXISTS (
        SELECT FROM pg_locks WHERE granted AND locktype = 'relation'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND relation = 'processes'::regclass
          AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
"""
#: In place of a heartbeat that is held up: all that is known is that the process is alive.
#: Rows that somebody has locked are skipped.
KEEP_PRESENT = f"""
    UPDATE processes SET heartbeat_at = now() WHERE name IN ({UNLOCKED_PROCESSES}) RETURNING name
"""
#: When each process was last heard, and when it had renewed its leases.
READ_HEARD = """
    SELECT name, coalesce(parent, name) AS worker, heartbeat_at, renewed_at FROM processes
"""
#: A worker is named by the process that stops as a whole: forked ones by their parent.
REQUEST_DRAIN = f"""
    UPDATE processes SET drain_requested_at = now()
    WHERE coalesce(parent, name) = %(worker)s AND drain_requested_at IS NULL AND {SERVING}
    RETURNING name
"""
#: Names of the processes that a worker has forked.
FORKED = "SELECT name FROM processes WHERE parent = %(parent)s"
LEAVE = "DELETE FROM processes WHERE name = %(name)s"
#: A process that is silent is lost after some seconds, one that has left when its leases expire.
LEAVE_WITHOUT_RUNS = f"""{LEAVE} AND NOT EXISTS (
        SELECT FROM jobs WHERE worker = %(name)s AND status = 'running')"""
#: Workers that were lost count as recycled, in the first of their pools (``joined``).
LOST_NAME = "split_part(coalesce(pools[1], '?'), '.', 1) || ':lost'"
#: Processes that have been silent for long.
FORGET = f"""
    WITH lost AS (
        DELETE FROM processes WHERE name IN ({UNLOCKED_PROCESSES}) AND NOT ({ALIVE})
        RETURNING kind, pools
    )
    {count_rows(TallyKind.RECYCLED, LOST_NAME, "lost WHERE kind = 'worker'")}
"""


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
    #: Celery's name of the worker; of an API process, its instance.
    node: str = ""
    #: See ``models.presence``.
    renewed_at: datetime | None = None


class Announced(NamedTuple):
    """The answer to a report."""

    #: Whether the process was asked to drain.
    drain: bool
    #: When the report was written, by the database's clock.
    at: datetime


@cache
def _random_part() -> str:
    """What tells this process from one with the same host name and pid, then or now."""
    return secrets.token_hex(3)


os.register_at_fork(after_in_child=_random_part.cache_clear)


def process_name(kind: str) -> str:
    """``kind@host:random:pid``; of a Celery worker, whose node name has its host,
    ``node:random:pid``.

    No other process has it, whatever its host and pid: leases and leadership are compared by it.
    """
    node = kind if "@" in kind else f"{kind}@{socket.gethostname()}"
    return f"{node}:{_random_part()}:{os.getpid()}"


def instance_name(kind: str) -> str:
    """What the processes behind one port have in common; of one that was not forked, its name."""
    return os.environ.get(INSTANCE) or process_name(kind)


#: The random part is missing in names that the previous version gave.
_NAMED = re.compile(r"(.+?)(?::[0-9a-f]{6})?:(\d+)")


def parse_process(name: str) -> tuple[str, str]:
    """Node and pid of a process's name; whatever is no such name is a node without a pid."""
    found = _NAMED.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def announce(engine: Engine, presence: Presence) -> Announced | None:
    """Report that the process is alive; None if that was not written because of a lock."""
    stats = asdict(pool_stats(engine, "presence"))
    parameters = {**stats, **asdict(presence), "pools": list(presence.pools)}
    sent = DATABASE_CLOCK.local_ns()
    try:
        [row] = fetch(engine, PREPARED, parameters)
    except StatementTooSlow:
        return None
    DATABASE_CLOCK.learn(sent, row.clock, DATABASE_CLOCK.local_ns())
    return Announced(row.drain, row.at)


def request_drain(engine: Engine, worker: str) -> int:
    """Ask a worker to end once its jobs have; how many processes are asked."""
    with recording(engine) as connection:
        asked = len(connection.exec_driver_sql(REQUEST_DRAIN, {"worker": worker}).all())
        if asked:
            record(connection, Act.WORKER_DRAIN, worker)
    return asked


def leave(engine: Engine, name: str) -> None:
    """Remove the process, so that it is not taken for lost later."""
    execute(engine, LEAVE, {"name": name})
