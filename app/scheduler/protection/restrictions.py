"""Restrictions (table ``verdicts``): quarantine of job types; throttles, spikes and spent retry
budgets of tenants.

The policies are in ``tasks.retry``, fed with the recent counts of table ``tallies``. Workers read
quarantines and spent budgets when they decide about retries; dispatcher and express lane obey
throttles; a spike has no effect but its event. A type that fails for one tenant is quarantined for
that tenant, one that fails without any single tenant as well, for all: then all tenants get the
event (tenant 0), for any of them may be about to submit such a job. Of everything else only the
tenant.
"""

from __future__ import annotations

import json
import logging
from operator import itemgetter

from sqlalchemy import Engine

from app.scheduler.role import RoleQueries
from models.jobs.held_back import QUARANTINED, TENANT_QUARANTINED, THROTTLED, WITHOUT_BUDGET
from models.leadership import STILL_LEADER, Leader
from models.store.prepared import PreparedStatement
from models.tallies import TallyKind, parse_crash_name, parse_tenant_name
from tasks.retry import guards
from tasks.retry.circuit import Window

logger = logging.getLogger(__name__)

#: Quarantines that change in one turn, those for all tenants first; the others follow in the next.
MOST_CHANGES = 100
#: How often retry budgets are judged.
JUDGE_SECONDS = 2.0
#: Earlier hours that are the usual.
HOURS = 24

#: A window begins where a bucket of ``step`` seconds does: it is short by up to one such bucket.
READ_WINDOWS = """
    SELECT name, sum(total)::bigint AS total, sum(amount)::bigint AS amount FROM tallies
    WHERE kind = %(kind)s
      AND bucket >= date_bin(make_interval(secs => %(step)s), now(), 'epoch')
                    + make_interval(secs => %(step)s) - make_interval(secs => %(seconds)s)
    GROUP BY name
"""
PREPARED = PreparedStatement("read_windows", READ_WINDOWS)
IMPOSE = f"""
    WITH imposed AS (
        INSERT INTO verdicts (kind, name, tenant_id, pool, detail)
        SELECT %(kind)s, %(name)s, %(tenant_id)s, %(pool)s, %(detail)s::json
        WHERE {STILL_LEADER}
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, detail
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, %(event)s, detail FROM imposed
"""
#: The previous version names throttles.
LIFT = f"""
    WITH lifted AS (
        DELETE FROM verdicts
        WHERE kind = %(kind)s AND tenant_id = %(tenant_id)s AND pool = %(pool)s
          AND (name = %(name)s OR kind = 'throttle') AND {STILL_LEADER}
        RETURNING tenant_id
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT tenant_id, %(event)s, %(detail)s::json FROM lifted
"""
#: Only tenants whose hour could be a spike at all, each with its earlier hours.
READ_HOURS = f"""
    SELECT this.name, this.total AS submissions, array(
        SELECT earlier.total FROM tallies AS earlier
        WHERE earlier.kind = '{TallyKind.SUBMISSION}' AND earlier.name = this.name
          AND earlier.bucket = ANY (array(
                SELECT this.bucket - number * interval '1 hour'
                FROM generate_series(1, {HOURS}) AS number))) AS earlier
    FROM tallies AS this
    WHERE this.kind = '{TallyKind.SUBMISSION}'
      AND this.bucket = date_bin('1 hour', now(), 'epoch')
      AND this.total >= {guards.SPIKE_TIMES * guards.SPIKE_BASELINE}
"""
#: The restriction of an earlier hour is replaced; one of this hour stays, without a second event.
REPORT = f"""
    WITH spike AS (
        INSERT INTO verdicts AS verdict (kind, tenant_id, detail)
        SELECT 'spike', %(tenant_id)s, json_build_object(
            'submissions', %(submissions)s, 'usual', %(usual)s)
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


#: Only tenants that could be restricted, by the lower of the policy's two limits.
READ_SPENT = f"""
    SELECT name::bigint AS tenant_id, sum(total)::bigint AS first_runs,
           sum(amount)::bigint AS retries
    FROM tallies
    WHERE kind = '{TallyKind.RETRY}'
      AND bucket > now() - interval '{guards.BUDGET_WINDOW_SECONDS:g} seconds'
    GROUP BY name
    HAVING sum(amount) >= {guards.BUDGET_BACK} * greatest(
        {guards.BUDGET_FLOOR}, {guards.RETRIES_PER_FIRST_RUN} * sum(total))
"""
#: Those, and the tenants without budget.
READ_BUDGETS = PreparedStatement(
    "read_budgets",
    f"""
    SELECT tenant_id, coalesce(first_runs, 0) AS first_runs, coalesce(retries, 0) AS retries,
           held.tenant_id IS NOT NULL AS held
    FROM ({READ_SPENT}) AS spent FULL JOIN ({WITHOUT_BUDGET}) AS held USING (tenant_id)
""",
)
IMPOSE_BUDGETS = f"""
    INSERT INTO verdicts (kind, tenant_id, detail)
    SELECT 'retry_budget', tenant_id, json_build_object(
        'first_runs', first_runs, 'retries', retries)
    FROM unnest(%(tenants)s::bigint[], %(first_runs)s::bigint[], %(retries)s::bigint[])
        AS spent (tenant_id, first_runs, retries)
    WHERE {STILL_LEADER}
    ORDER BY tenant_id
    ON CONFLICT DO NOTHING
"""
LIFT_BUDGETS = f"""
    DELETE FROM verdicts
    WHERE kind = 'retry_budget' AND tenant_id = ANY (%(tenants)s::bigint[]) AND {STILL_LEADER}
