"""Which rows of ``jobs`` somebody else has locked; waits for nobody, unless the table is locked."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from models.jobs.heartbeat import UNLOCKED
from models.store.session import fetch

FIND_LOCKED = f"""
    WITH {UNLOCKED}
    SELECT id::text AS id FROM jobs
    WHERE id = ANY (%(ids)s::uuid[]) AND id NOT IN (SELECT id FROM unlocked)
"""


def find_locked(engine: Engine, ids: Collection[str]) -> set[str]:
    """Those of ``ids`` whose rows are locked now."""
    return {row.id for row in fetch(engine, FIND_LOCKED, {"ids": list(ids)})} if ids else set()
