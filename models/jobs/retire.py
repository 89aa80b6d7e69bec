"""Retire: an ended job is removed with its attempts, logs, checkpoint and unscored application.

Scored applications are removed later, if they are to be. Called by the scheduler's Retirer. One
statement each: dying before its commit changes nothing; dying after it leaves blobs that no row
names, which the Collector finds.
"""

from __future__ import annotations

from models.jobs.discard import DISCARDED
from models.leadership import STILL_LEADER

#: Jobs looked at in one statement.
BATCH = 500


def id_of_age(seconds: str) -> str:
    """SQL: an id made so long ago, as far as its time goes; see models.jobs.ids."""
    return f"""(rpad(lpad(to_hex((extract(epoch FROM
            now() - make_interval(secs => {seconds})) * 1000)::bigint),
            12, '0'), 32, '0'))::uuid"""


OLDEST_KEPT = id_of_age("least(%(finished)s, %(dead)s)")

#: Looks at the next batch after ``cursor``. Returns how many it looked at, the last of them, how
#: many it removed, and their blobs, which no row names any more.
#: A job that is replayed at this moment is no longer dead when its row is locked, and stays.
#: Status as text: see CLAIM in claim.py.
RETIRE_JOBS = f"""
    WITH page AS (
        SELECT id FROM jobs
        WHERE id > %(cursor)s::uuid AND id < {OLDEST_KEPT} AND {STILL_LEADER}
        ORDER BY id LIMIT {BATCH}
    ), retired AS (
        DELETE FROM jobs AS job USING page
        WHERE job.id = page.id
          AND job.status::text IN ('succeeded', 'cancelled', 'expired', 'dead')
          AND job.finished_at < now() - make_interval(
                secs => CASE WHEN job.status = 'dead' OR {DISCARDED} THEN %(dead)s
                             ELSE %(finished)s END)
        RETURNING job.id, job.payload_blob
    ), attempted AS (
        DELETE FROM attempts USING retired WHERE job_id = retired.id
    ), logged AS (
        DELETE FROM run_logs USING retired WHERE job_id = retired.id
    ), checkpointed AS (
        DELETE FROM checkpoints USING retired WHERE job_id = retired.id RETURNING blob
    ), applied AS (
        DELETE FROM applications AS application USING retired
        WHERE application.id = retired.id AND application.score IS NULL
    )
    SELECT (SELECT count(*) FROM page) AS looked,
           (SELECT id::text FROM page ORDER BY id DESC LIMIT 1) AS last_id,
           (SELECT count(*) FROM retired) AS retired,
           array(SELECT payload_blob FROM retired WHERE payload_blob IS NOT NULL
                 UNION ALL SELECT blob FROM checkpointed WHERE blob IS NOT NULL) AS blobs
"""
#: The same for scored applications, which outlive their jobs: those whose job is gone.
RETIRE_SCORED = f"""
    WITH page AS (
        SELECT id FROM applications
        WHERE id > %(cursor)s::uuid AND id < {id_of_age("%(scored)s")} AND {STILL_LEADER}
        ORDER BY id LIMIT {BATCH}
    ), retired AS (
        DELETE FROM applications AS application USING page
        WHERE application.id = page.id
          AND application.scored_at < now() - make_interval(secs => %(scored)s)
          AND NOT EXISTS (SELECT FROM jobs AS job WHERE job.id = page.id)
        RETURNING application.id
    )
    SELECT (SELECT count(*) FROM page) AS looked,
           (SELECT id::text FROM page ORDER BY id DESC LIMIT 1) AS last_id,
           (SELECT count(*) FROM retired) AS retired
"""
