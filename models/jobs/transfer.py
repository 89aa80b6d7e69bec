"""Transfer: a job that is not in flight goes to another cell, with all rows that belong to it.

Called by the runner of a move (`models.cells.move_steps`), for a tenant that is away in the cell
that it leaves: nothing is admitted or dispatched there. The rows are deleted in an open transaction
of that cell, inserted in the other one, committed there, and only then committed here. Dying before
the first commit changes nothing. Dying between the two leaves the job in both cells: here it is not
dispatched, and the next run finds it in the other cell and deletes it here. So a job is never in
neither of them, and can be dispatched in one at most.

While it is in both, somebody may have cancelled, discarded or replayed the one that is deleted: the
other one follows, see `FOLLOW` and `OUTDATED`. One that was erased in the other cell stays erased.

A job that is dispatched or running stays until it has ended or is queued again. A message of a job
that has left finds no row, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from models.jobs.cancel import NOT_ENDED, UPDATE
from models.jobs.ids import ABOVE_ALL
from models.jobs.states import JobStatus
from models.store.arrays import plain_array
from models.store.row_copies import CopiedTable, TextRow
from models.store.session import fetch

#: Jobs of one transaction, and bytes of their rows as they are stored.
BATCH = 500
MOST_BYTES = 8_000_000
#: What was used in other cells has a shard of its own: the fair share of this cell does not count
#: it. The others are 0 to 15, see `models.jobs.settle`.
MOVED_SHARD = 16
#: Entries of a feed that are so young are reported again by the cell that they come to: a reader
#: may not have seen them. Older ones are before everything that the cell itself reports.
REPORTED_AGAIN = "interval '1 hour'"
FIRST_XID = "'1'::xid8"

IN_FLIGHT = "IN ('dispatched', 'running')"
#: As it is stored: of what is compressed or apart from its row, nothing is read.
SIZE = """500 + pg_column_size(job.payload) + coalesce(pg_column_size(job.result), 0) + coalesce((
               SELECT sum(pg_column_size(log) + coalesce(pg_column_size(traceback), 0))
               FROM run_logs WHERE job_id = job.id), 0) + coalesce((
               SELECT pg_column_size(state) FROM checkpoints WHERE job_id = job.id), 0) AS bytes"""
#: Those that wait first, in any order: in the other cell they have their places in the queue again.
CHOOSE_QUEUED = f"""
    SELECT job.id::text AS id, {SIZE} FROM jobs AS job
    WHERE job.status = 'queued' AND job.pool = ANY (%(pools)s::text[])
      AND job.tenant_id = %(tenant_id)s
    LIMIT {BATCH}
    FOR UPDATE OF job SKIP LOCKED
"""
#: The youngest first: what is scheduled or just ended is asked for more often. Status as text, so
#: that only the index of the tenant's jobs fits.
CHOOSE_REST = f"""
    SELECT job.id::text AS id, {SIZE} FROM jobs AS job
    WHERE job.tenant_id = %(tenant_id)s AND NOT job.status::text {IN_FLIGHT}
      AND job.id < %(before)s::uuid
    ORDER BY job.tenant_id DESC, job.id DESC LIMIT {BATCH}
    FOR UPDATE OF job SKIP LOCKED
"""
COUNT_LEFT = f"""
    SELECT count(*) FILTER (WHERE status::text {IN_FLIGHT}) AS in_flight, count(*) AS jobs FROM (
        SELECT status FROM jobs WHERE tenant_id = %(tenant_id)s LIMIT %(most)s) AS found
"""
HAS_JOBS = "SELECT EXISTS (SELECT FROM jobs) AS found"
#: Those of the batch that the other cell has, or has erased.
FIND_KNOWN = """
    SELECT id::text AS id, false AS erased FROM jobs WHERE id = ANY (%(ids)s::uuid[])
    UNION ALL SELECT id::text, true FROM erasures WHERE id = ANY (%(ids)s::uuid[])
"""
#: A dead letter that was replayed or discarded in the cell that it left, after it had arrived.
OUTDATED = f"""
    DELETE FROM jobs AS job
    USING unnest(%(ids)s::uuid[], %(statuses)s::text[], %(replays)s::int[])
        AS given (id, status, replays)
    WHERE job.id = given.id AND NOT job.status::text {NOT_ENDED}
      AND (job.replays < given.replays
           OR job.replays = given.replays AND job.status::text = 'dead'
              AND given.status = 'cancelled')
    RETURNING job.id::text AS id
"""
#: One whose cancellation was requested there.
FOLLOW = f"""
    {UPDATE}
    WHERE job.id = ANY (%(cancelled)s::uuid[]) AND job.status::text {NOT_ENDED}
      AND job.cancel_requested_at IS NULL
