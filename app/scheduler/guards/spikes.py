"""Spikes: a tenant far above its own habit is told, once an hour at most. Nothing is stopped."""

from __future__ import annotations

import logging

from sqlalchemy import Engine

from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from models.tallies import TallyKind
from tasks.retry import spiking
from tasks.retry.spike import BASELINE, TIMES

logger = logging.getLogger(__name__)

#: Earlier hours that make a habit.
HOURS = 24

#: Only tenants whose hour could be a spike at all, each with the earlier hours we know of.
READ_HOURS = f"""
    SELECT this.name, this.total AS runs, array(
        SELECT earlier.total FROM tallies AS earlier
        WHERE earlier.kind = '{TallyKind.HOUR}' AND earlier.name = this.name
          AND earlier.bucket = ANY (array(
                SELECT this.bucket - number * interval '1 hour'
                FROM generate_series(1, {HOURS}) AS number))) AS earlier
    FROM tallies AS this
    WHERE this.kind = '{TallyKind.HOUR}'
      AND this.bucket = date_bin('1 hour', now(), 'epoch')
      AND this.total >= {TIMES * BASELINE}
"""
#: The verdict of an earlier hour gives way; one of this hour stands, and nothing is told twice.
TELL = f"""
    WITH spike AS (
        INSERT INTO verdicts AS verdict (kind, tenant_id, detail)
        SELECT 'spike', %(tenant_id)s, json_build_object('runs', %(runs)s, 'usual', %(usual)s)
        WHERE {STILL_LEADER}
        ON CONFLICT (kind, name, tenant_id, pool) DO UPDATE
        SET since = now(), detail = excluded.detail
        WHERE verdict.since < date_bin('1 hour', now(), 'epoch')
        RETURNING tenant_id, detail
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, 'tenant_usage_spike', detail FROM spike
"""
FORGET = f"""
    DELETE FROM verdicts
    WHERE kind = 'spike' AND since < date_bin('1 hour', now(), 'epoch') AND {STILL_LEADER}
"""


class Spikes:
    """Notices tenants whose hour stands out."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader

    def run_once(self, now: float) -> int:
        """Tell whoever spikes and was not told in this hour; how many."""
        told = 0
        with connect(self._engine) as connection:
            connection.exec_driver_sql(FORGET, {"epoch": self._leader.epoch})
            for row in connection.exec_driver_sql(READ_HOURS).all():
                if not spiking(row.earlier, row.runs):
                    continue
                told += connection.exec_driver_sql(
                    TELL,
                    {
                        "tenant_id": int(row.name),
                        "runs": row.runs,
                        "usual": round(sum(row.earlier) / len(row.earlier)),
                        "epoch": self._leader.epoch,
                    },
                ).rowcount
        if told:
            logger.warning("%d tenants are far above their habit", told)
        return told
