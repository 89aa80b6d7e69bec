"""Rows of a tenant that go from a cell that it leaves to another one, besides its jobs.

Each is in one cell at a time, as with jobs (`models.jobs.transfer`): deleted here in an open
transaction, inserted and committed there, then committed here. One that is found in both after a
crash is deleted here. What is added up has a mark in the other cell, written with the sum: what is
found here after a crash was added already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from models.cells.tenant_rows import OF_TENANT, ON_MOVE, OnMove, OwnRows, copied_table
from models.job_counts import FOLD_LOCK, TAKE_LOCK
from models.jobs.erase import FORGET_COPY
from models.jobs.states import JobStatus
from models.jobs.transfer import FIRST_XID, MOVED_SHARD, REPORTED_AGAIN, JobTables
from models.store.arrays import plain_array
from models.store.row_copies import CopiedTable, TextRow
from models.tallies import TallyKind

#: Rows of one transaction.
BATCH = 500

JOB_TABLES = JobTables(
    copied_table("jobs"),
    [
        (copied_table("applications"), "id"),
        (copied_table("attempts"), "job_id"),
        (copied_table("run_logs"), "job_id"),
        (copied_table("checkpoints"), "job_id"),
    ],
)
APPLICATIONS, SCHEDULES = copied_table("applications"), copied_table("schedules")
REPLAYS, ERASURES = copied_table("replays"), copied_table("erasures")
EVENTS = copied_table("events")
#: They get numbers of the cell that they come to.
NEW_EVENTS = copied_table("events", "id")
USAGE, REFUSALS, TALLIES = map(copied_table, ("usage", "refusals", "tallies"))

#: A scored application whose job was retired; the others go with their job.
SCORED = "score IS NOT NULL"
WITHOUT_JOB = f"{SCORED} AND NOT EXISTS (SELECT FROM jobs WHERE jobs.id = applications.id)"
#: Not while the job of its last tick is in flight here, if the next tick has to be left out then.
NOT_RUNNING = """(overlap <> 'skip' OR NOT EXISTS (
    SELECT FROM jobs WHERE jobs.id = schedules.last_job_id
      AND jobs.status::text IN ('scheduled', 'queued', 'dispatched', 'running')))"""
#: Of some jobs, those of last ticks that have to end before the next one.
FIND_LAST_JOBS = """
    SELECT last_job_id::text AS id FROM schedules
    WHERE tenant_id = %(tenant_id)s AND overlap = 'skip' AND last_job_id = ANY (%(ids)s::uuid[])
"""
NOT_ERASED = "NOT EXISTS (SELECT FROM erasures WHERE erasures.id = given.{column})"
#: Schedules of the same name may have been made in two cells, while the placement changed.
FREE_NAME = """CASE WHEN EXISTS (
        SELECT FROM schedules AS other
        WHERE other.tenant_id = given.tenant_id AND other.name = given.name
          AND other.id <> given.id)
    THEN left(given.name, 50) || '-' || right(given.id::text, 8) ELSE given.name END"""
#: The Eraser of the cell that it comes to looks again, at what has come with it.
WRITE_ERASURES = """
    ON CONFLICT (id) DO UPDATE
    SET due_at = now(), blobs = ARRAY(SELECT DISTINCT unnest(known.blobs || excluded.blobs))"""
#: An equal one that runs there begins another round at its end, for the dead letters that came.
WRITE_REPLAYS = """
    ON CONFLICT (tenant_id, digest) WHERE state = 'running' DO UPDATE SET again = true"""
NOT_THERE = "NOT EXISTS (SELECT FROM replays AS there WHERE there.id = given.id)"
EVENT_XID = f"CASE WHEN given.at > now() - {REPORTED_AGAIN} THEN feed_xid() ELSE {FIRST_XID} END"
#: The marks that were not there before.
MARK = """
    INSERT INTO transfer_marks (mark) SELECT unnest(%(marks)s::text[])
    ON CONFLICT DO NOTHING RETURNING mark