"""
#: Ends have a new number: those of another cell mean nothing in the feed of this one.
ENDED_XID = f"""CASE WHEN given.ended_xid IS NULL THEN NULL
                     WHEN given.finished_at > now() - {REPORTED_AGAIN} THEN feed_xid()
                     ELSE {FIRST_XID} END"""
#: Triggers count what is inserted. An end was counted where it happened, and is taken back here.
UNCOUNT = f"""
        INSERT INTO job_count_deltas (tenant_id, pool, dependency, {", ".join(JobStatus)})
        SELECT coalesce(tenant_id, 0), pool, coalesce(dependency, ''), {
    ", ".join(
        f"-count(*) FILTER (WHERE status = '{status}')" if status.terminal else "0"
        for status in JobStatus
    )
}
        FROM inserted WHERE NOT status::text {NOT_ENDED}
        GROUP BY GROUPING SETS ((tenant_id, pool), (pool, dependency))"""
#: An erasure that was finished here looks again: at this job, or at one that was made of it.
ERASE_AGAIN = """
    UPDATE erasures SET due_at = now()
    WHERE id = ANY (%(ids)s::uuid[]) OR id = ANY (%(origins)s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class JobTables:
    """The tables of a job, with their columns."""

    jobs: CopiedTable
    #: With the column that holds the id of the job.
    others: Sequence[tuple[CopiedTable, str]]


@dataclass(frozen=True, slots=True)
class JobRows:
    """Jobs on their way, and by table the rows that belong to them."""

    jobs: list[TextRow]
    others: list[list[TextRow]]
    #: Of jobs that do not wait, the last one in their order.
    last: str | None = None

    def of(self, ids: set[str], tables: JobTables) -> JobRows:
        """Those of some jobs."""
        columns = [column for _, column in tables.others]
        return JobRows(
            [row for row in self.jobs if row["id"] in ids],
            [
                [row for row in rows if row[column] in ids]
                for column, rows in zip(columns, self.others, strict=True)
            ],
        )


@dataclass(frozen=True, slots=True)
class JobsLeft:
    """Jobs of a tenant in a cell that it leaves, up to a bound."""

    jobs: int
    in_flight: int


def take_jobs(
    connection: Connection,
    tenant_id: int,
    pools: Sequence[str],
    tables: JobTables,
    before: str | None = None,
) -> JobRows:
    """Delete the next jobs of a tenant that leaves, as part of the caller's transaction.

    ``before``: of those that do not wait, only ones behind the last of an earlier call. What was
    deleted is in the index for as long as some transaction is open, and would be walked over again.
    """
    asked = {"tenant_id": tenant_id, "pools": list(pools), "before": before or ABOVE_ALL}
    queued = connection.exec_driver_sql(CHOOSE_QUEUED, asked).all()
    found = queued or connection.exec_driver_sql(CHOOSE_REST, asked).all()
    chosen: list[str] = []
    size = 0
    for row in found:
        size += row.bytes
        if chosen and size > MOST_BYTES:
            break
        chosen.append(row.id)
    if not chosen:
        return JobRows([], [[] for _ in tables.others])
    ids = {"ids": plain_array(chosen)}
    jobs = tables.jobs.take(connection, "id = ANY (%(ids)s::uuid[])", ids)
    return JobRows(
        jobs,
        [
            table.take(connection, f"{column} = ANY (%(ids)s::uuid[])", ids)
            for table, column in tables.others
        ],
        None if queued else chosen[-1],
    )


def put_jobs(connection: Connection, rows: JobRows, tables: JobTables) -> None:
    """Insert jobs that come from another cell, as part of the caller's transaction."""
    ids = {str(row["id"]) for row in rows.jobs}
    fresh = ids - _known(connection, rows)
    inserted = rows.of(fresh, tables)
    if inserted.jobs:
        statement = f"""
            WITH inserted AS (
                INSERT INTO jobs ({tables.jobs.columns})
                SELECT {tables.jobs.values({"ended_xid": ENDED_XID})} FROM {tables.jobs.given}
                ORDER BY given.id
                ON CONFLICT (id) DO NOTHING
                RETURNING tenant_id, pool, dependency, status
            ), uncounted AS ({UNCOUNT})
            SELECT count(*) FROM inserted"""
        connection.exec_driver_sql(statement, tables.jobs.parameters(inserted.jobs))
    for (table, _), others in zip(tables.others, inserted.others, strict=True):
        table.insert(connection, others)
    origins = {row["resubmitted_from"] for row in inserted.jobs} - {None}
    again = {"ids": plain_array(sorted(ids)), "origins": plain_array(sorted(map(str, origins)))}
    connection.exec_driver_sql(ERASE_AGAIN, again)


def _known(connection: Connection, rows: JobRows) -> set[str]:
    """Jobs that are not to be inserted: they are here, and as they should be, or were erased."""
    asked = {"ids": plain_array(sorted(str(row["id"]) for row in rows.jobs))}
    found = connection.exec_driver_sql(FIND_KNOWN, asked).all()
    if not found:
        return set()
    known = {row.id for row in found}
    there = [row for row in rows.jobs if row["id"] in known]
    outdated = connection.exec_driver_sql(
        OUTDATED,
        {
            "ids": plain_array([str(row["id"]) for row in there]),
            "statuses": plain_array([str(row["status"]) for row in there]),
            "replays": plain_array([str(row["replays"]) for row in there]),
        },
    )
    again = {row.id for row in outdated} - {row.id for row in found if row.erased}
    cancelled = [str(row["id"]) for row in there if row["cancel_requested_at"] is not None]
    connection.exec_driver_sql(FOLLOW, {"cancelled": plain_array(cancelled)})
    return known - again


def find_known(engine: Engine, ids: Collection[str]) -> set[str]:
    """Those of these jobs that a cell has, or has erased."""
    return {row.id for row in fetch(engine, FIND_KNOWN, {"ids": plain_array(sorted(ids))})}


def count_left(connection: Connection, tenant_id: int, most: int = BATCH) -> JobsLeft:
    """The tenant's jobs that are still in this cell, up to ``most``."""
    row = connection.exec_driver_sql(COUNT_LEFT, {"tenant_id": tenant_id, "most": most}).one()
    return JobsLeft(row.jobs, row.in_flight)


def has_jobs(engine: Engine) -> bool:
    """Whether a cell has any job."""
    return bool(fetch(engine, HAS_JOBS)[0].found)
