"""Hand over: inserts jobs that another cell took in: as queued, scheduled, cancelled or dead.

Called by the scheduler of the cell that took the requests in (`models.cells.intake_jobs`), against
the database of the cell that they are for. All of it is one transaction: dying before its commit
changes nothing here, dying after it leaves a mark for each request, and handing that over again
finds the mark and inserts nothing, whatever became of the jobs meanwhile. Two that do it at once
wait for each other at the mark. Marks are kept as long as jobs are.

A request whose idempotency key was used here before inserts nothing: if it was the same request,
the first one's jobs answer for it; if it was another one, its jobs are inserted dead, with the
reason. For a tenant that is away nothing is inserted (`JobsOfAwayTenants`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import encrypt_text
from models.jobs.admit import (
    ADMIT_KEYED,
    JobsOfAwayTenants,
    key_parameters,
    parameters_of,
    read_keys,
)
from models.jobs.cancel import NOT_ENDED, UPDATE
from models.jobs.states import FailureClass
from models.jobs.submission import (
    ROW_WEIGHT,
    Admitted,
    IdempotencyKey,
    KeyReused,
    Submission,
    SubmissionGroup,
)
from models.store.arrays import moment_array, plain_array, text_array
from models.store.session import execute, fetch, transaction

#: Of a job whose key stands for another request.
REUSED = (
    "Its Idempotency-Key had been used for a different request in the cell that was away when this"
    " one was accepted, so it was not run. It can be replayed."
)

MARK = """
    INSERT INTO transfer_marks (mark) SELECT mark FROM unnest(%(marks)s::text[]) AS new (mark)
    ORDER BY mark
    ON CONFLICT DO NOTHING
    RETURNING mark
"""
FIND_MARKS = """
    SELECT right(mark, 36) AS id FROM transfer_marks WHERE mark = ANY (%(marks)s::text[])
"""
RETIRE_MARKS = """
    DELETE FROM transfer_marks
    WHERE starts_with(mark, %(prefix)s) AND at < now() - make_interval(secs => %(seconds)s)
"""
#: Whether jobs are here, or were until their tenant had them erased.
READ_KNOWN = """
    SELECT id::text AS id FROM jobs WHERE id = ANY (%(ids)s::uuid[])
    UNION SELECT id::text FROM erasures WHERE id = ANY (%(ids)s::uuid[])
"""
#: They were accepted elsewhere, a while ago.
DATE = """
    UPDATE jobs SET created_at = coalesce(taken.created_at, jobs.created_at)
    FROM unnest(%(ids)s::uuid[], %(times)s::timestamptz[]) AS taken (id, created_at)
    WHERE jobs.id = taken.id
"""
CANCEL = f"{UPDATE} WHERE job.id = ANY (%(ids)s::uuid[]) AND job.status::text {NOT_ENDED}"
#: No trigger numbers the end of a row that is born ended. Columns as in ADMIT.
REFUSE = """
    WITH item AS (
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(tenants)s::bigint[], %(types)s::text[], %(pools)s::text[],
            %(payloads)s::text[], %(priorities)s::int[], %(execute_at)s::timestamptz[],
            %(not_after)s::timestamptz[], %(traceparents)s::text[], %(candidates)s::text[],
            %(roles)s::text[], %(dependencies)s::text[], %(blobs)s::text[],
            %(origins)s::uuid[], %(messages)s::text[]
        ) AS item (id, tenant_id, type, pool, payload, priority, execute_at, not_after,
                   traceparent, candidate, role, dependency, payload_blob, resubmitted_from,
                   message)
    ), application AS (
        INSERT INTO applications (id, tenant_id, candidate, role)
        SELECT id, tenant_id, candidate, role FROM item WHERE candidate IS NOT NULL
        ON CONFLICT (id) DO NOTHING
    )
    INSERT INTO jobs (id, tenant_id, type, pool, payload, priority, execute_at, not_after,
                      traceparent, dependency, payload_blob, resubmitted_from, status,
                      finished_at, ended_xid, error_class, error_message)
    SELECT id, tenant_id, type, pool, payload::json, priority, execute_at, not_after,
           traceparent, dependency, payload_blob, resubmitted_from, 'dead', now(), feed_xid(),
           %(error_class)s, message
    FROM item
    ON CONFLICT (id) DO NOTHING
