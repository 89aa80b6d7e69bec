"""Admit one job that comes alone and has no time limits: new → running if a worker offers to run
it, dispatched by the express lane, else queued.

Most jobs of a stack with free slots come alone. Theirs is a statement of its own, because that of a
group costs more: it reads its columns from arrays, and adds up what the lanes are asked for. What
holds for a group (`models.jobs.admit`) holds for this one, and so does the order of its locks: key,
lane, counts.

A worker that offers to run it (`models.jobs.offer`) is told, and the row is born as if that worker
had claimed it.
"""

from __future__ import annotations

from itertools import product

from sqlalchemy import Connection, Engine

from models.encryption.values import encrypt_digest, key_ring
from models.jobs.admit import LANE_OPEN, Outcome, read_keys, stored_payload
from models.jobs.held_back import AWAY, CIRCUIT_NOT_CLOSED, THROTTLED
from models.jobs.offer import FIRST_OFFER, NO_MESSAGE, OFFERS_LEFT, TELL, message_about
from models.jobs.submission import Admitted, IdempotencyKey, SubmissionGroup, TenantAway
from models.pools import lease_interval
from models.store.prepared import PreparedStatement
from models.store.session import connect

TENANT = "%(tenant)s::bigint"
DEPENDENCY = "%(dependency)s::text"
#: Whether the job may take the lane ``open``: by the rules of `models.jobs.admit.READY`. EXISTS
#: looks one row up, where NOT IN would read all of them.
MAY_TAKE = f"""open.pool = %(pool)s::text AND open.credit >= 1 AND {LANE_OPEN}
              AND %(express)s::bool AND (%(cap)s::int IS NULL OR %(cap)s::int >= 2 * open.slots)
              AND NOT EXISTS (SELECT FROM circuits
                              WHERE dependency = {DEPENDENCY} AND {CIRCUIT_NOT_CLOSED})
              AND NOT EXISTS (SELECT FROM quotas WHERE dependency = {DEPENDENCY})
              AND NOT EXISTS (SELECT FROM ({THROTTLED}) AS throttled
                              WHERE tenant_id = {TENANT} AND pool = %(pool)s::text)"""
#: The tenant is not placed in another cell.
HERE = f"NOT EXISTS (SELECT FROM ({AWAY}) AS away WHERE tenant_id = {TENANT})"
#: The key, unless it is known, the tenant is away, or the caller knows only an earlier placement.
KEPT = f"""kept AS (
        INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)
        SELECT {TENANT}, %(key)s::text, %(digest)s::bytea, ARRAY[%(id)s::uuid]
        WHERE NOT EXISTS (SELECT FROM away_tenants WHERE tenant_id = {TENANT}
                          AND (away OR version > %(placement)s::bigint))
        ON CONFLICT DO NOTHING
        RETURNING true
    ), """
READ_JOB = "SELECT FROM jobs WHERE id = %(id)s"
READ_AWAY = "SELECT away, version FROM away_tenants WHERE tenant_id = %(tenant)s"
APPLICATION = """, application AS (
        INSERT INTO applications (id, tenant_id, candidate, role)
        SELECT %(id)s::uuid, %(tenant)s::bigint, %(candidate)s::text, %(role)s::text
        WHERE {insertable}
        ON CONFLICT (id) DO NOTHING
    )"""


