"""Callers by the copies of tenants in the registry, for keys of a cell that is away.

A process that was started before the outage may know the key already; another one asks here. A
copy is a few seconds old: a key that was made or revoked in the last seconds before the outage is
as it was before. What was read is kept for some seconds, longer while the registry is away too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, Row

from app.errors import Unauthenticated
from app.tenants.directory import Caller, caller_of
from app.tenants.keys import parse_authorization, same_digest
from app.tenants.tenant import TENANT_COLUMNS
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit
from models.store.session import fetch

KEEP_SECONDS = 5.0
#: Keys that are remembered; then the process begins anew.
MOST_KEYS = 100_000

#: The columns of a directory, of rows that are JSON. One look at all copies, however many keys are
#: asked for: only a process that was started during an outage asks at all. The share of a cell is
#: not copied.
READ_KEYS = f"""
    SELECT copy.cell, key.id AS key, key.digest, key.revoked_at IS NOT NULL AS revoked, key.scopes,
           key.expires_at, now() AS now, {TENANT_COLUMNS}
    FROM tenant_copies AS copy,
         jsonb_populate_recordset(NULL::api_keys, copy.rows->'api_keys') AS key,
         jsonb_populate_record(NULL::tenants, copy.rows->'tenants'->0) AS tenant
    WHERE key.id = ANY (%(ids)s)
""".replace(
    "FROM tenant_limits AS limits",
    "FROM jsonb_populate_recordset(NULL::tenant_limits, copy.rows->'tenant_limits') AS limits",
).replace("tenant.share", "coalesce(tenant.share, 1) AS share")


class CopiedCaller(NamedTuple):
    """A caller as the registry has it, and the cell that the copy is of."""

    caller: Caller
    cell: str


class CopiedCallers:
    """The copies that one process has read."""

    def __init__(
        self,
        registry: Engine,
        read_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._read_seconds = read_seconds
        self._clock = clock
        #: By key, with the time until which it is not read again.
        self._known: dict[str, tuple[float, CopiedCaller | None]] = {}
        self._reads: GroupCommit[str, CopiedCaller | None] = GroupCommit(
            self._read, name="copied keys"
        )

    def caller(self, authorization: str) -> Caller | None:
        """The caller whose key is in this header; None if there is no copy of it."""
        found = self.find(authorization)
        return None if found is None else found.caller

    def find(self, authorization: str) -> CopiedCaller | None:
        """The same with the cell; raises if the key is wrong, revoked or has expired."""
        sent = parse_authorization(authorization)
        if sent is None:
            raise Unauthenticated("Authorization must be: Bearer fair_…_…")
        found = self._find(sent.id)
        if found is None:
            return None
        caller = found.caller
        if not same_digest(caller.digest, sent.digest):
            raise Unauthenticated("This API key is not known.")
        if caller.revoked:
            raise Unauthenticated("This API key was revoked.")
        if caller.expires is not None and self._clock() >= caller.expires:
            raise Unauthenticated("This API key has expired.")
        return found

    def _find(self, key: str) -> CopiedCaller | None:
        until, known = self._known.get(key, (0.0, None))
        if self._clock() < until:
            return known
        try:
            return self._reads.submit(key, self._read_seconds)
        except StateStoreError:
            if known is None:
                raise
            return known  # the registry is away too

    def _read(self, keys: Sequence[str]) -> list[CopiedCaller | None]:
        asked_at = self._clock()
        rows: Sequence[Row[Any]] = fetch(self._registry, READ_KEYS, {"ids": list(set(keys))})
        found = {row.key: CopiedCaller(caller_of(row, asked_at), row.cell) for row in rows}
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        until = self._clock() + KEEP_SECONDS
        self._known.update({key: (until, found.get(key)) for key in keys})
        return [found.get(key) for key in keys]
