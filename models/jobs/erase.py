"""Erase: an application and its job are removed in any state; a row of ``erasures`` remains.

Called by ``POST /applications/{id}/erase``, for operators too, and by the scheduler's Eraser. What
waits is cancelled and removed. What runs is emptied and asked to stop, and removed once it has
ended: its end finds no application that it could bring back, and the tenant pays for the run.

One transaction: dying before its commit changes nothing. Dying after it leaves a row that is due,
and the Eraser goes on: it removes what was still running and the blobs. It comes back a minute
later, for what was on its way when the erasure was requested: the API repeats a submission whose
answer it has lost. Every step may be repeated. A job that was resubmitted from an erased one, with
an edited payload, is erased too: it gets an erasure of its own. There may be tens of thousands of
these: an application counts as erased when all of them have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from models.audit import Act, record
from models.jobs.cancel import NOT_ENDED, UPDATE
from models.leadership import STILL_LEADER
from models.store.prepared import BY_INDEX, PreparedStatement
from models.store.session import fetch, transaction

#: An erasure is looked at once more so long after its request.
AGAIN_SECONDS = 60
#: Erasures looked at in one turn, of all tenants.
BATCH = 50
#: Due erasures among which those of a turn are looked for: so many of the oldest and of the newest.
MOST_DUE = 20_000
#: Copies whose erasure is requested at a time; the rest by the scheduler.
COPIES_AT_ONCE = 1_000

REQUEST = """
    INSERT INTO erasures (id, tenant_id)
    SELECT id, tenant_id FROM applications
    WHERE id = %(id)s::uuid AND tenant_id = coalesce(%(tenant)s::bigint, tenant_id)
    ON CONFLICT (id) DO NOTHING
    RETURNING tenant_id
"""
#: Locked from here on: two erasures of the same application take turns.
LOCK = """
    SELECT tenant_id FROM erasures
    WHERE id = %(id)s::uuid AND tenant_id = coalesce(%(tenant)s::bigint, tenant_id)
    FOR UPDATE
"""
#: Jobs that were resubmitted from it, whose erasure nobody has requested.
COPIES = """
    FROM jobs AS copy JOIN erasures AS origin ON origin.id = copy.resubmitted_from
    WHERE copy.resubmitted_from = %(id)s::uuid AND copy.tenant_id = origin.tenant_id
      AND NOT EXISTS (SELECT FROM erasures AS other WHERE other.id = copy.id)
"""
REQUEST_COPIES = f"""
    INSERT INTO erasures (id, tenant_id)
    SELECT copy.id, copy.tenant_id {COPIES} LIMIT {COPIES_AT_ONCE}
    ON CONFLICT (id) DO NOTHING
"""
#: The blob of a payload is named until the row is removed. Status as text: see CLAIM in claim.py.
STOP = f"""
    {UPDATE}, payload = 'null', progress = NULL, result = NULL, error_message = NULL
    WHERE job.id = %(id)s::uuid AND job.status::text {NOT_ENDED}
"""
REMOVE_JOB = f"""
    DELETE FROM jobs WHERE id = %(id)s::uuid AND NOT status::text {NOT_ENDED}
    RETURNING payload_blob, created_at
"""
#: After the job, by a statement that sees what the end of its run has written.
REMOVE_REST = """
    WITH attempted AS (
        DELETE FROM attempts WHERE job_id = %(id)s::uuid
    ), logged AS (
        DELETE FROM run_logs WHERE job_id = %(id)s::uuid
    ), applied AS (
        DELETE FROM applications WHERE id = %(id)s::uuid
    ), reported AS (
        DELETE FROM events WHERE tenant_id = %(tenant)s AND job_id = %(id)s::uuid
    )
    DELETE FROM checkpoints WHERE job_id = %(id)s::uuid RETURNING blob
"""
#: The digest is made of the application. Without it the key stays used: a late repetition of the
#: submission is refused. A key has the time of its jobs.
FORGET_KEY = """
    UPDATE idempotency_keys SET digest = ''
    WHERE tenant_id = %(tenant)s AND created_at = %(created_at)s
      AND job_ids = ARRAY[%(id)s::uuid] AND digest <> ''
"""
#: The same in another cell, which has the key without the job: it is about as old as the id, which
#: begins with a time in milliseconds.
FORGET_COPY = """
    WITH made AS MATERIALIZED (SELECT to_timestamp(
        ('x0000' || left(replace(%(id)s, '-', ''), 12))::bit(64)::bigint / 1000.0) AS at)
    UPDATE idempotency_keys SET digest = '' FROM made
    WHERE tenant_id = %(tenant_id)s::bigint AND job_ids = ARRAY[%(id)s::uuid] AND digest <> ''
      AND created_at BETWEEN made.at - interval '1 day' AND made.at + interval '7 days'