"""
FORGET = "DELETE FROM transfer_marks WHERE mark = ANY (%(marks)s::text[])"
FORGET_ALL = """
    DELETE FROM transfer_marks WHERE ctid = ANY (array(
        SELECT ctid FROM transfer_marks WHERE starts_with(mark, %(prefix)s) LIMIT 10000))
"""
ARRIVE = """
    INSERT INTO transfer_marks AS known (mark, number) VALUES (%(mark)s, %(version)s)
    ON CONFLICT (mark) DO UPDATE SET number = excluded.number, at = now()
    WHERE known.number < excluded.number
"""
READ_MARK = "SELECT number FROM transfer_marks WHERE mark = %(mark)s"
#: By tenant; others have the tenant in the middle of a name, and are too short-lived to matter.
TALLIED = [TallyKind.SUBMISSION, TallyKind.IDEMPOTENCY_KEY, TallyKind.STORED_BLOB]

ENDED = [status for status in JobStatus if status.terminal]
READ_COUNTS = f"""
    SELECT pool, {", ".join(f"least(sum({each}), 2000000000)::int AS {each}" for each in ENDED)}
    FROM job_counts WHERE tenant_id = %(tenant_id)s GROUP BY pool ORDER BY pool
"""
#: Of the tenant alone: those of all tenants together stay where they were counted.
ADD_COUNTS = f"""
    WITH counted AS (
        INSERT INTO job_count_deltas (tenant_id, pool, dependency, {", ".join(JobStatus)})
        VALUES (%(tenant_id)s, %(pool)s, '', {
    ", ".join(f"%({each})s" if each.terminal else "0" for each in JobStatus)
})
        RETURNING tenant_id, pool, dependency
    )
    INSERT INTO job_count_keys (tenant_id, pool, dependency) SELECT * FROM counted
    ON CONFLICT DO NOTHING
"""


#: When terms that were copied had been changed, in microseconds by the clock of the cell that they
#: come from. Whether one that was noted before was earlier.
NOTE_COPY = """
    WITH before AS (SELECT number FROM transfer_marks WHERE mark = %(mark)s), noted AS (
        INSERT INTO transfer_marks AS known (mark, number)
        VALUES (%(mark)s, (extract(epoch FROM %(changed_at)s::timestamptz) * 1000000)::bigint)
        ON CONFLICT (mark) DO UPDATE SET number = excluded.number
        RETURNING number
    )
    SELECT before.number < noted.number AS changed FROM before, noted
