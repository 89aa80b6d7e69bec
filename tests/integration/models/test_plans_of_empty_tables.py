"""Plans that were made for an emptied table, and are kept while a flood fills it."""

from __future__ import annotations

from typing import Any

import pytest

from app.reads import demand
from app.scheduler.maintenance import forecaster, recorder
from models.pools import POOLS
from models.store.prepared import BY_INDEX, PreparedStatement
from tests.support.database_fixture import DatabaseFixture

EVERY_POOL = {"pools": list(POOLS), "after": [0] * len(POOLS)}


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        (recorder.PREPARED, {**EVERY_POOL, "epoch": 1}),
        (demand.PREPARED, {**EVERY_POOL, "held": [], "capped": [], "free_full": False}),
        (forecaster.PREPARED, {"pool": "medium", "chance": 0.5}),
    ],
)
def test_walks_go_along_the_index_all_the_same(
    database: DatabaseFixture, statement: PreparedStatement, asked: dict[str, Any]
) -> None:
    database.submit()
    database.execute("DELETE FROM jobs")
    database.execute("VACUUM ANALYZE jobs")
    with database.engine.connect() as connection:
        statement.execute(connection, asked)
        explained = statement._execute.removeprefix(BY_INDEX)
        rows = connection.exec_driver_sql(f"EXPLAIN {explained}", asked)
        plan = "\n".join(row[0] for row in rows)
    assert "Index" in plan and "Seq Scan on jobs" not in plan, plan
