"""Intake jobs: requests that were taken in for a cell that is away, until they are handed over.

A row is one request, in the database of a cell that is there. Nobody dispatches it: its jobs are no
rows of ``jobs`` yet, but their ids are given out. Its way:

* `keep_group` inserts it. Dying before the commit accepts nothing, and no 202 was sent; writing it
  again after a lost answer changes nothing, because the caller made the ids.
* `cancel_kept` notes jobs that are cancelled, until the handing over has begun.
* `begin_handing_over` marks it: from then on its jobs may be in their cell too, and who reads or
  cancels one asks there first. `models.jobs.hand_over` inserts the jobs there, once.
* `remove_handed_over` deletes it; `keep_alias` keeps it, if an earlier request under the same
  idempotency key answers for it, until `retire_aliases`.

The body is encrypted like a payload, if anything is.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import decrypt_text, digest_matches, encrypt_digest, encrypt_text
from models.jobs.hand_over import IntakeRequest
from models.jobs.ids import BELOW_ALL
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission
from models.leadership import STILL_LEADER
from models.store.arrays import plain_array, text_array
from models.store.session import connect, execute, fetch

#: Jobs that are handed over together, and the bytes of their bodies, unless one request has more.
MOST_JOBS = 500
MOST_BYTES = 16 * 1_048_576
#: Fields of a submission that are times.
TIMES = ("execute_at", "not_after")

COLUMNS = """kept.id::text AS id, kept.job_ids::text[] AS job_ids, kept.tenant, kept.cell,
             kept.body, kept.created_at, kept.cancelled::text[] AS cancelled,
             kept.handed_over_at, kept.alias_of::text[] AS alias_of"""
#: A conflict is a key that was used before, or our own row. In one order, as keys are locked.
KEEP = """
    INSERT INTO intake_jobs (id, job_ids, tenant, tenant_id, cell, key, digest, body)
    SELECT id, job_ids::uuid[], tenant, tenant_id, cell, key, digest, body
    FROM unnest(%(ids)s::uuid[], %(job_ids)s::text[], %(tenants)s::text[], %(tenant_ids)s::bigint[],
                %(cells)s::text[], %(keys)s::text[], %(digests)s::bytea[], %(bodies)s::text[])
        AS new (id, job_ids, tenant, tenant_id, cell, key, digest, body)
    ORDER BY tenant_id, key, id
    ON CONFLICT DO NOTHING
    RETURNING id::text AS id
"""
READ_KEYS = """
    SELECT asked.place, kept.digest, kept.job_ids::text[] AS job_ids, kept.created_at
    FROM unnest(%(places)s::int[], %(tenant_ids)s::bigint[], %(keys)s::text[])
        AS asked (place, tenant_id, key)
    JOIN intake_jobs AS kept ON kept.tenant_id = asked.tenant_id AND kept.key = asked.key
"""
#: By the first job, or as another one of a batch.
FIND = f"""
    SELECT asked.id::text AS asked, {COLUMNS}
    FROM unnest(%(ids)s::uuid[]) AS asked (id) JOIN intake_jobs AS kept ON kept.id = asked.id
    UNION ALL
    SELECT asked.id::text, {COLUMNS}
    FROM unnest(%(ids)s::uuid[]) AS asked (id)
    JOIN intake_jobs AS kept ON cardinality(kept.job_ids) > 1
        AND kept.job_ids @> ARRAY[asked.id] AND kept.id <> asked.id
"""
#: Only before it is handed over: afterwards the job is, or will be, a row of its cell.
CANCEL = """
    UPDATE intake_jobs
    SET cancelled = CASE WHEN %(job_id)s::uuid = ANY (cancelled) THEN cancelled
                         ELSE cancelled || %(job_id)s::uuid END
    WHERE id = %(id)s::uuid AND handed_over_at IS NULL
"""
#: One look into the index for each tenant, however many rows it has.
TENANTS = """
    WITH RECURSIVE walk AS (
        (SELECT tenant FROM intake_jobs ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT next.tenant FROM intake_jobs AS next WHERE next.tenant > walk.tenant
                ORDER BY next.tenant LIMIT 1)
        FROM walk WHERE walk.tenant IS NOT NULL
    )
    SELECT tenant FROM walk
    WHERE EXISTS (SELECT FROM intake_jobs AS kept
                  WHERE kept.tenant = walk.tenant AND kept.alias_of IS NULL)
"""
#: The next ones, as many as fit, whether or not an earlier leader began with them.
NEXT = f"""
    SELECT id::text AS id, tenant_id, cell, key, handed_over_at IS NOT NULL AS begun
    FROM (SELECT waiting.*, sum(cardinality(job_ids)) OVER (ORDER BY id) AS jobs,
                 sum(bytes) OVER (ORDER BY id) AS all_bytes,
                 row_number() OVER (ORDER BY id) AS place
          FROM (SELECT id, job_ids, tenant_id, cell, key, handed_over_at,
                       octet_length(body) AS bytes
                FROM intake_jobs
                WHERE tenant = %(tenant)s AND alias_of IS NULL AND id > %(after)s::uuid
                ORDER BY id LIMIT {MOST_JOBS}) AS waiting) AS next
    WHERE place = 1 OR (jobs <= {MOST_JOBS} AND all_bytes <= {MOST_BYTES})
    ORDER BY next.id
