"""Run logs: what a run logged and the traceback of what it raised; no status changes.

Written by the statement that settles the run, and, for runs that log while they run, by the
worker's heartbeat: a run that is lost leaves what was written until then. Both under the lease:
a run that lost it writes nothing. Dying before the commit loses what was logged since the last one.

A job keeps those of its last leases only: each lease has one of ``KEPT_RUNS`` places, which it
shares with older ones. So a job that fails for a week takes no more room than one that fails a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import encrypt_json_if_any, encrypt_text, key_ring
from models.jobs.claim import JobRef, ref_arrays
from models.store.arrays import plain_array, text_array
from models.store.session import fetch

#: Leases of a job whose logs are kept.
KEPT_RUNS = 25

#: Writes the logs of the rows of ``held``, which has the fields of a job's id and lease.
WRITE = f"""
    INSERT INTO run_logs AS kept (job_id, place, lease, log, dropped, traceback)
    SELECT held.id, held.lease %% {KEPT_RUNS}, held.lease, said.log::json, said.dropped,
           said.traceback
    FROM unnest(%(logged_ids)s::uuid[], %(logged_leases)s::int[], %(logs)s::text[],
                %(dropped)s::bigint[], %(tracebacks)s::text[])
        AS said (id, lease, log, dropped, traceback)
    JOIN {{held}} AS held ON held.id = said.id AND held.lease = said.lease
    ON CONFLICT (job_id, place) DO UPDATE
    SET lease = excluded.lease, log = excluded.log, dropped = excluded.dropped,
        traceback = excluded.traceback, written_at = now()
"""
#: Of runs that go on. A row that somebody has locked is left to the next heartbeat.
KEEP = f"""
    WITH held AS MATERIALIZED (
        SELECT job.id, job.lease
        FROM unnest(%(logged_ids)s::uuid[], %(logged_leases)s::int[]) AS ref (id, lease)
        JOIN jobs AS job ON job.id = ref.id AND job.lease = ref.lease
            AND job.status::text = 'running' AND job.worker = %(worker)s
        FOR SHARE OF job SKIP LOCKED
    )
    {WRITE.format(held="held")}
    RETURNING job_id::text AS id, lease
"""
READ = """
    SELECT lease, log::text AS log, dropped, traceback, written_at
    FROM run_logs WHERE job_id = %(id)s::uuid ORDER BY lease
"""


class Logged(NamedTuple):
    """What a run has logged so far."""

    #: JSON text: the newest lines; None if there are none.
    log: str | None
    #: Lines before them.
    dropped: int = 0
    traceback: str | None = None
    #: Whose job it is: what is written is encrypted with that tenant's key.
    tenant_id: int | None = None

    @property
    def weight(self) -> int:
        """What it adds to a statement, in characters."""
        return len(self.log or "") + len(self.traceback or "")


def logged_arrays(logged: Sequence[tuple[JobRef, Logged]]) -> dict[str, str]:
    """The parameters of WRITE."""
    refs = ref_arrays(ref for ref, _ in logged)
    if key_ring() is not None:
        logged = [(ref, encrypted(ref, said)) for ref, said in logged]
    return {
        "logged_ids": refs["ids"],
        "logged_leases": refs["leases"],
        "logs": text_array([said.log for _, said in logged]),
        "dropped": plain_array([said.dropped for _, said in logged]),
        "tracebacks": text_array([said.traceback for _, said in logged]),
    }


def encrypted(ref: JobRef, said: Logged) -> Logged:
    """As it is stored."""
    if said.tenant_id is None:
        raise ValueError(f"the tenant of job {ref.id} is not known")
    place = Place(said.tenant_id, ref.id, ContentKind.LOG)
    log = encrypt_json_if_any(said.log, place)
    traceback = encrypt_text(said.traceback, place._replace(kind=ContentKind.TRACEBACK))
    return said._replace(log=log, traceback=traceback)


def keep_logs(engine: Engine, worker: str, logged: Sequence[tuple[JobRef, Logged]]) -> set[JobRef]:
    """Write what running jobs have logged; whose was written."""
    if not logged:
        return set()
    rows = fetch(engine, KEEP, {**logged_arrays(logged), "worker": worker})
    return {JobRef(row.id, row.lease) for row in rows}


def read_logs(connection: Connection, job_id: str) -> dict[int, Row[Any]]:
    """What the runs of a job have logged, by their lease."""
    rows = connection.exec_driver_sql(READ, {"id": job_id})
    return {row.lease: row for row in rows}
