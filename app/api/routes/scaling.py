"""``GET /operator/scaling``: how many workers each pool should have, and why.

As the autoscaler wrote it, about a second ago while a scheduler leads. Flat enough for KEDA's
metrics-api scaler: ``valueLocation: pools.medium.desired``.
"""

from __future__ import annotations

import orjson
from flask import Blueprint, Response

from app.api.auth.access import Access, open_to
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.schemas import operator_answers
from app.reads.times import rfc3339
from models.pools import POOLS

scaling = Blueprint("scaling", __name__)

READ_SCALING = """
    SELECT pool, workers, living, depth, oldest_seconds, utilisation, reason, changed_at,
           updated_at
    FROM desired_workers WHERE pool = ANY (%(pools)s::text[]) ORDER BY pool
"""


@scaling.get("/operator/scaling")
@open_to(Access.OPERATOR)
@described(
    "Workers that each pool should have, and why",
    DeclaredResponse(200, "By pool.", operator_answers.Scaling),
)
def get_scaling() -> Response:
    """Every pool that the autoscaler has looked at."""
    with read_state() as connection:
        rows = connection.exec_driver_sql(READ_SCALING, {"pools": list(POOLS)}).all()
    document = {
        "pools": {
            row.pool: {
                "desired": row.workers,
                "current": row.living,
                "depth": row.depth,
                "oldest_age_seconds": round(row.oldest_seconds, 3),
                "utilisation": round(row.utilisation, 3),
                "reason": row.reason,
                "changed_at": rfc3339(row.changed_at),
                "updated_at": rfc3339(row.updated_at),
            }
            for row in rows
        }
    }
    return Reply(orjson.dumps(document), 200, {"Cache-Control": "no-cache"})
