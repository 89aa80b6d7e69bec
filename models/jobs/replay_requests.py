"""Replays of many dead letters: requests in the table ``replays``, worked off by the leader.

A batch is one statement: it queues the jobs and counts them in the request, under the leader's
epoch and only while the request is running. Dying before its commit changes nothing; dying after
it leaves the rest to the next turn, of this leader or another. A cancelled request queues nothing
more.

The walk goes by id from ``position``, a bounded number of dead letters at a time, and begins again
at its end if it had to pass some: their queue was full, or they were locked. A job that dies again
is not found twice: its death is later than ``before``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row

from models.audit import Act, record, recording
from models.jobs.held_back import AWAY
from models.jobs.ids import BELOW_ALL, new_id
from models.jobs.replay import ALLOWED, GIVEN, MATCHING, replay_ctes
from models.leadership import STILL_LEADER
from models.store.prepared import PreparedStatement
from models.store.session import fetch

#: More than this many are not counted in advance.
MOST_COUNTED = 200_000
#: Replays of one tenant that may run at a time.
MOST_RUNNING = 10

COUNT = f"""
    SELECT pool, count(*) AS jobs FROM (
        SELECT pool FROM jobs WHERE {GIVEN} AND {MATCHING}
        ORDER BY tenant_id, id LIMIT %(most)s) AS found
    GROUP BY pool ORDER BY pool
"""
#: Of the dead letters that match, a type that their tenant may not submit. For tenants who may
#: submit all, no job is read.
FIND_FORBIDDEN = f"""
    SELECT jobs.type, tenant.types FROM (
        SELECT types FROM tenants WHERE id = %(tenant_id)s AND types IS NOT NULL) AS tenant
    CROSS JOIN LATERAL (
        SELECT type FROM jobs WHERE {GIVEN} AND {MATCHING} AND type <> ALL (tenant.types) LIMIT 1
    ) AS jobs
"""
COLUMNS = """id::text AS id, tenant_id, type, error_class, ids::text[] AS ids, before, most, state,
           total, done, position::text AS position, again, reason, requested_at, finished_at"""
FEW_RUNNING = f"""(SELECT count(*) FROM replays
          WHERE tenant_id = %(tenant_id)s AND state = 'running') < {MOST_RUNNING}"""
#: A later ``before`` would match jobs that die again. Two at once may both be the last one allowed:
#: the bound may be exceeded by a few.
CREATE = f"""
    INSERT INTO replays (id, tenant_id, digest, ids, type, error_class, before, most, total,
                         position)
    SELECT %(id)s, %(tenant_id)s, %(digest)s, %(ids)s::uuid[], %(type)s, %(error_class)s,
           least(%(before)s::timestamptz, now()), %(limit)s, %(total)s, '{BELOW_ALL}'
    WHERE %(unbounded)s OR {FEW_RUNNING}
    ON CONFLICT (tenant_id, digest) WHERE state = 'running' DO NOTHING
    RETURNING {COLUMNS}
"""
FIND_RUNNING = f"""
    SELECT {COLUMNS} FROM replays
    WHERE tenant_id = %(tenant_id)s AND digest = %(digest)s AND state = 'running'
"""
READ = f"SELECT {COLUMNS} FROM replays WHERE id = %(id)s::uuid"
CANCEL = """
    UPDATE replays SET state = 'cancelled', finished_at = now()
    WHERE id = %(id)s::uuid AND state = 'running'
    RETURNING tenant_id
"""
#: For pages: those that run, of one tenant or of all.
LIST_RUNNING = f"""
    SELECT {COLUMNS}, (SELECT name FROM tenants WHERE tenants.id = tenant_id) AS tenant,
           count(*) OVER () AS requests
    FROM replays
    WHERE state = 'running' AND (%(tenant_id)s::bigint IS NULL OR tenant_id = %(tenant_id)s::bigint)
    ORDER BY requested_at LIMIT %(limit)s
"""

#: Of the tenants that waited longest for a turn the replay that did so: many replays of one tenant
#: take no turns from others.
NEXT = f"""
    WITH turns AS (
        SELECT DISTINCT ON (tenant_id) id AS first,
               max(worked_at) OVER (PARTITION BY tenant_id) AS turn_at
        FROM replays
        WHERE state = 'running' AND tenant_id <> ALL (%(held)s::bigint[])
          AND tenant_id NOT IN ({AWAY}) AND {STILL_LEADER}
        ORDER BY tenant_id, worked_at
    ), next AS (
        SELECT * FROM turns ORDER BY turn_at LIMIT %(limit)s
    )
    SELECT {COLUMNS} FROM next JOIN replays ON id = first ORDER BY turn_at
"""
NEXT_REPLAYS = PreparedStatement("next_replays", NEXT)
#: Of the next dead letters those that match; how many were looked at, and the last of them.
PEEK = f"""
    WITH seen AS MATERIALIZED (
        SELECT id, pool, type, error_class, finished_at FROM jobs
        WHERE {GIVEN} AND id > %(position)s::uuid
        ORDER BY tenant_id, id LIMIT %(looks)s
    ), found AS (
        SELECT id, pool FROM seen
        WHERE {MATCHING} AND {ALLOWED.format(tenant_id="%(tenant_id)s", type="seen.type")}
        ORDER BY id LIMIT %(room)s
    )
    SELECT found.id::text AS id, found.pool, (SELECT count(*) FROM seen) AS looked_at,
           (SELECT seen.id::text FROM seen ORDER BY seen.id DESC LIMIT 1) AS last
    FROM (VALUES (1)) AS one LEFT JOIN found ON true ORDER BY found.id
