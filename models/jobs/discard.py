"""Discard: dead → cancelled, on request; the row stays with its error until it is retired.

Called by ``POST /dead-letters/discard`` and the console. One conditional statement: dying before
its commit changes nothing; dying after it loses the answer, and a repetition finds nothing dead.
Of a replay and a discard at the same time one finds the row dead, and the other nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Engine

from models.audit import Act
from models.jobs.cancel import Done
from models.jobs.replay import GIVEN, MATCHING, move_dead
from models.tallies import TallyKind, count_rows

#: Whether a row was discarded: every other end is stamped with the time of the request or later.
DISCARDED = "(job.status::text = 'cancelled' AND job.cancel_requested_at > job.finished_at)"
#: The end is stamped anew, so that the feed reports it.
DISCARD = f"""
    WITH chosen AS (
        SELECT id FROM jobs WHERE {GIVEN} AND {MATCHING} AND id > %(after)s::uuid
        ORDER BY id LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ), discarded AS (
        UPDATE jobs AS job
        SET status = 'cancelled', ended_xid = NULL,
            cancel_requested_at = greatest(now(), job.finished_at + interval '1 microsecond')
        FROM chosen WHERE job.id = chosen.id AND job.status::text = 'dead'
        RETURNING job.id, job.tenant_id, job.pool
    ), counted AS ({count_rows(TallyKind.DISCARDED, "pool", "discarded")})
    SELECT id::text AS id, tenant_id FROM discarded
"""

#: Discards dead letters of a tenant, or of any.
discard_dead = partial(move_dead, DISCARD, Act.JOB_DISCARD)


def discard_several(engine: Engine, ids: Sequence[str]) -> Done:
    """Discard those that are dead letters, of any tenants."""
    changed = len(discard_dead(engine, None, ids))
    return Done(changed, skipped=len(set(ids)) - changed)