"""
#: A cancellation that is being written is waited for, and returned.
BEGIN = f"""
    UPDATE intake_jobs AS kept
    SET handed_over_at = coalesce(kept.handed_over_at, now()), cell = chosen.cell
    FROM unnest(%(ids)s::uuid[], %(cells)s::text[]) AS chosen (id, cell)
    WHERE kept.id = chosen.id AND kept.alias_of IS NULL AND {STILL_LEADER}
    RETURNING {COLUMNS}, kept.key
"""
REMOVE = "DELETE FROM intake_jobs WHERE id = ANY (%(ids)s::uuid[]) AND alias_of IS NULL"
REMOVE_DELETED = """
    DELETE FROM intake_jobs WHERE tenant = %(tenant)s AND tenant_id = ANY (%(ids)s::bigint[])
"""
ANY_BEGUN = """
    SELECT EXISTS (SELECT FROM intake_jobs WHERE handed_over_at IS NOT NULL AND alias_of IS NULL)
        AS found
"""
COUNT = """
    SELECT tenant_id, count(*) AS requests FROM intake_jobs
    WHERE tenant = %(tenant)s AND alias_of IS NULL GROUP BY tenant_id
"""
#: It keeps its key: a repetition that comes here in another outage gets the same ids.
ALIAS = """
    UPDATE intake_jobs SET alias_of = %(alias_of)s::uuid[], body = ''
    WHERE id = %(id)s::uuid AND alias_of IS NULL
"""
RETIRE = f"""
    DELETE FROM intake_jobs
    WHERE alias_of IS NOT NULL AND {STILL_LEADER}
      AND handed_over_at < now() - make_interval(secs => %(seconds)s)
