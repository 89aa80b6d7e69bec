"""Ranks of scored applications: one walk along the ranking for all of a group.

A rank counts the applications above, so it costs a walk down to the lowest score of the group.
To count for each application alone would make a group of 500 cost 500 such walks.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import Connection

from models.store.arrays import plain_array, text_array
from models.store.prepared import PreparedStatement

#: No score is higher: the column has three digits before its point.
ABOVE_ALL = 1000

#: Each score counts only down from the next higher one asked about; the sums are the ranks.
#: Ties share the rank of their first, as on the leaderboard.
READ_RANKS = f"""
    WITH asked AS (
        SELECT tenant_id, role, score, coalesce(
                   lag(score) OVER (PARTITION BY tenant_id, role ORDER BY score DESC),
                   {ABOVE_ALL}) AS higher
        FROM unnest(%(tenants)s::bigint[], %(roles)s::text[], %(scores)s::numeric[])
            AS asked (tenant_id, role, score)
    )
    SELECT asked.tenant_id, asked.role, asked.score, 1 + sum(between_them.applications) OVER (
               PARTITION BY asked.tenant_id, asked.role ORDER BY asked.score DESC) AS rank
    FROM asked CROSS JOIN LATERAL (
        SELECT count(*) AS applications FROM applications AS application
        WHERE application.tenant_id = asked.tenant_id AND application.role = asked.role
          AND application.score > asked.score AND application.score <= asked.higher
    ) AS between_them
"""
PREPARED = PreparedStatement("read_ranks", READ_RANKS)


class ScoreRank(NamedTuple):
    """What a rank depends on: all that share a score share a rank."""

    tenant_id: int
    role: str
    score: Decimal


def read_ranks(connection: Connection, scores: AbstractSet[ScoreRank]) -> dict[ScoreRank, int]:
    """The rank of each."""
    asked = {
        "tenants": plain_array(one.tenant_id for one in scores),
        "roles": text_array(one.role for one in scores),
        "scores": plain_array(str(one.score) for one in scores),
    }
    rows = PREPARED.execute(connection, asked).mappings()
    return {
        ScoreRank(row["tenant_id"], row["role"], row["score"]): int(row["rank"]) for row in rows
    }
