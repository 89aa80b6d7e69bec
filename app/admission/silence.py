"""Silence: how long nobody has led, and which API process stands in for the scheduler.

The relief's claim is a row like the leader's (``leaders``, role ``relief``): taken only while
the scheduler is silent, renewed every two seconds, lost after six, fenced by an epoch. A row
and no advisory lock: it needs no connection of its own, everybody can read who it is and
whether it reaches the broker, and a relief that was frozen and wakes up writes nothing.
"""

from __future__ import annotations

from sqlalchemy import Engine

from app.scheduler.leader import LEASE_SECONDS
from models.session import connection

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


class Place:
    """The relief's place, as one API process sees it."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._holder = {"holder": name}
        #: Of our claim, or None while we are not the relief.
        self.epoch: int | None = None

    def is_vacant(self) -> bool:
        """Whether the scheduler is silent and nobody else stands in for it."""
        with connection(self._engine) as taken:
            return taken.exec_driver_sql(LOOK, self._holder).first() is not None

    def take(self) -> bool:
        """Take the place or keep it. To be called by who has just reached the broker."""
        with connection(self._engine) as taken:
            row = taken.exec_driver_sql(TAKE, self._holder).first()
        self.epoch = row[0] if row else None
        return self.epoch is not None

    def leave(self) -> None:
        """Give the place up, if it is ours."""
        if self.epoch is not None:
            with connection(self._engine) as taken:
                taken.exec_driver_sql(LEAVE, {**self._holder, "epoch": self.epoch})
            self.epoch = None
