"""Dispatch: queued → dispatched under a new lease number; what is too late expires instead.

Called by the scheduler's Dispatcher and by the relief. One statement marks the rows, the messages
follow: dying before its commit changes nothing; dying after it, before the messages are sent,
leaves dispatched rows that the reaper puts back when their lease has run out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Engine, Result

from models.jobs.held_back import AWAY
from models.leadership import STILL_LEADER, ReliefLease
from models.pools import lease_interval_sql, slice_queue
from models.store.arrays import plain_array, text_array
from models.store.prepared import PreparedStatement
from models.store.session import connect

#: One short walk along the index per lane, however long it is. A limit of its own: rows are read
#: and locked as far as the outer one asks for them, but a limit that differs from lane to lane
#: tells the planner nothing, and it would sort a long lane whole.
WALK_LANE = """
                SELECT id, priority FROM jobs
                WHERE status = 'queued' AND pool = %(pool)s::text AND tenant_id = lane.tenant_id
                  AND dependency = lane.dependency
                ORDER BY priority DESC, id
                LIMIT %(most)s::int
                FOR UPDATE SKIP LOCKED"""
#: The same, along the lane's stretches only: see :mod:`app.policy.lane_heads`.
WALK_STRETCHES = """
                SELECT job.* FROM unnest(
                    (%(priorities)s::smallint[])[lane.first : lane.last],
                    (%(from)s::uuid[])[lane.first : lane.last],
                    (%(to)s::uuid[])[lane.first : lane.last]
                ) AS stretch (priority, first, last), LATERAL (
                    SELECT id, priority FROM jobs
                    WHERE status = 'queued' AND pool = %(pool)s::text
                      AND tenant_id = lane.tenant_id AND dependency = lane.dependency
                      AND priority = stretch.priority AND id >= stretch.first
                      AND id <= stretch.last
                    ORDER BY id
                    LIMIT %(most)s::int
                    FOR UPDATE SKIP LOCKED) AS job"""
#: The same for lanes of one stretch, as most are: a call per lane less.
WALK_STRETCH = """
                SELECT id, priority FROM jobs
                WHERE status = 'queued' AND pool = %(pool)s::text AND tenant_id = lane.tenant_id
                  AND dependency = lane.dependency AND priority = lane.priority
                  AND id >= lane.first AND id <= lane.last
                ORDER BY id
                LIMIT %(most)s::int
                FOR UPDATE SKIP LOCKED"""


def mark_statement(condition: str, walk: str, arrays: str = "", columns: str = "") -> str:
    """Inside a tenant higher priority first, then first in, first out, across its lanes.

    Status as text in the update: see CLAIM in claim.py.
    """
    return f"""
    WITH candidate AS (
        SELECT lane.tenant_id, lane.jobs, job.id, job.priority
        FROM (
            SELECT * FROM unnest(%(tenants)s::bigint[], %(lanes)s::text[], %(rooms)s::int[],
                                 %(jobs)s::int[]{arrays})
                AS lane (tenant_id, dependency, room, jobs{columns})
            WHERE {condition} AND tenant_id NOT IN ({AWAY})
        ) AS lane, LATERAL (
            SELECT * FROM ({walk}
            ) AS head LIMIT lane.room
        ) AS job
    ), picked AS (
        SELECT id FROM (
            SELECT id, jobs,
                   row_number() OVER (PARTITION BY tenant_id ORDER BY priority DESC, id) AS place
            FROM candidate) AS placed
        WHERE place <= jobs
    )
    UPDATE jobs AS job
    SET status = CASE WHEN job.not_after < now() THEN 'expired'::job_status
                      ELSE 'dispatched'::job_status END,
        finished_at = CASE WHEN job.not_after < now() THEN now() END,
        lease = job.lease + 1,
        slice = %(slice)s::text,
        dispatched_at = CASE WHEN job.not_after < now() THEN job.dispatched_at ELSE now() END,
        lease_expires_at = CASE WHEN job.not_after < now() THEN NULL
                                ELSE now() + {lease_interval_sql("job.pool")} END
    FROM picked
    WHERE job.id = picked.id AND job.status::text = 'queued'
    RETURNING job.id::text AS id, job.lease, job.type, job.pool, job.tenant_id, job.dependency,
              job.slice, job.priority, job.traceparent, job.status = 'dispatched' AS dispatched