"""
WORK = f"""
    WITH running AS (
        SELECT id FROM replays
        WHERE id = %(replay)s::uuid AND state = 'running' AND tenant_id NOT IN ({AWAY})
          AND {STILL_LEADER}
        FOR UPDATE
    ), {
    replay_ctes('''id = ANY (%(chosen)s::uuid[]) AND tenant_id = %(tenant_id)s
          AND status = 'dead' AND (finished_at > %(before)s) IS NOT TRUE
          AND EXISTS (SELECT FROM running)''')
}, progressed AS (
        UPDATE replays AS replay
        SET done = replay.done + (SELECT count(*) FROM fresh), position = %(position)s::uuid,
            again = %(again)s OR (SELECT count(*) FROM fresh) < cardinality(%(chosen)s::uuid[]),
            reason = %(reason)s, worked_at = clock_timestamp(),
            state = CASE WHEN %(ended)s THEN 'finished' ELSE replay.state END,
            finished_at = CASE WHEN %(ended)s THEN now() END
        FROM running WHERE replay.id = running.id
    )
    SELECT count(*) AS queued FROM fresh
"""
PASS_OVER = f"""
    UPDATE replays SET worked_at = clock_timestamp()
    WHERE id IN (SELECT id FROM replays WHERE id = %(replay)s::uuid AND {STILL_LEADER}
                 FOR UPDATE SKIP LOCKED)
"""
RETIRE = f"""
    DELETE FROM replays WHERE finished_at < now() - make_interval(secs => %(seconds)s)
      AND {STILL_LEADER}
"""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Dead letters of a tenant to be replayed: some ids, or all that match."""

    tenant_id: int
    ids: tuple[str, ...] | None = None
    type: str | None = None
    error_class: str | None = None
    #: Died no later than this; None: than the request.
    before: datetime | None = None
    #: At most so many.
    limit: int | None = None
    #: That it gets if it is worked off in the background; None: a new one.
    id: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """For the statements of this module."""
        ids = None if self.ids is None else list(self.ids)
        asked = {"ids": ids, "type": self.type, "error_class": self.error_class}
        key = [sorted(self.ids or ()), self.type, self.error_class, str(self.before), self.limit]
        return {
            **asked,
            "tenant_id": self.tenant_id,
            "before": self.before,
            "limit": self.limit,
            # Equal requests are one as long as it runs.
            "digest": hashlib.sha256(json.dumps(key).encode()).hexdigest(),
        }


def count_matching(engine: Engine, request: ReplayRequest) -> Counter[str]:
    """Dead letters that match, by pool, up to a bound."""
    most = MOST_COUNTED if request.limit is None else min(request.limit, MOST_COUNTED)
    rows = fetch(engine, COUNT, {**request.parameters, "most": most})
    return Counter({row.pool: row.jobs for row in rows})


def find_forbidden(engine: Engine, request: ReplayRequest) -> Row[Any] | None:
    """A type among the matching ones that the tenant may not submit, and those it may."""
    return next(iter(fetch(engine, FIND_FORBIDDEN, request.parameters)), None)


def find_running(engine: Engine, request: ReplayRequest) -> Row[Any] | None:
    """The running replay that is the same as this one."""
    return next(iter(fetch(engine, FIND_RUNNING, request.parameters)), None)


def create(
    engine: Engine, request: ReplayRequest, total: int, *, unbounded: bool = False
) -> Row[Any] | None:
    """Make the request durable, or find the running one that is the same.

    None if too many of the tenant's are running; ``unbounded`` is for operators.
    """
    asked = {
        **request.parameters,
        "id": request.id or new_id(),
        "total": total,
        "unbounded": unbounded,
    }
    while True:
        with recording(engine) as connection:
            if made := connection.exec_driver_sql(CREATE, asked).first():
                given = {"type": request.type, "error_class": request.error_class, "jobs": total}
                record(
                    connection,
                    Act.REPLAY_REQUEST,
                    made.id,
                    tenant=request.tenant_id,
                    after={name: value for name, value in given.items() if value is not None},
                )
                return made
        if (running := find_running(engine, request)) is not None:
            return running
        # There are too many, or the other one ended between the two statements.
        if not unbounded and not fetch(engine, f"SELECT WHERE {FEW_RUNNING}", asked):
            return None


def read(engine: Engine, replay_id: str) -> Row[Any] | None:
    return next(iter(fetch(engine, READ, {"id": replay_id})), None)


def cancel(engine: Engine, replay_id: str) -> None:
    """End a running replay; what it has queued stays queued."""
    with recording(engine) as connection:
        row = connection.exec_driver_sql(CANCEL, {"id": replay_id}).first()
        if row is not None:
            record(connection, Act.REPLAY_CANCEL, replay_id, tenant=row.tenant_id)


def list_running(connection: Connection, tenant_id: int | None, limit: int) -> Sequence[Row[Any]]:
    """Those of one tenant or of all, oldest first."""
    asked = {"tenant_id": tenant_id, "limit": limit}
    return connection.exec_driver_sql(LIST_RUNNING, asked).all()
