"""Leader election: one scheduler acts, the others stand by.

The lease is a row, renewed every two seconds and lost after six, by the database's clock; a change
of holder raises the epoch. Every statement of a role carries the epoch (``STILL_LEADER``), so a
leader that was frozen and wakes up writes nothing. It is raised by a random number: after a
failover that lost commits, the next leader does not get the number of one that was forgotten.

The relief, an API process that stands in after a minute without a leader, is such a row as well
(role ``relief``). A row and no advisory lock: it needs no dedicated connection, and every process
can read which one it is and whether it reaches the broker.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Engine

from models.store.prepared import PreparedStatement
from models.store.session import execute, fetch

logger = logging.getLogger(__name__)

LEASE_SECONDS = 6
#: A lease that ends later than this was given before the database's clock was set back.
VOID_SECONDS = 120
#: The leader reaches the broker at least every two seconds; after so long that one is away.
BROKER_SECONDS = 8
RENEW_SECONDS = 2.0

#: Conditions on a row of ``leaders``: a scheduler leads, an API process is the relief.
LEADS = "role = 'scheduler' AND expires_at > now()"
RELIEVES = "role = 'relief' AND expires_at > now()"
#: Conditions for every statement of the scheduler and of the relief; take the parameter ``epoch``.
STILL_LEADER = f"EXISTS (SELECT 1 FROM leaders WHERE {LEADS} AND epoch = %(epoch)s::bigint)"
STILL_RELIEF = f"EXISTS (SELECT 1 FROM leaders WHERE {RELIEVES} AND epoch = %(epoch)s::bigint)"


#: What a change of holder adds to the epoch.
EPOCH_STEP = "1 + floor(random() * 1000000000)::bigint"


def has_ended(expires_at: str) -> str:
    """SQL condition: the time of a lease is over, or is none that could have been given."""
    return f"""({expires_at} <= now()
            OR {expires_at} > now() + interval '{VOID_SECONDS} seconds')"""


def is_recent(age_seconds: Any, most: float) -> bool:
    """Whether a sign of life is; one to come is of before the clock was set back."""
    return age_seconds is not None and -VOID_SECONDS < age_seconds < most


def take_lease(role: str, broker_seen: str, source: str = "") -> str:
    """A new lease, our own renewed, or an expired one taken over. No row if another holds it."""
    return f"""
    INSERT INTO leaders AS lease (role, holder, epoch, expires_at, broker_seen_at)
    SELECT '{role}', %(holder)s, {EPOCH_STEP}, now() + interval '{LEASE_SECONDS} seconds',
           CASE WHEN {broker_seen} THEN now() END
    {source}
    ON CONFLICT (role) DO UPDATE
    SET epoch = lease.epoch + CASE WHEN lease.holder = excluded.holder
                                    AND lease.expires_at > now() THEN 0 ELSE {EPOCH_STEP} END,
        holder = excluded.holder,
        expires_at = excluded.expires_at,
        broker_seen_at = coalesce(excluded.broker_seen_at, lease.broker_seen_at)
    WHERE lease.holder = excluded.holder OR {has_ended("lease.expires_at")}
    RETURNING epoch
"""


LEAD = take_lease("scheduler", "%(broker_seen)s::boolean")
PREPARED = PreparedStatement("lead", LEAD)
RESIGN = """
    UPDATE leaders SET expires_at = now()
    WHERE role = %(role)s AND holder = %(holder)s AND epoch = %(epoch)s
"""


class RoleLease:
    """This process's lease of a role."""

    role: str
    #: For every statement of the role, with the parameter ``epoch``: it still has the lease.
    condition: str

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        #: Epoch of our lease, or None while another process has it or none.
        self.epoch: int | None = None

    def resign(self) -> None:
        """Give the lease up, if it is ours, so that another process can take it at once."""
        if self.epoch is not None:
            lease = {"role": self.role, "holder": self._name, "epoch": self.epoch}
            execute(self._engine, RESIGN, lease)
            self.epoch = None

    def _take(self, statement: str | PreparedStatement, **parameters: object) -> int | None:
        rows = fetch(self._engine, statement, {"holder": self._name, **parameters})
        return rows[0].epoch if rows else None


class Leader(RoleLease):
    """This process's claim to be the scheduler."""

    role = "scheduler"
    condition = STILL_LEADER
    #: Set by whatever reached the broker since the last renewal.
    broker_seen = False

    def run_once(self, now: float) -> int:
        """Take or renew the lease."""
        epoch = self._take(PREPARED, broker_seen=self.broker_seen)
        self.broker_seen = False
        if epoch != self.epoch:
            logger.info("%s", f"leading, epoch {epoch}" if epoch else "standing by")
        self.epoch = epoch
        return 0


#: A scheduler that gave no sign of life for so long is replaced by a relief.
SILENT_SECONDS = 60

#: The scheduler's last sign of life: its lease was renewed, or the express lanes were.
LAST_SIGN = f"""greatest(
            leader.expires_at - interval '{LEASE_SECONDS} seconds',
            (SELECT max(granted_at) FROM express_lanes))"""
#: Condition on the scheduler's row, ``leader``: there is no leader, and has not been for long.
SILENT = f"""leader.role = 'scheduler' AND leader.expires_at <= now()
          AND {LAST_SIGN} <= now() - interval '{SILENT_SECONDS} seconds'"""

#: Whether a relief is needed: not while there is a leader or another relief.
#: Where there never was a leader, the silence begins with the first process that looks.
LOOK = f"""
    WITH noted AS (
        INSERT INTO leaders (role, holder, epoch, expires_at)
        SELECT 'scheduler', '', 0, now() - interval '1 second'
        WHERE NOT EXISTS (SELECT 1 FROM leaders WHERE role = 'scheduler')
        ON CONFLICT (role) DO NOTHING
    )
    SELECT 1 FROM leaders AS leader
    WHERE {SILENT} AND NOT EXISTS (
        SELECT 1 FROM leaders WHERE {RELIEVES} AND holder <> %(holder)s)
"""
PREPARED_LOOK = PreparedStatement("look_for_leader", LOOK)
#: The scheduler's row is locked, so that no scheduler takes over meanwhile.
TAKE = f"""
    WITH silent AS MATERIALIZED (SELECT 1 FROM leaders AS leader WHERE {SILENT} FOR SHARE)
    {take_lease("relief", "true", "FROM silent")}
"""


class ReliefLease(RoleLease):
    """This API process's claim to be the relief."""

    role = "relief"
    #: Locks the silent scheduler's row: a takeover waits for the statement, or is seen by it.
    condition = f"""EXISTS (
                SELECT 1 FROM leaders AS leader WHERE {SILENT} FOR SHARE)
              AND {STILL_RELIEF}"""

    def is_vacant(self) -> bool:
        """Whether the scheduler is silent and no other process stands in for it."""
        return bool(fetch(self._engine, PREPARED_LOOK, {"holder": self._name}))

    def take(self) -> bool:
        """Take or renew the lease. To be called right after the broker was reached."""
        self.epoch = self._take(TAKE)
        return self.epoch is not None