def alone_statement(*, application: bool, keyed: bool) -> str:
    """The statement: of an application, or of another job; with a key, or without."""
    insertable = "EXISTS (SELECT FROM kept)" if keyed else HERE
    return f"""
    WITH {KEPT if keyed else ""}lane AS (
        UPDATE express_lanes AS lane
        SET credit = lane.credit - 1,
            offers = CASE WHEN %(give)s::bool THEN {OFFERS_LEFT} ELSE lane.offers END
        FROM (
            SELECT open.pool, open.offers, {FIRST_OFFER} AS worker
            FROM express_lanes AS open WHERE {insertable} AND {MAY_TAKE}
            FOR UPDATE OF open
        ) AS asked
        WHERE lane.pool = asked.pool AND lane.credit >= 1
        RETURNING asked.worker, asked.offers[1] AS offer, now() AS sent_at,
                  CASE WHEN asked.worker IS NULL THEN 'dispatched'::job_status
                       ELSE 'running'::job_status END AS status,
                  CASE WHEN asked.worker IS NOT NULL THEN now() END AS started_at
    ){APPLICATION.format(insertable=insertable) if application else ""}
    INSERT INTO jobs (id, tenant_id, type, pool, payload, priority, traceparent, dependency,
                      payload_blob, resubmitted_from, status, lease, dispatched_at,
                      lease_expires_at, worker, started_at)
    SELECT %(id)s::uuid, {TENANT}, %(type)s::text, %(pool)s::text, %(payload)s::json,
           %(priority)s::int, %(traceparent)s::text, {DEPENDENCY}, %(blob)s::text,
           %(origin)s::uuid, coalesce(status, 'queued'), (status IS NOT NULL)::int, sent_at,
           sent_at + %(lease)s::interval, worker, started_at
    -- No row if nothing is to be inserted. Of a lane that was not taken the columns are null.
    FROM (SELECT WHERE {insertable}) AS item LEFT JOIN lane ON true
    ON CONFLICT (id) DO NOTHING
    RETURNING lease = 1 AS dispatched, worker IS NOT NULL AS given,
              (SELECT offer FROM lane) IS NOT NULL AS offered,
              CASE WHEN worker IS NOT NULL THEN {TELL}::text END
"""


PREPARED = {
    (application, keyed): PreparedStatement(
        f"admit_alone{'_application' * application}{'_keyed' * keyed}",
        alone_statement(application=application, keyed=keyed),
    )
    for application, keyed in product((False, True), repeat=2)
}


def admit_alone(engine: Engine, entry: SubmissionGroup, express: bool, give: bool) -> Outcome:
    """Insert one job; its ``execute_at`` and ``not_after`` are not written. ``give``: a worker that
    offers to run it may be given it, and is told."""
    [item], key = entry
    payload = stored_payload(item) if key_ring() else item.payload
    parameters: dict[str, object] = {
        "id": item.id,
        "tenant": item.tenant_id,
        "type": item.type,
        "pool": item.pool,
        "payload": payload,
        "priority": item.priority,
        "traceparent": item.traceparent,
        "candidate": item.candidate,
        "role": item.role,
        "dependency": item.dependency,
        "blob": item.payload_blob,
        "cap": item.cap,
        "origin": item.resubmitted_from,
        "express": express and item.express,
        "give": give,
        "lease": lease_interval(item.pool),
        **(message_about(item, payload) if give else NO_MESSAGE),
    }
    if key is not None:
        digest = encrypt_digest(key.digest, item.tenant_id)
        parameters |= {"key": key.text, "digest": digest, "placement": key.placement}
    statement = PREPARED[item.candidate is not None, key is not None]
    with connect(engine) as connection:
        for row in statement.execute(connection, parameters):
            sent = entry.submissions if row.dispatched else ()
            return Admitted((item.id,), express=sent, given=row.given, offered=row.offered)
        if is_away(connection, item.tenant_id, key):
            return TenantAway()
        if key is not None:
            if earlier := read_keys(connection, [entry], [0]):
                return earlier[0]
        elif connection.exec_driver_sql(READ_JOB, {"id": item.id}).first() is not None:
            return Admitted((item.id,))  # the answer to an earlier statement was lost
    # Between the statements the key was retired, or the tenant was brought back.
    return admit_alone(engine, entry, express, give)


def is_away(connection: Connection, tenant_id: int, key: IdempotencyKey | None) -> bool:
    """Whether nothing was inserted because the tenant is away, or because the key's caller knows
    only an earlier placement of it."""
    found = connection.exec_driver_sql(READ_AWAY, {"tenant": tenant_id}).one_or_none()
    return found is not None and (found.away or (key is not None and found.version > key.placement))
