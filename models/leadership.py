"""Leader: one scheduler acts, the others wait.

The lease is a row. It is renewed every two seconds and lost after six, by the database's
clock; a change of holder raises the epoch. Every statement of a role carries the epoch
(``STILL_LEADER``), so a leader that was frozen and wakes up writes nothing.

The relief, an API process that stands in while nobody has led for a minute, is a row like the
leader's (role ``relief``): taken only while the scheduler is silent, renewed every two seconds,
lost after six, fenced by an epoch. A row and no advisory lock: it needs no connection of its
own, everybody can read who it is and whether it reaches the broker, and a relief that was
frozen and wakes up writes nothing.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from models.store.session import connect

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
        with connect(self._engine) as connection:
            epoch: int | None = connection.exec_driver_sql(
                LEAD, {"holder": self._name, "broker_seen": self.broker_seen}
            ).scalar_one_or_none()
        self.broker_seen = False
        if epoch != self.epoch:
            logger.info("%s", f"leading, epoch {epoch}" if epoch else "standing by")
        self.epoch = epoch
        return 0

    def resign(self) -> None:
        """Let the next one take over at once."""
        if self.epoch is not None:
            with connect(self._engine) as connection:
                connection.exec_driver_sql(RESIGN, {"holder": self._name, "epoch": self.epoch})
            self.epoch = None


#: A scheduler that gave no sign of life for so long is replaced by a relief.
SILENT_SECONDS = 60

#: The scheduler's last sign of life: its lease was renewed, or the express lanes were.
LAST_SIGN = f"""greatest(
            leader.expires_at - interval '{LEASE_SECONDS} seconds',
            (SELECT max(granted_at) FROM express_lanes))"""
#: Condition on the scheduler's row, ``leader``: nobody leads, and nobody has for long.
SILENT = f"""leader.role = 'scheduler' AND leader.expires_at <= now()
          AND {LAST_SIGN} <= now() - interval '{SILENT_SECONDS} seconds'"""

#: Whether the place is to be taken: not while somebody leads, or another is the relief.
#: Where nobody ever led, the silence begins with the first who looks.
LOOK = f"""
    WITH noted AS (
        INSERT INTO leaders (role, holder, epoch, expires_at)
        SELECT 'scheduler', '', 0, now() - interval '1 second'
        WHERE NOT EXISTS (SELECT 1 FROM leaders WHERE role = 'scheduler')
        ON CONFLICT (role) DO NOTHING
    )
    SELECT 1 FROM leaders AS leader
    WHERE {SILENT} AND NOT EXISTS (
        SELECT 1 FROM leaders WHERE role = 'relief' AND holder <> %(holder)s
          AND expires_at > now())
"""
#: As the scheduler's LEAD; the row is locked, so that no scheduler takes over meanwhile.
TAKE = f"""
    WITH silent AS MATERIALIZED (SELECT 1 FROM leaders AS leader WHERE {SILENT} FOR SHARE)
    INSERT INTO leaders AS relief (role, holder, epoch, expires_at, broker_seen_at)
    SELECT 'relief', %(holder)s, 1, now() + interval '{LEASE_SECONDS} seconds', now() FROM silent
    ON CONFLICT (role) DO UPDATE
    SET epoch = relief.epoch + CASE WHEN relief.holder = excluded.holder
                                     AND relief.expires_at > now() THEN 0 ELSE 1 END,
        holder = excluded.holder,
        expires_at = excluded.expires_at,
        broker_seen_at = excluded.broker_seen_at
    WHERE relief.holder = excluded.holder OR relief.expires_at < now()
    RETURNING epoch
"""
LEAVE = """
    UPDATE leaders SET expires_at = now()
    WHERE role = 'relief' AND holder = %(holder)s AND epoch = %(epoch)s
"""


class ReliefLease:
    """The relief's place, as one API process sees it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._holder = {"holder": name}
        #: Of our claim, or None while we are not the relief.
        self.epoch: int | None = None

    def is_vacant(self) -> bool:
        """Whether the scheduler is silent and nobody else stands in for it."""
        with connect(self._engine) as connection:
            return connection.exec_driver_sql(LOOK, self._holder).first() is not None

    def take(self) -> bool:
        """Take the place or keep it. To be called by who has just reached the broker."""
        with connect(self._engine) as connection:
            self.epoch = connection.exec_driver_sql(TAKE, self._holder).scalar_one_or_none()
        return self.epoch is not None

    def leave(self) -> None:
        """Give the place up, if it is ours."""
        if self.epoch is not None:
            with connect(self._engine) as connection:
                connection.exec_driver_sql(LEAVE, {**self._holder, "epoch": self.epoch})
            self.epoch = None
