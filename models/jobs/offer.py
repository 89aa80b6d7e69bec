"""Offers: an idle worker runs the next job of a pool that comes alone, without a message.

A worker that has nothing to do writes its name into the pool's express lane. The statement that
admits a job takes the first name out, inserts the row as if that worker had claimed it, and tells
it by PostgreSQL's NOTIFY, which arrives with the commit. Both lock the row of the lane: an offer is
taken once, and one that was withdrawn is not taken any more.

An entry is the worker's name and the channel that it listens on, which nobody else can know: every
login may send and hear everything on a channel that it can name.

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
from models.presence import SERVING
from models.store.session import execute, fetch

#: Payloads up to so many bytes travel in the message, which may have 8,000.
MOST_BYTES = 4000
#: Offers that a lane keeps; those of workers that were killed are the oldest.
MOST_OFFERS = 16
#: Of this process.
SECRET = secrets.token_bytes(16)
#: What the message has of the row, in the order of `told_job`.
COLUMNS = "type, tenant_id, pool, traceparent, created_at, dependency, payload_blob, payload"
#: The worker whose offer is taken from ``asked``, a row of ``express_lanes``; null if there is none
#: that can be trusted.
FIRST_OFFER = f"""(SELECT process.name FROM processes AS process
        WHERE %(give)s::bool AND process.name = split_part(asked.offers[1], ' ', 1)
          AND {SERVING})"""
#: Tells the worker of a new row of ``job``, on the channel of its offer.
TELL = f"""pg_notify((SELECT split_part(offer, ' ', 2) FROM lane),
               (CASE WHEN octet_length(payload::text) <= {MOST_BYTES}
                     THEN json_build_array(id, {COLUMNS})
                     ELSE json_build_array(id, type) END)::text)"""
#: Not to be waited for at the disk: a crash of the server takes back offers that are lost anyway.
OFFER = """
    SET LOCAL synchronous_commit = off;
    UPDATE express_lanes AS lane
    SET offers = (array_remove(lane.offers, %(offer)s) || %(offer)s::text)
                 [greatest(1, cardinality(array_remove(lane.offers, %(offer)s)) - %(most)s):]
    FROM (SELECT pool FROM express_lanes WHERE pool = ANY (%(pools)s::text[])
          ORDER BY pool FOR UPDATE) AS locked
    WHERE lane.pool = locked.pool
    RETURNING lane.pool
"""
WITHDRAW = """
    UPDATE express_lanes AS lane SET offers = array_remove(lane.offers, %(offer)s)
    FROM (SELECT pool FROM express_lanes WHERE %(offer)s = ANY (offers)
          ORDER BY pool FOR UPDATE) AS locked
    WHERE lane.pool = locked.pool
"""
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
    """The entry of a worker of this process."""
    return f"{worker} {channel_of(worker)}"


def offer(engine: Engine, worker: str, pools: Sequence[str]) -> bool:
    """Offer to run a job of each of these pools; whether all of them have an express lane."""
    asked = {"offer": offer_of(worker), "pools": list(pools), "most": MOST_OFFERS - 2}
    return len(fetch(engine, OFFER, asked)) == len(pools)


def withdraw(engine: Engine, worker: str) -> None:
    """Take back what is left of the worker's offers: from here on it is given nothing."""
    execute(engine, WITHDRAW, {"offer": offer_of(worker)})


def read_ours(engine: Engine, worker: str) -> list[GivenJob]:
    """Jobs that run here by their rows."""
    rows = fetch(engine, READ_OURS, {"worker": worker})
    return [GivenJob(JobRef(row.id, row.lease), row.type, cancelled=row.cancelled) for row in rows]


def probe(engine: Engine, worker: str) -> None:
    """Send the worker an empty message, to find out whether it hears any."""
    execute(engine, PROBE, {"channel": channel_of(worker)})


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
