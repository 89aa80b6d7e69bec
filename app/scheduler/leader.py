"""Leader: one scheduler acts, the others wait.

The lease is a row. It is renewed every two seconds and lost after six, by the database's
clock; a change of holder raises the epoch. Every statement of a role carries the epoch
(``STILL_LEADER``), so a leader that was frozen and wakes up writes nothing.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from models.session import connection

logger = logging.getLogger(__name__)

LEASE_SECONDS = 6
RENEW_SECONDS = 2.0

#: Condition for every statement of the scheduler; takes the parameter ``epoch``.
STILL_LEADER = """EXISTS (
            SELECT 1 FROM leaders
            WHERE role = 'scheduler' AND epoch = %(epoch)s AND expires_at > now())"""

#: A fresh lease, our own renewed, or one that ran out taken over. Nothing if another holds it.
LEAD = f"""
    INSERT INTO leaders AS leader (role, holder, epoch, expires_at)
    VALUES ('scheduler', %(holder)s, 1, now() + interval '{LEASE_SECONDS} seconds')
    ON CONFLICT (role) DO UPDATE
    SET epoch = leader.epoch + CASE WHEN leader.holder = excluded.holder
                                     AND leader.expires_at > now() THEN 0 ELSE 1 END,
        holder = excluded.holder,
        expires_at = excluded.expires_at,
        broker_seen_at = CASE WHEN %(broker_seen)s THEN now() ELSE leader.broker_seen_at END
    WHERE leader.holder = excluded.holder OR leader.expires_at < now()
    RETURNING epoch
"""
RESIGN = """
    UPDATE leaders SET expires_at = now()
    WHERE role = 'scheduler' AND holder = %(holder)s AND epoch = %(epoch)s
"""


class Leader:
    """This process's claim to be the scheduler."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        #: Epoch of our lease, or None while another leads.
        self.epoch: int | None = None
        #: Set by whoever reached the broker since the last renewal.
        self.broker_seen = False

    def run_once(self, now: float) -> int:
        """Take or renew the lease."""
        with connection(self._engine) as taken:
            row = taken.exec_driver_sql(
                LEAD, {"holder": self._name, "broker_seen": self.broker_seen}
            ).first()
        epoch = row[0] if row else None
        self.broker_seen = False
        if epoch != self.epoch:
            logger.info("%s", f"leading, epoch {epoch}" if epoch else "standing by")
        self.epoch = epoch
        return 0

    def resign(self) -> None:
        """Let the next one take over at once."""
        if self.epoch is not None:
            with connection(self._engine) as taken:
                taken.exec_driver_sql(RESIGN, {"holder": self._name, "epoch": self.epoch})
            self.epoch = None