"""
#: How far it is. ``pause`` seconds until the next look if something is left.
NOTE = f"""
    WITH seen AS (
        SELECT erasure.id,
               array(SELECT unnest(erasure.blobs || %(found)s::text[])
                     EXCEPT SELECT unnest(%(deleted)s::text[])) AS blobs,
               EXISTS (SELECT FROM jobs WHERE jobs.id = erasure.id)
                   OR EXISTS (SELECT {COPIES}) AS stays
        FROM erasures AS erasure WHERE erasure.id = %(id)s::uuid
    )
    UPDATE erasures AS erasure
    SET blobs = seen.blobs,
        erased_at = CASE WHEN NOT stays AND seen.blobs = '{{}}'
                         THEN coalesce(erasure.erased_at, now()) END,
        due_at = CASE WHEN stays OR seen.blobs <> '{{}}'
                      THEN now() + make_interval(secs => %(pause)s)
                      WHEN requested_at > now() - interval '{AGAIN_SECONDS} seconds'
                      THEN now() + interval '{AGAIN_SECONDS} seconds' END
    FROM seen WHERE erasure.id = seen.id
    RETURNING erasure.requested_at, erasure.erased_at, erasure.blobs
"""
#: An erasure that somebody has locked is being made at the moment.
POSTPONE = """
    UPDATE erasures SET due_at = now() + make_interval(secs => %(pause)s)
    WHERE id IN (SELECT id FROM erasures WHERE id = %(id)s::uuid FOR UPDATE SKIP LOCKED)
"""
#: How long a row that somebody has locked is waited for: there are others.
WAIT_FOR_LOCK = "SET LOCAL lock_timeout = '500ms'"
#: Of each tenant one, then of each another one, and so on: many erasures of one tenant take no
#: turns from others. The newest are looked through too: what has just become due of others is
#: among them, however many of the tenant are older.
FIND_DUE = f"""
    WITH due AS (
        (SELECT id, tenant_id, due_at FROM erasures WHERE due_at <= now()
         ORDER BY due_at LIMIT {MOST_DUE})
        UNION
        (SELECT id, tenant_id, due_at FROM erasures WHERE due_at <= now()
         ORDER BY due_at DESC LIMIT {MOST_DUE})
    ), placed AS (
        SELECT id, tenant_id, due_at,
               row_number() OVER (PARTITION BY tenant_id ORDER BY due_at, id) AS place
        FROM due
    )
    SELECT id::text AS id, tenant_id, place FROM placed
    WHERE place <= {BATCH} AND {STILL_LEADER}
    ORDER BY place, due_at LIMIT {BATCH}
"""
PREPARED_DUE = PreparedStatement("find_due_erasures", FIND_DUE, settings=BY_INDEX)
#: Of those that were erased, or are being, whose they were.
READ_ERASED = """
    SELECT id::text AS id, tenant_id FROM erasures WHERE id = ANY (%(ids)s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class ErasureState:
    """How far an erasure is."""

    requested_at: datetime
    #: None: its run is being stopped, or blobs or copies without an erasure are left.
    erased_at: datetime | None
    #: Blobs to be deleted.
    blobs: tuple[str, ...]


def request_erasure(engine: Engine, tenant_id: int | None, job_id: str) -> ErasureState | None:
    """Erase an application of the tenant, or of any; None if there is none, nor was one."""
    with transaction(engine) as connection:
        row = connection.exec_driver_sql(REQUEST, {"id": job_id, "tenant": tenant_id}).first()
        if row is not None:
            record(connection, Act.APPLICATION_ERASE, job_id, tenant=row.tenant_id)
        return erase_rows(connection, tenant_id, job_id, pause_seconds=0.0)


def continue_erasure(engine: Engine, job_id: str, pause_seconds: float) -> ErasureState | None:
    """Erase what is left of an application whose erasure was requested; StatementTooSlow if a row
    of it is locked."""
    with transaction(engine) as connection:
        connection.exec_driver_sql(WAIT_FOR_LOCK)
        return erase_rows(connection, None, job_id, pause_seconds)


def erase_rows(
    connection: Connection, tenant_id: int | None, job_id: str, pause_seconds: float
) -> ErasureState | None:
    """Remove all rows that may be removed now; None if no erasure was requested."""
    given: dict[str, object] = {"id": job_id, "tenant": tenant_id}
    erasure = connection.exec_driver_sql(LOCK, given).first()
    if erasure is None:
        return None
    given["tenant"] = erasure.tenant_id
    connection.exec_driver_sql(REQUEST_COPIES, given)
    connection.exec_driver_sql(STOP, given)
    job = connection.exec_driver_sql(REMOVE_JOB, given).first()
    found = [row.blob for row in connection.exec_driver_sql(REMOVE_REST, given)]
    if job is not None:
        found.append(job.payload_blob)
        connection.exec_driver_sql(FORGET_KEY, {**given, "created_at": job.created_at})
    named = [blob for blob in found if blob is not None]
    noted = {"id": job_id, "found": named, "deleted": [], "pause": pause_seconds}
    row = connection.exec_driver_sql(NOTE, noted).one()
    return ErasureState(row.requested_at, row.erased_at, tuple(row.blobs))


def note_deleted(engine: Engine, job_id: str, blobs: Sequence[str], pause_seconds: float) -> None:
    """Note that these blobs of an erased application are deleted."""
    noted = {"id": job_id, "found": [], "deleted": list(blobs), "pause": pause_seconds}
    fetch(engine, NOTE, noted)
