"""Admit: new → queued, scheduled or, by the express lane, dispatched.

Called by the API's group commit and, for ticks of schedules, by the scheduler. Dying before the
commit accepts nothing, and no 202 was sent; dying after it leaves the rows, and the reaper finds
express references that were not published. Ids are made by the caller, so writing a group again
after a lost answer changes nothing.

A job that comes alone has a statement of its own: `models.jobs.admit_alone`.

For a tenant that is away, as it is placed in another cell, nothing is inserted, not even a key.

An idempotency key is a row: of concurrent requests under one key exactly one inserts it, and only
that one's jobs are inserted. The others then read what it stands for. Every statement takes locks
in one order: keys, lanes, counts, each sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import chain

from sqlalchemy import Connection, Engine

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import digest_matches, encrypt_digest, encrypt_json, key_ring
from models.jobs.held_back import AWAY, DEPENDENCIES_NOT_CLOSED, THROTTLED
from models.jobs.submission import (
    Admitted,
    KeyReused,
    Submission,
    SubmissionGroup,
    TenantAway,
)
from models.pools import lease_interval_sql
from models.store.arrays import moment_array, plain_array, text_array
from models.store.prepared import PreparedStatement
from models.store.session import connect

#: A permission of the scheduler older than this is none.
PERMISSION_SECONDS = 60

#: Neither scheduled for later, nor for a dependency whose circuit is not closed or that has a
#: quota, nor of a tenant that is throttled, free or whose cap it might reach: those are
#: queued. The lane brings ``slots`` jobs in flight at most, so half of the cap must be that many.
#: The same rules are in `models.jobs.admit_alone`.
READY = f"""
    (execute_at IS NULL OR execute_at <= now()) AND express
    AND dependency NOT IN ({DEPENDENCIES_NOT_CLOSED})
    AND dependency NOT IN (SELECT dependency FROM quotas)
    AND (cap IS NULL OR cap >= 2 * (SELECT slots FROM express_lanes AS its
                                    WHERE its.pool = item.pool))
    AND (tenant_id, pool) NOT IN ({THROTTLED})"""

#: Whether nothing may be inserted for an entry.
IS_AWAY = f"tenant_id IN ({AWAY})"
#: Without keys the group is what it is.
NO_KEYS = f"wanted AS (SELECT item.*, {READY} AS ready, {IS_AWAY} AS away FROM item)"
#: Of the entries with a key, those whose key is new. A key twice in one group: the first.
NEW_KEYS = f"""
    key AS (
        SELECT asked.*, known.tenant_id IS NOT NULL AS away
        FROM unnest(%(entries)s::int[], %(key_tenants)s::bigint[], %(keys)s::text[],
                    %(digests)s::bytea[], %(key_placements)s::bigint[])
            AS asked (entry, tenant_id, text, digest, placement)
        LEFT JOIN away_tenants AS known ON known.tenant_id = asked.tenant_id
            AND (known.away OR known.version > asked.placement)
    ), kept AS (
        INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)
        SELECT key.tenant_id, key.text, key.digest, array_agg(item.id ORDER BY item.place)
        FROM key JOIN item ON item.entry = key.entry
        WHERE NOT key.away
        GROUP BY key.entry, key.tenant_id, key.text, key.digest
        ORDER BY key.tenant_id, key.text, key.entry
        ON CONFLICT DO NOTHING
        RETURNING job_ids[1] AS first_id
    ), wanted AS (
        SELECT item.*, {READY} AS ready,
               {IS_AWAY} OR entry IN (SELECT key.entry FROM key WHERE key.away) AS away
        FROM item
        WHERE entry <> ALL (%(entries)s::int[])
           OR entry IN (SELECT key.entry FROM key WHERE key.away)
           OR entry IN (SELECT first.entry FROM kept JOIN item AS first ON first.id = first_id)
    )"""


#: Whether a new row went by the express lane.
SENT = "(status = 'dispatched')"
#: The scheduler lets jobs take the lane ``open``; its credit is checked apart.
LANE_OPEN = f"open.granted_at > now() - interval '{PERMISSION_SECONDS} seconds'"


def admit_statement(keys: str, returned: str) -> str:
    """The statement, with or without idempotency keys; ``returned``: which rows it returns."""
    return f"""
    WITH item AS (
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(tenants)s::bigint[], %(types)s::text[], %(pools)s::text[],
            %(payloads)s::text[], %(priorities)s::int[], %(execute_at)s::timestamptz[],
            %(not_after)s::timestamptz[], %(traceparents)s::text[], %(candidates)s::text[],
            %(roles)s::text[], %(dependencies)s::text[], %(blobs)s::text[],
            %(express_tenants)s::bool[], %(caps)s::int[], %(origins)s::uuid[], %(places)s::int[]
        ) WITH ORDINALITY AS item (id, tenant_id, type, pool, payload, priority, execute_at,
                   not_after, traceparent, candidate, role, dependency, payload_blob, express,
                   cap, resubmitted_from, entry, place)
    ), {keys}, lane AS (
        UPDATE express_lanes AS lane SET credit = lane.credit - asked.jobs
        FROM (
            -- A closed lane is not locked: while there is a queue, processes would wait for
            -- each other's commits. Open ones are, in order.
            SELECT open.pool, asked.jobs
            FROM (SELECT pool, count(*)::int AS jobs FROM wanted
                  WHERE ready AND NOT away GROUP BY pool) AS asked
            JOIN express_lanes AS open ON open.pool = asked.pool
            WHERE %(express)s::bool AND open.credit >= asked.jobs
              AND {LANE_OPEN}
            ORDER BY open.pool
            FOR UPDATE OF open
        ) AS asked
        WHERE lane.pool = asked.pool AND lane.credit >= asked.jobs
        RETURNING lane.pool
    ), born AS (
        SELECT wanted.*,
               CASE WHEN execute_at > now() THEN 'scheduled'::job_status
                    WHEN ready AND pool IN (SELECT pool FROM lane) THEN 'dispatched'::job_status
                    ELSE 'queued'::job_status END AS status
        FROM wanted WHERE NOT away
    ), job AS (
        INSERT INTO jobs (id, tenant_id, type, pool, payload, priority, execute_at, not_after,
                          traceparent, dependency, payload_blob, status, lease, dispatched_at,
                          lease_expires_at, resubmitted_from)
        SELECT id, tenant_id, type, pool, payload::json, priority, execute_at, not_after,
               traceparent, dependency, payload_blob, status, {SENT}::int,
               CASE WHEN {SENT} THEN now() END,
               CASE WHEN {SENT} THEN now() + {lease_interval_sql("pool")} END,
               resubmitted_from
        FROM born
        ON CONFLICT (id) DO NOTHING
        RETURNING id, status
    ), application AS (
        INSERT INTO applications (id, tenant_id, candidate, role)
        SELECT id, tenant_id, candidate, role FROM wanted
        WHERE candidate IS NOT NULL AND NOT away
        ON CONFLICT (id) DO NOTHING
    )
    SELECT id::text AS id, {SENT} AS dispatched FROM job WHERE {returned}
    UNION ALL SELECT id::text, NULL FROM wanted WHERE away
