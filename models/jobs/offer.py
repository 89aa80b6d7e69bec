"""Offers: a worker with free slots runs the next jobs of a pool that come alone, without messages.

It writes its name into the pool's express lane, and how many jobs it would run. The statement that
admits a job takes one from the first name and puts that last, inserts the row as if that worker had
claimed it, and tells it by PostgreSQL's NOTIFY, which arrives with the commit. All of them lock the
row of the lane: an offer is taken once, and one that was withdrawn is not taken any more.

An entry is the worker's name, the channel that it listens on, and the number of jobs. Nobody else
can know the channel: every login may send and hear everything on a channel that it can name.

Dying after the commit leaves a running row, whose worker is told, finds it when it listens again,
or is lost: then it is reaped like any other claim. An offer of a worker that is silent or drains is
dropped. The message has what a claim returns; a worker that hears it late asks the row.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Engine

from models.jobs.claim import Claim, JobRef
from models.jobs.submission import Submission
from models.presence import SERVING
from models.store.prepared import SHORT_LOCK_WAIT, PreparedStatement
from models.store.session import execute, fetch

#: Payloads up to so many bytes travel in the message, which may have 8,000.
MOST_BYTES = 4000
#: Offers that a lane keeps; those of workers that were killed are the oldest.
MOST_OFFERS = 16
#: Of this process.
SECRET = secrets.token_bytes(16)
#: The worker whose offer is taken from ``open``, a row of ``express_lanes``; null if there is none
#: that can be trusted.
FIRST_OFFER = f"""(SELECT process.name FROM processes AS process
        WHERE %(give)s::bool AND process.name = split_part(open.offers[1], ' ', 1)
          AND {SERVING})"""
#: What is left of the offers of a lane when one job of the first is taken: that worker is the last
#: then. All of a worker that cannot be trusted are dropped. (Workers of an earlier version write no
#: number: they run one job.)
OFFERS_LEFT = """asked.offers[2:] || CASE
        WHEN asked.worker IS NOT NULL AND split_part(asked.offers[1], ' ', 3) > '1'
        THEN ARRAY[regexp_replace(asked.offers[1], '[0-9]+$', '')
                   || split_part(asked.offers[1], ' ', 3)::int - 1]
        ELSE '{}' END"""
#: Tells the worker of a new row, on the channel of its offer; see `message_about`.
TELL = """pg_notify((SELECT split_part(offer, ' ', 2) FROM lane), %(message_head)s::text
               || coalesce(to_json(created_at)::text || %(message_tail)s::text, ''))"""
NO_MESSAGE = {"message_head": None, "message_tail": None}
#: The offers of all others, in their order. An entry of this worker begins with ``whose``.
OTHERS = """ARRAY (SELECT entry FROM unnest(lane.offers) WITH ORDINALITY AS each (entry, place)
               WHERE NOT starts_with(entry, %(whose)s::text) ORDER BY place)"""
OFFER = f"""
    UPDATE express_lanes AS lane
    SET offers = (SELECT (others || (%(whose)s::text || ' ' || %(jobs)s::text))
                         [greatest(1, cardinality(others) - %(most)s::int):]
                  FROM (SELECT {OTHERS} AS others) AS read)
    FROM (SELECT pool FROM express_lanes WHERE pool = ANY (%(pools)s::text[])
          ORDER BY pool FOR UPDATE) AS locked
    WHERE lane.pool = locked.pool
    RETURNING lane.pool
"""
#: Not to be waited for at the disk: a crash of the server takes back offers that are lost anyway.
#: Nor for long: claims and heartbeats use the same connections.
PREPARED_OFFER = PreparedStatement(
    "offer", OFFER, settings=f"SET LOCAL synchronous_commit = off; {SHORT_LOCK_WAIT}"
)
WITHDRAW = f"""
    UPDATE express_lanes AS lane SET offers = {OTHERS}
    FROM (SELECT pool FROM express_lanes
          WHERE EXISTS (SELECT FROM unnest(offers) AS entry WHERE starts_with(entry, %(whose)s))
          ORDER BY pool FOR UPDATE) AS locked
    WHERE lane.pool = locked.pool
"""
PREPARED_WITHDRAW = PreparedStatement("withdraw", WITHDRAW, settings=SHORT_LOCK_WAIT)
#: All that a worker has, given or claimed.
READ_OURS = """
    SELECT id::text AS id, lease, type, cancel_requested_at IS NOT NULL AS cancelled
    FROM jobs WHERE status = 'running' AND worker = %(worker)s
"""
PROBE = "SELECT pg_notify(%(channel)s, '')"


class GivenJob(NamedTuple):
    """A job that runs here by its row."""

    ref: JobRef
    type: str
    #: None if the row has to be asked.
    claim: Claim | None = None
    #: It is not to begin any more.
    cancelled: bool = False


def channel_of(worker: str) -> str:
    """Where a worker of this process listens."""
    return f"fairline_{hashlib.sha256(SECRET + worker.encode()).hexdigest()[:40]}"


def offer_of(worker: str) -> str:
    """How an entry of a worker of this process begins."""
    return f"{worker} {channel_of(worker)}"


def offer(engine: Engine, worker: str, pools: Sequence[str], jobs: int = 1) -> bool:
    """Offer to run so many jobs of each of these pools, in place of what was offered before;
    whether all of them have an express lane."""
    asked = {"whose": offer_of(worker), "jobs": str(jobs), "pools": list(pools)}
    return len(fetch(engine, PREPARED_OFFER, {**asked, "most": MOST_OFFERS - 2})) == len(pools)


def withdraw(engine: Engine, worker: str) -> None:
    """Take back what is left of the worker's offers: from here on it is given nothing."""
    execute(engine, PREPARED_WITHDRAW, {"whose": offer_of(worker)})


def read_ours(engine: Engine, worker: str) -> list[GivenJob]:
    """Jobs that run here by their rows."""
    rows = fetch(engine, READ_OURS, {"worker": worker})
    return [GivenJob(JobRef(row.id, row.lease), row.type, cancelled=row.cancelled) for row in rows]


def probe(engine: Engine, worker: str) -> None:
    """Send the worker an empty message, to find out whether it hears any."""
    execute(engine, PROBE, {"channel": channel_of(worker)})


def message_about(item: Submission, payload: str) -> dict[str, str | None]:
    """The message to the worker, before and after the time of creation, which only the database
    knows. With a large payload: id and type only. Workers of the previous version read it too, so
    the order is fixed: see `told_job`."""
    if len(payload.encode()) > MOST_BYTES:
        return {"message_head": json.dumps([item.id, item.type]), "message_tail": None}
    head = json.dumps([item.id, item.type, item.tenant_id, item.pool, item.traceparent])
    tail = json.dumps([item.dependency, item.payload_blob])
    return {"message_head": f"{head[:-1]},", "message_tail": f",{tail[1:-1]},{payload}]"}


def told_job(message: str) -> GivenJob:
    """The job that a message tells of."""
    job_id, job_type, *values = json.loads(message)  # as psycopg2 reads the columns of a row
    ref = JobRef(job_id, 1)
    if not values:
        return GivenJob(ref, job_type)
    tenant_id, pool, traceparent, created_at, dependency, blob, payload = values
    claim = Claim(
        ref,
        tenant_id,
        job_type,
        pool,
        attempt=0,
        deferrals=0,
        crashes=0,
        replays=0,
        traceparent=traceparent,
        created_at=datetime.fromisoformat(created_at),
        payload=payload,
        payload_blob=blob,
        dependency=dependency,
        wait_seconds=0.0,
    )
    return GivenJob(ref, job_type, claim)
