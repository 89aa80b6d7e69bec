"""Finds the caller of a key in the registry's copies of tenants, while the key's cell is away.

A process that was started before the outage may know the key already; another one asks here. A
copy is a few seconds old: a key that was made or revoked in the last seconds before the outage is
as it was before. What was read is kept for some seconds, longer while the registry is away too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Engine, Row

from app.errors import Unauthenticated
from app.tenants.directory import Caller, caller_of
from app.tenants.keys import parse_authorization, same_digest
from app.tenants.tenant import TENANT_COLUMNS
from models.store.errors import StateStoreError, StateStoreUnavailable
from models.store.group_commit import GroupCommit
from models.store.session import fetch

logger = logging.getLogger(__name__)

KEEP_SECONDS = 5.0
#: A registry that did not answer is not asked for so long.
AWAY_SECONDS = 1.0
#: Keys that are remembered; then the process begins anew.
MOST_KEYS = 100_000

#: The columns of a directory, of rows that are JSON. Keys that nobody has are asked for too, so
#: each is one look into an index. The share of a cell is not copied.
READ_KEYS = f"""
    SELECT copy.cell, key.id AS key, key.digest, key.revoked_at IS NOT NULL AS revoked, key.scopes,
           key.expires_at, now() AS now, {TENANT_COLUMNS}
    FROM unnest(%(ids)s::text[]) AS asked (id)
    JOIN tenant_copies AS copy
        ON copy.rows @> jsonb_build_object(
            'api_keys', jsonb_build_array(jsonb_build_object('id', asked.id))),
    jsonb_populate_recordset(NULL::api_keys, copy.rows->'api_keys') AS key,
    jsonb_populate_record(NULL::tenants, copy.rows->'tenants'->0) AS tenant
    WHERE key.id = asked.id
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
        #: Until when the registry is not asked, because it did not answer.
        self._ask_at = 0.0
        #: By the id of a key, with the time until which it is not read again: two tenants of
        #: different cells may have keys with the same id.
        self._known: dict[str, tuple[float, Sequence[CopiedCaller]]] = {}
        self._reads: GroupCommit[str, Sequence[CopiedCaller]] = GroupCommit(
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
        copied = self._find(sent.id)
        if not copied:
            return None
        fitting = (one for one in copied if same_digest(one.caller.digest, sent.digest))
        found = next(fitting, None)
        if found is None:
            raise Unauthenticated("This API key is not known.")
        caller = found.caller
        if caller.revoked:
            raise Unauthenticated("This API key was revoked.")
        if caller.expires is not None and self._clock() >= caller.expires:
            raise Unauthenticated("This API key has expired.")
        return found

    def _find(self, key: str) -> Sequence[CopiedCaller]:
        until, known = self._known.get(key, (0.0, ()))
        if self._clock() < until:
            return known
        if self._clock() >= self._ask_at:
            try:
                return self._reads.submit(key, self._read_seconds)
            except StateStoreError as error:
                logger.debug("the registry does not answer: %s", error)
                self._ask_at = self._clock() + AWAY_SECONDS
        if not known:
            raise StateStoreUnavailable("the registry is away too")
        return known

    def _read(self, keys: Sequence[str]) -> list[Sequence[CopiedCaller]]:
        asked_at = self._clock()
        rows: Sequence[Row[Any]] = fetch(self._registry, READ_KEYS, {"ids": sorted(set(keys))})
        found: dict[str, list[CopiedCaller]] = {key: [] for key in keys}
        for row in rows:
            found[row.key].append(CopiedCaller(caller_of(row, asked_at), row.cell))
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        until = self._clock() + KEEP_SECONDS
        self._known.update({key: (until, copied) for key, copied in found.items()})
        return [found[key] for key in keys]
