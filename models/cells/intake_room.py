"""Counts the requests that a cell keeps for other cells, which do not respond."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine

from models.store.arrays import plain_array, text_array
from models.store.session import fetch

COUNT_WAITING = """
    SELECT waiting.jobs, waiting.bytes
    FROM unnest(%(places)s::int[], %(tenants)s::text[]) AS asked (place, tenant),
    LATERAL (SELECT coalesce(sum(cardinality(job_ids)), 0)::bigint AS jobs,
                    coalesce(sum(octet_length(body)), 0)::bigint AS bytes
             FROM intake_jobs AS kept
             WHERE kept.tenant = asked.tenant AND alias_of IS NULL) AS waiting
    ORDER BY asked.place
"""
#: Rows are counted only if the table is large: much of it may be free.
COUNT_BYTES = """
    SELECT CASE WHEN pg_total_relation_size('intake_jobs') <= %(most)s::bigint
                THEN pg_total_relation_size('intake_jobs')
                ELSE (SELECT coalesce(sum(octet_length(body)), 0) FROM intake_jobs) END AS bytes
"""
COUNT_KEPT = """
    SELECT count(*) FILTER (WHERE alias_of IS NULL) AS waiting, count(alias_of) AS aliases
    FROM intake_jobs
"""


class KeptRequests(NamedTuple):
    """The requests of all tenants that a cell keeps."""

    #: To be handed over.
    waiting: int
    #: Their ids stand for jobs of an earlier request with the same key.
    aliases: int


def count_kept(engine: Engine) -> KeptRequests:
    """How many requests of all tenants a cell keeps for other cells."""
    return KeptRequests._make(fetch(engine, COUNT_KEPT)[0])


def count_waiting(engine: Engine, tenants: Sequence[str]) -> list[tuple[int, int]]:
    """How many jobs of each of these tenants have been taken in and not been handed over, and the
    bytes of their requests."""
    asked = {"places": plain_array(range(len(tenants))), "tenants": text_array(tenants)}
    return [(row.jobs, row.bytes) for row in fetch(engine, COUNT_WAITING, asked)]


def count_bytes(engine: Engine, most: int) -> int:
    """How large all requests are that have been taken in: at most that, if it is less than
    ``most``."""
    [row] = fetch(engine, COUNT_BYTES, {"most": most})
    return int(row.bytes)