"""


class Quarantine(RoleQueries):
    """Job types that mostly fail get fewer attempts, until they recover: for all, or a tenant."""

    def run_once(self, now: float) -> int:
        """Check every type that ran recently or is quarantined; how many changed."""
        windows = {(name, 0): window for name, window in self._windows(TallyKind.TYPE).items()}
        tenants: dict[str, list[Window]] = {}
        for whole, window in self._windows(TallyKind.TENANT_TYPE).items():
            name, tenant_id = parse_tenant_name(whole)
            windows[name, tenant_id] = window
            tenants.setdefault(name, []).append(window)
        held = {(row.name, 0) for row in self._read(QUARANTINED)}
        held |= {(row.name, row.tenant_id) for row in self._read(TENANT_QUARANTINED)}
        changed = 0
        for name, tenant_id in sorted(windows.keys() | held, key=itemgetter(1)):
            window, was = windows.get((name, tenant_id), Window(0, 0)), (name, tenant_id) in held
            others = () if tenant_id else tenants.get(name, ())
            is_now = guards.quarantined_for_all(window, others, was)
            if is_now != was and changed < MOST_CHANGES:
                changed += self._change(name, tenant_id, window, is_now)
        return changed

    def _windows(self, kind: TallyKind) -> dict[str, Window]:
        # The whole and its parts begin at one moment: runs that only one of them has would be
        # left to the other tenants, or taken from them.
        step, seconds = TallyKind.TENANT_TYPE.bucket_seconds, guards.QUARANTINE_WINDOW_SECONDS
        rows = self._read(PREPARED, kind=kind, step=step, seconds=seconds)
        return {row.name: Window(row.total, row.amount) for row in rows}

    def _change(self, name: str, tenant_id: int, window: Window, enters: bool) -> int:
        written = self._write(
            IMPOSE if enters else LIFT,
            kind="tenant_quarantine" if tenant_id else "quarantine",
            name=name,
            tenant_id=tenant_id,
            pool="",
            event="job_type_quarantined" if enters else "job_type_released",
            detail=json.dumps({"type": name, "runs": window.total, "failed": window.bad}),
        )
        if written:
            whose = f" of tenant {tenant_id}" if tenant_id else ""
            move = "enters" if enters else "leaves"
            logger.warning(
                "%s%s %s quarantine: %d of %d failed", name, whose, move, window.bad, window.total
            )
        return written


class Throttles(RoleQueries):
    """A tenant whose jobs keep killing the workers of a pool runs one at a time there."""

    def __init__(
        self, engine: Engine, leader: Leader, limit: int = guards.THROTTLE_CRASHES
    ) -> None:
        super().__init__(engine, leader)
        self._limit = limit

    def run_once(self, now: float) -> int:
        """Check every tenant that crashed recently or is throttled; how many changed."""
        kind, seconds = TallyKind.CRASH, guards.THROTTLE_WINDOW_SECONDS
        rows = self._read(PREPARED, kind=kind, step=kind.bucket_seconds, seconds=seconds)
        crashed = {parse_crash_name(row.name): row.total for row in rows}
        held = {(row.tenant_id, row.pool) for row in self._read(THROTTLED)}
        changed = 0
        for tenant_id, pool in crashed.keys() | held:
            crashes, was = crashed.get((tenant_id, pool), 0), (tenant_id, pool) in held
            if guards.throttled(crashes, was, self._limit) == was:
                continue
            detail = {"pool": pool} if was else {"pool": pool, "crashes": crashes}
            if self._write(
                LIFT if was else IMPOSE,
                kind="throttle",
                name="",
                tenant_id=tenant_id,
                pool=pool,
                event="tenant_throttle_lifted" if was else "tenant_throttled",
                detail=json.dumps(detail),
            ):
                changed += 1
                news = "throttle lifted" if was else f"throttled, {crashes} crashes"
                logger.warning("tenant %s in %s: %s", tenant_id, pool, news)
        return changed


class Spikes(RoleQueries):
    """Tenants that submit far more than usual get an event, once an hour at most."""

    def run_once(self, now: float) -> int:
        """Report spikes that were not reported in this hour; how many."""
        self._write(FORGET)
        reported = 0
        for row in self._read(READ_HOURS):
            if guards.spiking(row.earlier, row.submissions):
                usual = round(sum(row.earlier) / len(row.earlier))
                spike = {"submissions": row.submissions, "usual": usual}
                reported += self._write(REPORT, tenant_id=int(row.name), **spike)
        if reported:
            logger.warning("%d tenants submit far more than usual", reported)
        return reported


class RetryBudgets(RoleQueries):
    """Tenants that spent theirs get no retries until some is left again.

    Adding up the counts of all tenants takes longer with every tenant, so it is done here once and
    not in every worker. Without a leader the restrictions stay as they are.
    """

    def run_once(self, now: float) -> int:
        """Judge everybody who had retries; how many restrictions changed."""
        spending = {row.tenant_id: row for row in self._read(READ_BUDGETS)}
        held = {tenant_id for tenant_id, row in spending.items() if row.held}
        spent = {
            tenant_id
            for tenant_id, row in spending.items()
            if guards.budget_spent(row.first_runs, row.retries, row.held)
        }
        changed = 0
        if new := sorted(spent - held):
            changed += self._write(
                IMPOSE_BUDGETS,
                tenants=new,
                first_runs=[spending[tenant_id].first_runs for tenant_id in new],
                retries=[spending[tenant_id].retries for tenant_id in new],
            )
        if over := sorted(held - spent):
            changed += self._write(LIFT_BUDGETS, tenants=over)
        if changed:
            logger.warning("%d tenants are without retry budget, %d were", len(spent), len(held))
        return changed