"""


class IntakeRequest(NamedTuple):
    """A request that was taken in while its cell was away, with all that its cell needs."""

    tenant: str
    #: The cell that it is for, as far as is known here.
    cell: str
    submissions: tuple[Submission, ...]
    key: IdempotencyKey | None = None
    #: Large payloads by job, encrypted if anything is: the store's own collector knows no row of
    #: them yet, so they wait in the body.
    blobs: Mapping[str, bytes] = {}
    #: Those of its jobs that were cancelled.
    cancelled: frozenset[str] = frozenset()
    created_at: datetime | None = None

    @property
    def id(self) -> str:
        """Of its first job."""
        return self.submissions[0].id

    @property
    def tenant_id(self) -> int:
        return self.submissions[0].tenant_id

    @property
    def weight(self) -> int:
        """What it adds to a statement, in bytes."""
        payloads = sum(len(item.payload) + ROW_WEIGHT for item in self.submissions)
        return payloads + sum(map(len, self.blobs.values()))


class HandedOver(NamedTuple):
    """What became of a request in its cell."""

    request: IntakeRequest
    #: Whether it was inserted now, and not by an earlier call.
    fresh: bool
    #: Jobs of an earlier request under the same key, which answer for it; empty: its own are there.
    first_ids: tuple[str, ...] = ()


class NotYet(Exception):
    """Nothing was handed over; to be tried again."""


def hand_over(engine: Engine, host: str, requests: Sequence[IntakeRequest]) -> list[HandedOver]:
    """Insert the jobs of these requests into their cell, each once; what became of each.

    ``host``: the cell that took them in. `JobsOfAwayTenants` and `NotYet`: nothing was changed.
    """
    with transaction(engine) as connection:
        marks = [mark_of(host, one) for one in requests]
        new = {
            row.mark
            for row in connection.exec_driver_sql(MARK, {"marks": text_array(sorted(marks))})
        }
        fresh = [one for one, mark in zip(requests, marks, strict=True) if mark in new]
        known = [one for one, mark in zip(requests, marks, strict=True) if mark not in new]
        done = insert_requests(connection, fresh) if fresh else []
        if known:
            earlier = first_requests(connection, [group_of(one) for one in known])
            for place, one in enumerate(known):
                first = earlier.get(place)
                ids = first.ids if isinstance(first, Admitted) and first.repeated else ()
                done.append(HandedOver(one, fresh=False, first_ids=ids))
    return done


def handed_over(engine: Engine, host: str, ids: Collection[str]) -> set[str]:
    """Those of these requests that a cell has, or had, by the ids of their first jobs."""
    marks = text_array(f"{prefix_of(host)}{request_id}" for request_id in ids)
    return {row.id for row in fetch(engine, FIND_MARKS, {"marks": marks})}


def retire_marks(engine: Engine, host: str, seconds: float) -> int:
    """Delete marks that are older than this. To be called when their host has no request left that
    may be handed over again."""
    return execute(engine, RETIRE_MARKS, {"prefix": prefix_of(host), "seconds": seconds})


def prefix_of(host: str) -> str:
    """How the marks of one host begin."""
    return f"intake:{host}:"


def mark_of(host: str, request: IntakeRequest) -> str:
    """Names a request that was handed over."""
    return f"{prefix_of(host)}{request.id}"


def group_of(request: IntakeRequest) -> SubmissionGroup:
    """The request as it is admitted: by the scheduler, not by the express lane."""
    return SubmissionGroup(request.submissions, request.key)


def insert_requests(connection: Connection, requests: Sequence[IntakeRequest]) -> list[HandedOver]:
    """Insert what is new, in a transaction of the caller's."""
    group = [group_of(one) for one in requests]
    keyed = [place for place, entry in enumerate(group) if entry.key is not None]
    parameters = parameters_of(group, False) | key_parameters(group, keyed)
    rows = connection.exec_driver_sql(ADMIT_KEYED, {**parameters, "entries": plain_array(keyed)})
    answered = rows.all()
    if any(row.dispatched is None for row in answered):
        raise JobsOfAwayTenants
    inserted = {row.id for row in answered}
    absent = [place for place, one in enumerate(requests) if one.id not in inserted]
    earlier = first_requests(connection, group, absent)
    check_known(connection, [requests[place] for place in absent if place not in earlier])
    reused = [requests[place] for place in absent if isinstance(earlier.get(place), KeyReused)]
    refuse(connection, [item for one in reused for item in one.submissions])
    aliases = {
        place: first.ids
        for place, first in earlier.items()
        if isinstance(first, Admitted) and first.repeated
    }
    date_and_cancel(connection, [one for place, one in enumerate(requests) if place not in aliases])
    return [
        HandedOver(one, fresh=place not in absent, first_ids=aliases.get(place, ()))
        for place, one in enumerate(requests)
    ]


def first_requests(
    connection: Connection, group: Sequence[SubmissionGroup], places: Sequence[int] | None = None
) -> dict[int, Admitted | KeyReused]:
    """What was admitted under the keys of these entries, by place."""
    asked = range(len(group)) if places is None else places
    keyed = [place for place in asked if group[place].key is not None]
    found = read_keys(connection, group, keyed) if keyed else {}
    return {
        place: outcome
        for place, outcome in found.items()
        if isinstance(outcome, Admitted | KeyReused)
    }


def check_known(connection: Connection, requests: Sequence[IntakeRequest]) -> None:
    """Raise unless these, which were not inserted, are here already."""
    ids = {one.id for one in requests}
    if ids:
        rows = connection.exec_driver_sql(READ_KNOWN, {"ids": plain_array(ids)})
        if ids - {row.id for row in rows}:
            # Their keys were there, and were retired before they could be read.
            raise NotYet


def refuse(connection: Connection, items: Sequence[Submission]) -> None:
    """Insert jobs that will not run: their key stands for another request."""
    if items:
        places = [Place(item.tenant_id, item.id, ContentKind.ERROR) for item in items]
        more = {
            "messages": text_array(encrypt_text(REUSED, place) for place in places),
            "error_class": FailureClass.PERMANENT.value,
        }
        columns = parameters_of([SubmissionGroup(tuple(items))], False)
        connection.exec_driver_sql(REFUSE, {**columns, **more})


def date_and_cancel(connection: Connection, requests: Sequence[IntakeRequest]) -> None:
    """Give the new jobs the time of their request, and cancel those that were cancelled."""
    dated = [(item.id, one.created_at) for one in requests for item in one.submissions]
    if dated:
        ids, times = zip(*dated, strict=True)
        connection.exec_driver_sql(DATE, {"ids": plain_array(ids), "times": moment_array(times)})
    cancelled = sorted(job_id for one in requests for job_id in one.cancelled)
    if cancelled:
        connection.exec_driver_sql(CANCEL, {"ids": plain_array(cancelled)})