"""


class MovedTable(NamedTuple):
    """How rows of a table are moved."""

    table: CopiedTable
    put: Callable[[Connection, Sequence[TextRow], str], object]
    #: Of the tenant's rows, those that can go now.
    condition: str = "true"
    #: Only when no job is left that could go: the rows are about jobs.
    after_jobs: bool = False
    #: All of them are in the first cell that admits jobs.
    one_cell: bool = False
    #: Each has the id of a job, and is where that is.
    with_job: bool = False
    #: What is done there when they are gone here.
    forget: Callable[[Connection, Sequence[TextRow], str], object] | None = None


def put_applications(connection: Connection, rows: Sequence[TextRow], _prefix: str) -> object:
    return APPLICATIONS.insert(connection, rows, where=NOT_ERASED.format(column="id"))


def put_schedules(connection: Connection, rows: Sequence[TextRow]) -> object:
    """Those that are not there."""
    return SCHEDULES.insert(
        connection, rows, "ON CONFLICT (id) DO NOTHING", instead={"name": FREE_NAME}
    )


def put_moved_schedules(connection: Connection, rows: Sequence[TextRow], prefix: str) -> object:
    """Those that the move did not put there before: one may have been removed since."""
    marks = {f"{prefix}schedule/{row['id']}": row for row in rows}
    found = connection.exec_driver_sql(MARK, {"marks": list(marks)}).all()
    return put_schedules(connection, [marks[row.mark] for row in found])


def put_replays(connection: Connection, rows: Sequence[TextRow], _prefix: str) -> object:
    return REPLAYS.insert(connection, rows, WRITE_REPLAYS, where=NOT_THERE)


def put_erasures(connection: Connection, rows: Sequence[TextRow], _prefix: str) -> object:
    for row in rows:
        connection.exec_driver_sql(FORGET_COPY, row)
    return ERASURES.insert(connection, rows, WRITE_ERASURES, instead={"due_at": "now()"})


def put_events(connection: Connection, rows: Sequence[TextRow], prefix: str) -> object:
    """Those that are not there, by their number in the cell that they come from."""
    marks = {mark_of(row, prefix): row for row in rows}
    found = connection.exec_driver_sql(MARK, {"marks": list(marks)}).all()
    return NEW_EVENTS.insert(
        connection,
        [marks[row.mark] for row in found],
        instead={"xid": EVENT_XID},
        where=f"given.job_id IS NULL OR {NOT_ERASED.format(column='job_id')}",
    )


def forget_events(connection: Connection, rows: Sequence[TextRow], prefix: str) -> object:
    """The marks of events that cannot come again."""
    marks = {"marks": [mark_of(row, prefix) for row in rows]}
    return connection.exec_driver_sql(FORGET, marks)


def mark_of(event: TextRow, prefix: str) -> str:
    return f"{prefix}event/{event['id']}"


MOVED_SCHEDULES = MovedTable(SCHEDULES, put_moved_schedules, NOT_RUNNING, one_cell=True)
#: In this order. Erasures come last: they then find everything that they are about.
MOVED = (
    MovedTable(APPLICATIONS, put_applications, WITHOUT_JOB),
    MOVED_SCHEDULES,
    MovedTable(EVENTS, put_events, forget=forget_events),
    MovedTable(REPLAYS, put_replays, after_jobs=True),
    MovedTable(ERASURES, put_erasures, after_jobs=True, with_job=True),
)
#: One look into an index each.
FIND_ANY = (
    f"SELECT 1 FROM applications {OF_TENANT} AND {SCORED} LIMIT 1",
    *(f"SELECT 1 FROM {moved.table.name} {OF_TENANT} LIMIT 1" for moved in MOVED[1:]),
)


def take_rows(connection: Connection, moved: MovedTable, tenant_id: int) -> list[TextRow]:
    """Delete the next rows of a tenant that leaves, as part of the caller's transaction."""
    name = moved.table.name
    chosen = f"""ctid = ANY (array(
        SELECT ctid FROM {name} {OF_TENANT} AND {moved.condition} LIMIT {BATCH}))"""
    return moved.table.take(connection, chosen, {"tenant_id": tenant_id})


def any_row(connection: Connection, tenant_id: int) -> bool:
    """Whether a row is left that has to be moved."""
    tables = " UNION ALL ".join(f"({find})" for find in FIND_ANY)
    return connection.exec_driver_sql(tables, {"tenant_id": tenant_id}).first() is not None


def last_jobs(connection: Connection, tenant_id: int, ids: Collection[str]) -> set[str]:
    """Of these jobs, those whose schedule makes no tick before they have ended."""
    asked = {"tenant_id": tenant_id, "ids": plain_array(sorted(ids))}
    return {row.id for row in connection.exec_driver_sql(FIND_LAST_JOBS, asked)}


def take_tallies(connection: Connection, tenant_id: int) -> list[TextRow]:
    """Delete what was counted by tenant and is looked back on for a day."""
    asked = {"kinds": [kind.value for kind in TALLIED], "name": str(tenant_id)}
    condition = "kind = ANY (%(kinds)s::text[]) AND name = %(name)s"
    return TALLIES.take(connection, condition, asked)


class Sums(NamedTuple):
    """What is added up in the cell that a tenant moves to."""

    usage: list[TextRow]
    refusals: list[TextRow]
    #: Ended jobs by pool.
    counts: list[dict[str, Any]]