"""


ADMIT = admit_statement(NO_KEYS, SENT)
ADMIT_KEYED = admit_statement(NEW_KEYS, "true")
PREPARED = PreparedStatement("admit", ADMIT)
PREPARED_KEYED = PreparedStatement("admit_keyed", ADMIT_KEYED)

#: What earlier requests under these keys were, and became.
READ_KEYS = """
    SELECT asked.place, key.digest, key.job_ids::text[] AS job_ids, key.created_at
    FROM unnest(%(places)s::int[], %(key_tenants)s::bigint[], %(keys)s::text[])
        AS asked (place, tenant_id, text)
    JOIN idempotency_keys AS key ON key.tenant_id = asked.tenant_id AND key.key = asked.text
"""

#: What an entry became.
Outcome = Admitted | KeyReused | TenantAway


class JobsOfAwayTenants(Exception):
    """Jobs were not inserted, because their tenants are placed in another cell."""


def admit_group(engine: Engine, group: Sequence[SubmissionGroup], express: bool) -> list[Outcome]:
    """Insert the group; for each entry what became of it."""
    parameters = parameters_of(group, express)
    keyed = [place for place, entry in enumerate(group) if entry.key is not None]
    with connect(engine) as connection:
        if keyed:
            parameters["entries"] = plain_array(keyed)
            parameters |= key_parameters(group, keyed)
        rows = (PREPARED_KEYED if keyed else PREPARED).execute(connection, parameters).all()
        dispatched = {row.id for row in rows if row.dispatched}
        away = {row.id for row in rows if row.dispatched is None}
        outcomes: list[Outcome] = [
            TenantAway() if entry.submissions[0].id in away else admitted(entry, dispatched)
            for entry in group
        ]
        if not keyed:
            return outcomes
        answered = {row.id for row in rows}
        known = [place for place in keyed if group[place].submissions[0].id not in answered]
        earlier = read_keys(connection, group, known) if known else {}
    for place, outcome in earlier.items():
        outcomes[place] = outcome
    if missing := [place for place in known if place not in earlier]:
        # Their keys were there, and were old enough to be retired before they could be read.
        again = admit_group(engine, [group[place] for place in missing], express)
        for place, outcome in zip(missing, again, strict=True):
            outcomes[place] = outcome
    return outcomes


def insert_jobs(connection: Connection, jobs: Sequence[Submission]) -> None:
    """Insert jobs as part of a transaction of the caller's; none of them by the express lane.

    `JobsOfAwayTenants` if that is not possible for one of them: then the caller must roll back.
    """
    group = [SubmissionGroup(tuple(jobs))]
    if connection.exec_driver_sql(ADMIT, parameters_of(group, False)).all():
        raise JobsOfAwayTenants


def parameters_of(group: Sequence[SubmissionGroup], express: bool) -> dict[str, object]:
    """The columns of a group, for ADMIT."""
    items = list(chain.from_iterable(entry.submissions for entry in group))
    columns = dict(zip(Submission._fields, zip(*items, strict=True), strict=True))
    return {
        "ids": plain_array(columns["id"]),
        "tenants": plain_array(columns["tenant_id"]),
        "types": often_equal(columns["type"]),
        "pools": often_equal(columns["pool"]),
        "payloads": text_array(map(stored_payload, items) if key_ring() else columns["payload"]),
        "priorities": plain_array(columns["priority"]),
        "execute_at": rare_moments(columns["execute_at"]),
        "not_after": rare_moments(columns["not_after"]),
        "traceparents": often_equal(columns["traceparent"]),
        "candidates": text_array(columns["candidate"]),
        "roles": often_equal(columns["role"]),
        "dependencies": often_equal(columns["dependency"]),
        "blobs": often_equal(columns["payload_blob"]),
        "express_tenants": plain_array(columns["express"]),
        "places": plain_array(
            [place for place, entry in enumerate(group) for _ in entry.submissions]
        ),
        "express": express,
        "caps": rare_numbers(columns["cap"]),
        "origins": often_equal(columns["resubmitted_from"]),
    }


def stored_payload(item: Submission) -> str:
    """Encrypted. That of a blob is null: it says which key the blob was encrypted with."""
    return encrypt_json(item.payload, Place(item.tenant_id, item.id, ContentKind.PAYLOAD))


def often_equal(values: Sequence[str | None]) -> str:
    """An array of texts of which most groups have one only."""
    if values.count(values[0]) < len(values):
        return text_array(values)
    one = text_array(values[:1])[1:-1]
    return "{" + ",".join([one] * len(values)) + "}"


def rare_moments(values: Sequence[datetime | None]) -> str:
    """An array of times of which most groups have none."""
    return moment_array(values) if any(values) else "{" + ",".join(["NULL"] * len(values)) + "}"


def rare_numbers(values: Sequence[int | None]) -> str:
    """An array of numbers of which most groups have none."""
    return plain_array(["NULL" if value is None else value for value in values])


def admitted(entry: SubmissionGroup, dispatched: set[str]) -> Admitted:
    """An entry whose rows are there, some of them born dispatched."""
    if not dispatched:
        return Admitted(tuple([item.id for item in entry.submissions]))
    return Admitted(
        tuple(item.id for item in entry.submissions),
        express=tuple(item for item in entry.submissions if item.id in dispatched),
    )


def key_parameters(group: Sequence[SubmissionGroup], places: Sequence[int]) -> dict[str, str]:
    """Of the entries at ``places``, which have a key: tenants, keys, digests, placements."""
    entries = [group[place] for place in places]
    keys = [entry.key for entry in entries if entry.key is not None]
    tenants = [entry.submissions[0].tenant_id for entry in entries]
    digests = map(encrypt_digest, [key.digest for key in keys], tenants)
    return {
        "key_tenants": plain_array(tenants),
        "keys": text_array([key.text for key in keys]),
        "digests": text_array([f"\\x{digest.hex()}" for digest in digests]),
        "key_placements": plain_array([key.placement for key in keys]),
    }


def read_keys(
    connection: Connection, group: Sequence[SubmissionGroup], known: list[int]
) -> dict[int, Outcome]:
    """What entries stand for whose key was there already, by their place in the group."""
    asked = key_parameters(group, known)
    rows = connection.exec_driver_sql(READ_KEYS, {"places": plain_array(known), **asked}).all()
    found: dict[int, Outcome] = {}
    for row in rows:
        entry, job_ids = group[row.place], tuple(row.job_ids)
        tenant_id = entry.submissions[0].tenant_id
        if entry.key is None or not digest_matches(row.digest, entry.key.digest, tenant_id):
            found[row.place] = KeyReused()
        elif job_ids[0] == entry.submissions[0].id:
            # Our own: the group was written before, and its answer was lost.
            found[row.place] = Admitted(job_ids)
        else:
            found[row.place] = Admitted(job_ids, first_at=row.created_at)
    return found