"""


class WaitingRow(NamedTuple):
    """A row to be handed over, without its body."""

    id: str
    tenant_id: int
    #: The cell that it is for; that may have it, if its handing over has begun.
    cell: str
    key: str | None
    begun: bool


class KeptRow(NamedTuple):
    """A row, as it is looked up by the id of one of its jobs."""

    id: str
    job_ids: tuple[str, ...]
    tenant: str
    cell: str
    body: str
    created_at: datetime
    cancelled: frozenset[str]
    #: When its handing over began.
    handed_over_at: datetime | None
    alias_of: tuple[str, ...] | None

    def alias(self, job_id: str) -> str | None:
        """The job that answers for this one, if an earlier request does."""
        if self.alias_of is None:
            return None
        return self.alias_of[self.job_ids.index(job_id)]


def keep_group(engine: Engine, group: Sequence[IntakeRequest]) -> list[Admitted | KeyReused]:
    """Insert the requests; for each what became of it."""
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(KEEP, parameters_of(group))
        inserted = {row.id for row in rows}
        known = [
            place
            for place, one in enumerate(group)
            if one.key is not None and one.id not in inserted
        ]
        earlier = read_keys(connection, group, known) if known else {}
    if missing := [place for place in known if place not in earlier]:
        # The rows of their keys were there, and were handed over before they could be read.
        again = keep_group(engine, [group[place] for place in missing])
        earlier |= dict(zip(missing, again, strict=True))
    return [
        earlier[place] if place in earlier else Admitted(tuple(item.id for item in one.submissions))
        for place, one in enumerate(group)
    ]


def read_keys(
    connection: Connection, group: Sequence[IntakeRequest], known: Sequence[int]
) -> dict[int, Admitted | KeyReused]:
    """What requests stand for whose key was there already, by their place in the group."""
    asked = {
        "places": plain_array(known),
        "tenant_ids": plain_array(group[place].tenant_id for place in known),
        "keys": text_array(key.text for place in known if (key := group[place].key)),
    }
    found: dict[int, Admitted | KeyReused] = {}
    for row in connection.exec_driver_sql(READ_KEYS, asked):
        one, ids = group[row.place], tuple(row.job_ids)
        if one.key is None or not digest_matches(row.digest, one.key.digest, one.tenant_id):
            found[row.place] = KeyReused()
        else:
            # Our own, if the answer to an earlier statement was lost.
            ours = ids[0] == one.id
            found[row.place] = Admitted(ids, first_at=None if ours else row.created_at)
    return found


def parameters_of(group: Sequence[IntakeRequest]) -> dict[str, str]:
    """The columns of a group."""
    digests = [
        None if one.key is None else f"\\x{encrypt_digest(one.key.digest, one.tenant_id).hex()}"
        for one in group
    ]
    return {
        "ids": plain_array(one.id for one in group),
        "job_ids": text_array(plain_array(item.id for item in one.submissions) for one in group),
        "tenants": text_array(one.tenant for one in group),
        "tenant_ids": plain_array(one.tenant_id for one in group),
        "cells": text_array(one.cell for one in group),
        "keys": text_array(None if one.key is None else one.key.text for one in group),
        "digests": text_array(digests),
        "bodies": text_array(body_of(one) for one in group),
    }


def body_of(request: IntakeRequest) -> str:
    """A request as it is stored. The digest of its key cannot be had from the column, if that is
    encrypted."""
    document = {
        "jobs": [item._asdict() for item in request.submissions],
        "digest": None if request.key is None else request.key.digest.hex(),
        "blobs": {job_id: b64encode(data).decode() for job_id, data in request.blobs.items()},
    }
    place = Place(request.tenant_id, request.id, ContentKind.PAYLOAD)
    return encrypt_text(json.dumps(document, default=datetime.isoformat), place) or ""


def request_of(row: KeptRow, tenant_id: int, key: str | None = None) -> IntakeRequest | None:
    """The request of a row; None if it is of another tenant that had the same name.

    DecryptionError if its encryption key is missing. ``key``: its idempotency key.
    """
    document = json.loads(decrypt_text(row.body, Place(tenant_id, row.id, ContentKind.PAYLOAD)))
    submissions = tuple(submission_of(fields) for fields in document["jobs"])
    if submissions[0].tenant_id != tenant_id:
        return None
    digest = document["digest"]
    return IntakeRequest(
        tenant=row.tenant,
        cell=row.cell,
        submissions=submissions,
        key=None if key is None else IdempotencyKey(key, bytes.fromhex(digest)),
        blobs={job_id: b64decode(data) for job_id, data in document["blobs"].items()},
        cancelled=row.cancelled,
        created_at=row.created_at,
    )


def submission_of(fields: Mapping[str, Any]) -> Submission:
    """A submission as the body has it."""
    given = [name for name in TIMES if fields[name] is not None]
    times = {name: datetime.fromisoformat(fields[name]) for name in given}
    return Submission(**{**fields, **times})


def find_kept(engine: Engine, job_ids: Collection[str]) -> dict[str, KeptRow]:
    """The rows that these jobs are in, by job."""
    rows = fetch(engine, FIND, {"ids": plain_array(job_ids)})
    return {row.asked: kept_row(row) for row in rows}


def kept_row(row: Row[Any]) -> KeptRow:
    """A row of COLUMNS."""
    return KeptRow(
        row.id,
        tuple(row.job_ids),
        row.tenant,
        row.cell,
        row.body,
        row.created_at,
        frozenset(row.cancelled),
        row.handed_over_at,
        None if row.alias_of is None else tuple(row.alias_of),
    )


def cancel_kept(engine: Engine, row: KeptRow, job_id: str) -> bool:
    """Cancel a job of a row; whether that was done before the row was handed over."""
    return execute(engine, CANCEL, {"id": row.id, "job_id": job_id}) > 0


def waiting_tenants(engine: Engine) -> list[str]:
    """The tenants that have rows to be handed over."""
    return [row.tenant for row in fetch(engine, TENANTS)]


def next_waiting(engine: Engine, tenant: str, after: str = BELOW_ALL) -> list[WaitingRow]:
    """The tenant's oldest rows, of those after this one: as many as are handed over together."""
    rows = fetch(engine, NEXT, {"tenant": tenant, "after": after})
    return [WaitingRow._make(row) for row in rows]


def begin_handing_over(
    engine: Engine, cells: Mapping[str, str], epoch: int | None
) -> list[tuple[KeptRow, str | None]]:
    """Rows that are to be handed over to these cells, each with its idempotency key: nobody cancels
    their jobs here any more. None if this process does not lead."""
    asked = {"ids": plain_array(cells), "cells": text_array(cells.values()), "epoch": epoch}
    rows = fetch(engine, BEGIN, asked)
    return sorted((kept_row(row), row.key) for row in rows)


def remove_handed_over(engine: Engine, ids: Iterable[str]) -> int:
    """Delete rows whose jobs are in their cell."""
    return execute(engine, REMOVE, {"ids": plain_array(ids)})


def any_begun(engine: Engine) -> bool:
    """Whether a row waits that somebody began to hand over."""
    return bool(fetch(engine, ANY_BEGUN)[0].found)


def remove_deleted(engine: Engine, tenant: str, ids: Collection[int]) -> int:
    """Delete the rows of tenants of this name that are deleted."""
    return execute(engine, REMOVE_DELETED, {"tenant": tenant, "ids": list(ids)})


def count_waiting(engine: Engine, tenant: str) -> dict[int, int]:
    """How many rows wait of a tenant, by id: an earlier one may have had the same name."""
    return {row.tenant_id: row.requests for row in fetch(engine, COUNT, {"tenant": tenant})}


def keep_alias(engine: Engine, request_id: str, first_ids: Sequence[str]) -> None:
    """An earlier request answers for this one: keep that, and nothing of its body."""
    execute(engine, ALIAS, {"id": request_id, "alias_of": plain_array(first_ids)})


def retire_aliases(engine: Engine, seconds: float, epoch: int | None) -> int:
    """Delete aliases that are older than this: what they name is retired, too."""
    return execute(engine, RETIRE, {"seconds": seconds, "epoch": epoch})