def take_sums(connection: Connection, tenant_id: int) -> Sums:
    """Delete usage and refusals, and read the counts, when no job is left here."""
    asked = {"tenant_id": tenant_id}
    condition = "tenant_id = %(tenant_id)s::bigint"
    counts = connection.exec_driver_sql(READ_COUNTS, asked).mappings()
    return Sums(
        USAGE.take(connection, condition, asked),
        REFUSALS.take(connection, condition, asked),
        [{**row, "tenant_id": tenant_id} for row in counts],
    )


def write_mark(connection: Connection, mark: str) -> bool:
    """Leave a mark in this cell; whether it was not there."""
    return connection.exec_driver_sql(MARK, {"marks": [mark]}).first() is not None


def note_copy(connection: Connection, rows: OwnRows, prefix: str) -> bool:
    """A tenant's own rows are copied into this cell; whether they changed since the last time."""
    asked = {"mark": f"{prefix}terms", "changed_at": rows["tenants"][0]["changed_at"]}
    return bool(connection.exec_driver_sql(NOTE_COPY, asked).scalar())


def put_tallies(connection: Connection, rows: Sequence[TextRow], prefix: str) -> None:
    """Add what was counted in another cell, unless that was done before."""
    if write_mark(connection, f"{prefix}tallies"):
        TALLIES.add(connection, rows)


def note_arrival(connection: Connection, tenant_id: int, version: int) -> None:
    """The tenant has lived in this cell since a version of its placement."""
    connection.exec_driver_sql(ARRIVE, {"mark": f"lives/{tenant_id}", "version": version})


def read_arrival(connection: Connection, tenant_id: int) -> int:
    """Since which version the tenant has lived in this cell; 0: it was created here."""
    found = connection.exec_driver_sql(READ_MARK, {"mark": f"lives/{tenant_id}"}).scalar()
    return int(found or 0)


def put_sums(connection: Connection, sums: Sums, mark: str) -> None:
    """Add what was used, refused and counted in another cell, unless that was done before."""
    if not write_mark(connection, mark):
        return
    USAGE.add(connection, sums.usage, instead={"shard": f"{MOVED_SHARD}::smallint"})
    REFUSALS.add(connection, sums.refusals)
    for counted in sums.counts:
        connection.exec_driver_sql(ADD_COUNTS, counted)


def forget_marks(connection: Connection, prefix: str) -> bool:
    """Forget some of what was transferred, when the move has ended; whether there was any."""
    return connection.exec_driver_sql(FORGET_ALL, {"prefix": prefix}).rowcount > 0


#: Tables whose rows are removed in batches, and the rest with the tenant. Not those whose rows are
#: moved: one that came late would be lost.
REMOVED = [name for name, what in ON_MOVE.items() if what in (OnMove.COPIED, OnMove.LEFT)]
REMOVE_ROWS = tuple(
    f"""
    DELETE FROM {name} WHERE ctid = ANY (array(
        SELECT ctid FROM {name} {OF_TENANT} LIMIT {BATCH}))
"""
    for name in REMOVED
)
#: As when a tenant is deleted, see `models.tenant_removal`: nobody folds its counts meanwhile.
REMOVE_TENANT = (
    *(f"DELETE FROM {name} {OF_TENANT}" for name in ("usage", "refusals", "tenant_limits")),
    *(f"DELETE FROM job_count_{part} {OF_TENANT}" for part in ("deltas", "sums", "keys")),
    f"DELETE FROM api_keys {OF_TENANT}",
    "DELETE FROM tenants WHERE id = %(tenant_id)s::bigint",
)


def remove_batch(connection: Connection, tenant_id: int) -> int:
    """Remove rows of a tenant that has left, a batch of each table; how many."""
    asked = {"tenant_id": tenant_id}
    return sum(connection.exec_driver_sql(each, asked).rowcount for each in REMOVE_ROWS)


def remove_last_rows(connection: Connection, tenant_id: int) -> bool:
    """Remove a tenant that has left; False: its counts are being folded, try again."""
    if not connection.exec_driver_sql(TAKE_LOCK, {"lock": FOLD_LOCK}).scalar_one():
        return False
    for statement in REMOVE_TENANT:
        connection.exec_driver_sql(statement, {"tenant_id": tenant_id})
    return True
