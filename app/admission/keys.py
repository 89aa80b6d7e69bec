"""Which idempotency keys were used before: a repetition adds nothing to a line that is full.

Asked only for requests that would be refused otherwise, in groups. What it says may be out of
date a moment later; admitting decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from models.store.arrays import plain_array, text_array
from models.store.group_commit import GroupCommit
from models.store.session import connect

READ_KNOWN = """
    SELECT asked.place
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[], %(keys)s::text[])
        AS asked (place, tenant_id, key)
    JOIN idempotency_keys AS known
        ON known.tenant_id = asked.tenant_id AND known.key = asked.key
"""

#: A tenant and its key.
Asked = tuple[int, str]


class KnownKeys:
    """Looks keys up."""

    def __init__(self, engine: Engine, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._reads: GroupCommit[Asked, bool] = GroupCommit(self._read, name="known keys")

    def is_known(self, tenant_id: int, key: str) -> bool:
        """Whether a request of the tenant's had this key."""
        return self._reads.submit((tenant_id, key), self._timeout_seconds)

    def close(self, timeout: float) -> None:
        """Look no more."""
        self._reads.close(timeout)

    def _read(self, group: Sequence[Asked]) -> list[bool]:
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(
                READ_KNOWN,
                {
                    "places": plain_array(range(len(group))),
                    "tenants": plain_array(tenant_id for tenant_id, _ in group),
                    "keys": text_array(key for _, key in group),
                },
            )
            known = {row.place for row in rows}
        return [place in known for place in range(len(group))]
