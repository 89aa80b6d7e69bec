"""Retry budgets: tenants that spent theirs are restricted (``verdicts``) until some is left again.

The policy is ``tasks.retry.guards``, fed with the counts of the last ten minutes. Adding those up
takes longer with every tenant, so it is done here once and not in every worker; workers read the
restrictions. Without a leader these stay as they are.
"""

from __future__ import annotations

import logging

from app.scheduler.role import LeaderQueries
from models.jobs.held_back import WITHOUT_BUDGET
from models.leadership import STILL_LEADER
from models.tallies import TallyKind
from tasks.retry import guards

logger = logging.getLogger(__name__)

JUDGE_SECONDS = 2.0

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
IMPOSE = f"""
    INSERT INTO verdicts (kind, tenant_id, detail)
    SELECT 'retry_budget', tenant_id, json_build_object(
        'first_runs', first_runs, 'retries', retries)
    FROM unnest(%(tenants)s::bigint[], %(first_runs)s::bigint[], %(retries)s::bigint[])
        AS spent (tenant_id, first_runs, retries)
    WHERE {STILL_LEADER}
    ORDER BY tenant_id
    ON CONFLICT DO NOTHING
"""
LIFT = f"""
    DELETE FROM verdicts
    WHERE kind = 'retry_budget' AND tenant_id = ANY (%(tenants)s::bigint[]) AND {STILL_LEADER}
"""


class RetryBudgets(LeaderQueries):
    def run_once(self, now: float) -> int:
        """Judge everybody who had retries; how many restrictions changed."""
        spending = {row.tenant_id: row for row in self._read(READ_SPENT)}
        held = {row.tenant_id for row in self._read(WITHOUT_BUDGET)}
        spent = {
            tenant_id
            for tenant_id, row in spending.items()
            if guards.budget_spent(row.first_runs, row.retries, tenant_id in held)
        }
        changed = 0
        if new := sorted(spent - held):
            changed += self._write(
                IMPOSE,
                tenants=new,
                first_runs=[spending[tenant_id].first_runs for tenant_id in new],
                retries=[spending[tenant_id].retries for tenant_id in new],
            )
        if over := sorted(held - spent):
            changed += self._write(LIFT, tenants=over)
        if changed:
            logger.warning("%d tenants are without retry budget, %d were", len(spent), len(held))
        return changed
