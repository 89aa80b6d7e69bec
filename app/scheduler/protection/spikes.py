"""Spikes: tenants with far more runs than usual get an event, once an hour at most; no more."""

from __future__ import annotations

import logging

from app.scheduler.role import LeaderQueries
from models.leadership import STILL_LEADER
from models.tallies import TallyKind
from tasks.retry.guards import SPIKE_BASELINE, SPIKE_TIMES, spiking

logger = logging.getLogger(__name__)

#: Earlier hours that are the usual.
HOURS = 24

#: Only tenants whose hour could be a spike at all, each with its earlier hours.
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
      AND this.total >= {SPIKE_TIMES * SPIKE_BASELINE}
"""
#: The restriction of an earlier hour is replaced; one of this hour stays, without a second event.
REPORT = f"""
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


class Spikes(LeaderQueries):
    def run_once(self, now: float) -> int:
        """Report spikes that were not reported in this hour; how many."""
        self._write(FORGET)
        reported = 0
        for row in self._read(READ_HOURS):
            if spiking(row.earlier, row.runs):
                usual = round(sum(row.earlier) / len(row.earlier))
                tenant_id = int(row.name)
                reported += self._write(REPORT, tenant_id=tenant_id, runs=row.runs, usual=usual)
        if reported:
            logger.warning("%d tenants have far more runs than usual", reported)
        return reported