"""


MARK = mark_statement(
    STILL_LEADER, WALK_STRETCHES, ", %(firsts)s::int[], %(lasts)s::int[]", ", first, last"
)
MARK_SINGLE = mark_statement(
    STILL_LEADER,
    WALK_STRETCH,
    ", %(priorities)s::smallint[], %(from)s::uuid[], %(to)s::uuid[]",
    ", priority, first, last",
)
#: Most dispatches of the leader are this one, several per second.
PREPARED = PreparedStatement("mark", MARK_SINGLE)
RELIEVE = mark_statement(ReliefLease.condition, WALK_LANE)

#: A tenant and a dependency.
LaneKey = tuple[int, str]
#: Priority, first and last id of each stretch of a lane.
Stretches = Iterable[tuple[int, str, str]]


class LaneGrant(Protocol):
    """What one tenant may be given: so many jobs in all, and so many of each lane."""

    @property
    def tenant_id(self) -> int: ...
    @property
    def jobs(self) -> int: ...
    @property
    def lanes(self) -> Mapping[str, int]: ...


class Dispatch(NamedTuple):
    """A marked job on its way to the broker."""

    id: str
    lease: int
    type: str
    pool: str
    tenant_id: int = 0
    #: Its lane.
    dependency: str = ""
    #: Queue beside the pool's own; empty if it goes to the shared workers.
    slice: str = ""
    #: The trace it belongs to, as its row keeps it.
    traceparent: str | None = None

    @property
    def queue(self) -> str:
        """Where the message goes."""
        return slice_queue(self.pool, self.slice)


class Marked(NamedTuple):
    """What a mark gave."""

    #: In the order they should be sent: the tenants' jobs in turn, as their numbers are.
    dispatches: list[Dispatch]
    #: Lanes that gave fewer than they were asked for.
    emptied: list[LaneKey]
    #: Of each lane that gave any, the last in its order: priority and id.
    last: dict[LaneKey, tuple[int, str]]


def mark(
    engine: Engine,
    pool: str,
    grants: Sequence[LaneGrant],
    epoch: int,
    slice_name: str = "",
    *,
    heads: Mapping[LaneKey, Stretches] | None = None,
) -> Marked:
    """Mark what each tenant was granted, as far as it is there.

    The leader looks into the stretches of ``heads`` only; the relief has none.
    """
    asked = [(grant, lane, room) for grant in grants for lane, room in grant.lanes.items()]
    statement = RELIEVE
    parameters: dict[str, Any] = {
        "pool": pool,
        "slice": slice_name,
        "epoch": epoch,
        "tenants": plain_array([grant.tenant_id for grant, _, _ in asked]),
        "lanes": text_array([lane for _, lane, _ in asked]),
        "rooms": plain_array([room for _, _, room in asked]),
        "most": max((room for _, _, room in asked), default=0),
        "jobs": plain_array([grant.jobs for grant, _, _ in asked]),
    }
    if heads is not None:
        stretches = [list(heads.get((grant.tenant_id, lane), ())) for grant, lane, _ in asked]
        statement = MARK_SINGLE if all(len(each) == 1 for each in stretches) else MARK
        parameters |= stretch_arrays(stretches)
    with connect(engine) as connection:
        found: Result[*tuple[Any, ...]]
        if statement is MARK_SINGLE:
            found = PREPARED.execute(connection, parameters)
        else:
            found = connection.exec_driver_sql(statement, parameters)
        # Ordered by name once for the whole group: see claim_group.
        rows = found.columns("dispatched", "priority", *Dispatch._fields).all()
    marked = [(dispatched, priority, Dispatch(*values)) for dispatched, priority, *values in rows]
    given = Counter(job.tenant_id for _, _, job in marked)
    by_lane = Counter((job.tenant_id, job.dependency) for _, _, job in marked)
    # A tenant that got all it was granted may have more in any of its lanes.
    emptied = [
        (grant.tenant_id, lane)
        for grant, lane, room in asked
        if given[grant.tenant_id] < grant.jobs and by_lane[grant.tenant_id, lane] < room
    ]
    marked.sort(key=lambda each: (-each[1], each[2]))
    last = {(job.tenant_id, job.dependency): (priority, job.id) for _, priority, job in marked}
    ordered = [job for dispatched, _, job in marked if dispatched]
    return Marked(in_turn(ordered), emptied, last)


def stretch_arrays(stretches: Sequence[Sequence[tuple[int, str, str]]]) -> dict[str, str]:
    """The stretches of all lanes, one after the other, and where those of each lane are."""
    flat = list(chain.from_iterable(stretches))
    ends = list(accumulate(map(len, stretches)))
    return {
        "priorities": plain_array([priority for priority, _, _ in flat]),
        "from": plain_array([first for _, first, _ in flat]),
        "to": plain_array([last for _, _, last in flat]),
        "firsts": plain_array([1 + end - len(of) for end, of in zip(ends, stretches, strict=True)]),
        "lasts": plain_array(ends),
    }


def in_turn(dispatches: Iterable[Dispatch]) -> list[Dispatch]:
    """The tenants' jobs interleaved: of a tenant with twice as many, twice as often.

    The order of each tenant's own jobs is kept.
    """
    listed = list(dispatches)
    totals = Counter(dispatch.tenant_id for dispatch in listed)
    if len(totals) <= 1:
        return listed
    places: Counter[int] = Counter()
    keyed = []
    for dispatch in listed:
        tenant_id = dispatch.tenant_id
        keyed.append(((places[tenant_id] + 0.5) / totals[tenant_id], tenant_id, dispatch))
        places[tenant_id] += 1
    return [dispatch for _, _, dispatch in sorted(keyed, key=itemgetter(0, 1))]
