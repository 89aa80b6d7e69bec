"""Expire: scheduled or queued → expired, for jobs past their ``not_after``.

Called by the scheduler's Expirer; dispatch and claim expire what they meet. One statement: dying
before its commit changes nothing, and after it the job has ended.
"""

from __future__ import annotations

from models.leadership import STILL_LEADER
from models.store.prepared import PreparedStatement

BATCH = 500

EXPIRE = f"""
    WITH late AS (
        SELECT id FROM jobs
        WHERE status IN ('scheduled', 'queued') AND not_after < now() AND {STILL_LEADER}
        LIMIT {BATCH}
        FOR UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job SET status = 'expired', finished_at = now()
    FROM late WHERE job.id = late.id
"""
PREPARED = PreparedStatement("expire", EXPIRE)
