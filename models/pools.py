"""Worker pools as data: adding a pool is one more entry and a worker that serves it.

``FAIRLINE_POOLS`` changes or adds entries without touching code, as JSON:
``{"gpu": {"lease_seconds": 90, "slots": 1, "tries": 2}, "medium": {"lease_seconds": 20}}``.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.config import DatabaseSettings, Pool
from models.plain_settings import plainly, read_settings
from models.slices import parse_queue

BUILT_IN = (
    Pool(
        name="short",
        lease_seconds=10,
        slots=50,
        tries=5,
        refs_per_message=100,
        bound_seconds=1,
        most_seconds=600,
    ),
    Pool(
        name="medium",
        lease_seconds=30,
        slots=10,
        tries=3,
        bound_seconds=60,
        most_seconds=300,
    ),
    Pool(
        name="long",
        lease_seconds=90,
        slots=2,
        tries=2,
        concurrency="prefork",
        progress_seconds=300,
        memory_mb=1024,
    ),
)


def read_pools(changes: Mapping[str, Mapping[str, object]]) -> dict[str, Pool]:
    """The built-in pools with ``changes`` applied and new entries added."""
    entries: dict[str, dict[str, object]] = {pool.name: pool.model_dump() for pool in BUILT_IN}
    for name, change in changes.items():
        entries[name] = {**entries.get(name, {}), **change, "name": name}
    return {name: Pool.model_validate(entry) for name, entry in entries.items()}


#: Every pool of this deployment, by name.
with plainly("pools"):
    POOLS = read_pools(read_settings(DatabaseSettings).pools)


def is_job_queue(name: str) -> bool:
    """Whether the name is that of a pool, or of a slice of one."""
    return parse_queue(name)[0] in POOLS


def lease_interval_sql(column: str) -> str:
    """An SQL expression: how long a lease lasts in the pool that ``column`` names."""
    cases = " ".join(
        f"WHEN '{pool.name}' THEN interval '{pool.lease_seconds:g} seconds'"
        for pool in POOLS.values()
    )
    return f"CASE {column} {cases} ELSE interval '30 seconds' END"
