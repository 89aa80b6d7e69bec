"""The directory: a cache of API keys and tenants, one per process.

A key that is not cached is read, together with others that come at the same time; one that does not
exist is remembered for a moment, so that a flood of them is a few statements per second. Once per
second one statement reads what changed since: tenants, their limits, revoked keys.

Guarantees: a new key works at once; a revoked one is refused about a second after its revocation,
an expired one at once; a tenant's limits are as fresh. While the state store is away, cached keys
go on working until they expire, revocations wait and unknown keys cannot be checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from sqlalchemy import Engine, Row

from app.errors import Unauthenticated
from app.repeated import BackgroundLoop
from app.tenants.key_uses import KeyUses
from app.tenants.keys import parse_authorization, same_digest
from app.tenants.scopes import ALL_SCOPES, Scope, scopes_of
from app.tenants.tenant import TENANT_COLUMNS, TenantProfile, tenant_of
from models.store.group_commit import GroupCommit
from models.store.session import fetch

REFRESH_SECONDS = 1.0
#: All known keys are read again: a database whose clock was set back hides changes.
SWEEP_SECONDS = 60.0
#: How long a key that does not exist is not read again, and how many such are remembered.
UNKNOWN_SECONDS = 1.0
MOST_UNKNOWN = 10_000
#: How long ``on_ended`` is told of an expired key.
TOLD_SECONDS = 30.0

READ_KEYS = f"""
    SELECT key.id AS key, key.digest, key.revoked_at IS NOT NULL AS revoked, key.scopes,
           key.expires_at, now() AS now, {TENANT_COLUMNS}
    FROM unnest(%(ids)s::text[]) AS asked (id)
    JOIN api_keys AS key ON key.id = asked.id
    LEFT JOIN tenants AS tenant ON tenant.id = key.tenant_id
"""

READ_NAMED = f"""
    SELECT now() AS now, {TENANT_COLUMNS} FROM tenants AS tenant
    WHERE tenant.name = ANY (%(names)s)
"""

#: The overlap is longer than a statement may take: a change that is dated before the last read
#: and committed after it is seen by the next.
READ_CHANGES = f"""
    SELECT now() AS now,
           (SELECT json_agg(changed) FROM (
                SELECT {TENANT_COLUMNS} FROM tenants AS tenant
                WHERE tenant.changed_at > %(seen)s::timestamptz - interval '30 seconds')
            AS changed) AS changed,
           (SELECT array_agg(key.id) FROM api_keys AS key
            WHERE key.revoked_at > %(seen)s::timestamptz - interval '30 seconds') AS revoked
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a tenant or an operator."""

    #: Short part of the key; empty for a call without one. Of an operator who signed in by OpenID
    #: Connect: ``oidc:`` and the subject.
    key: str
    digest: bytes
    #: None: an operator.
    tenant: TenantProfile | None
    revoked: bool = False
    scopes: frozenset[Scope] = ALL_SCOPES
    #: When the key expires, by the database's clock and by the directory's; None: never.
    expires_at: datetime | None = None
    expires: float | None = None
    #: Of somebody without a key; that of a key is in its row.
    name: str | None = None


class Callers(Protocol):
    """Finds callers: in one database, or in those of all cells."""

    def caller(self, authorization: str) -> Caller:
        """The caller whose key is in this header."""

    def of_id(self, key: str) -> Caller:
        """The caller with the key of this id, for whom a session vouches."""

    def keyless(self, name: str) -> Caller | None:
        """A caller without a key that acts as the tenant of that name."""


class Directory:
    """The keys and tenants that one process has read."""

    def __init__(
        self,
        engine: Engine,
        read_seconds: float,
        *,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._read_seconds = read_seconds
        self._clock = clock
        #: Replaced entry by entry, never changed in place: readers need no lock.
        self._callers: dict[str, Caller] = {}
        #: Callers without a key, by the tenant's name.
        self._keyless: dict[str, Caller] = {}
        #: Keys that do not exist, and until when that is assumed; oldest first.
        self._unknown: dict[str, float] = {}
        #: The database's time of the last read of changes.
        self._seen: datetime | None = None
        self._sweep_at = 0.0
        self._uses = KeyUses(engine, clock)
        #: Keys that will expire or did so a moment ago, and when.
        self._expiring: dict[str, float] = {}
        self._key_reads: GroupCommit[str, Caller | None] = GroupCommit(
            self._look_up_keys, name="keys"
        )
        self._name_reads: GroupCommit[str, Caller | None] = GroupCommit(
            self._look_up_names, name="tenants"
        )
        away = "keys and limits stay as they are known"
        self._refresher = BackgroundLoop(self.refresh, refresh_seconds, "directory", away=away)
        self.close = self._refresher.close
        #: Called at every refresh with the keys that were revoked or expired a moment ago: also
        #: the same again, so that what was begun meanwhile with such a key ends too.
        self.on_ended: Callable[[Collection[str]], None] = lambda keys: None

    def caller(self, authorization: str) -> Caller:
        """The caller whose key is in this header."""
        sent = parse_authorization(authorization)
        if sent is None:
            raise Unauthenticated("Authorization must be: Bearer fair_…_…")
        found = self._callers.get(sent.id)
        if found is None and self._clock() >= self._unknown.get(sent.id, -math.inf):
            found = self._key_reads.submit(sent.id, self._read_seconds)
        if found is None or not same_digest(found.digest, sent.digest):
            raise Unauthenticated("This API key is not known.")
        return self._valid(found)

    def look_up(self, keys: Sequence[str]) -> list[Caller | None]:
        """The callers with the keys of these ids, valid or not; None: there is no such key.

        That there is none is not remembered: the key of a tenant that moves here comes with it.
        """
        unread = {key for key in keys if key not in self._callers}
        if unread:
            self._read_keys(unread)
        return [self._callers.get(key) for key in keys]

    def cached(self, authorization: str) -> Caller | None:
        """The caller whose key is in this header, if it is known without a read."""
        sent = parse_authorization(authorization)
        found = None if sent is None else self._callers.get(sent.id)
        if sent is None or found is None:
            return None
        if not same_digest(found.digest, sent.digest):
            raise Unauthenticated("This API key is not known.")
        return self._valid(found)

    def of_id(self, key: str) -> Caller:
        """The caller with the key of this id, for whom a session vouches."""
        found = self._callers.get(key) or self._key_reads.submit(key, self._read_seconds)
        if found is None:
            raise Unauthenticated("This API key is not known.")
        return self._valid(found)

    def _valid(self, found: Caller) -> Caller:
        if found.revoked:
            raise Unauthenticated("This API key was revoked.")
        if found.expires is not None and self._clock() >= found.expires:
            raise Unauthenticated(f"This API key expired at {found.expires_at:%Y-%m-%d %H:%M:%SZ}.")
        self._uses.used.add(found.key)
        return found

    def keyless(self, name: str) -> Caller | None:
        """A caller without a key that acts as the tenant of that name."""
        found = self._keyless.get(name)
        return found if found is not None else self._name_reads.submit(name, self._read_seconds)

    def refresh(self) -> None:
        """Read what changed since the last time, and write which keys were used."""
        if self._seen is None:
            return  # nothing is cached, so nothing can be out of date
        self._tell_of_expired()
        [row] = fetch(self._engine, READ_CHANGES, {"seen": self._seen})
        tenants = {tenant.id: tenant for tenant in map(tenant_of, row.changed or ())}
        for callers in (self._callers, self._keyless) if tenants else ():
            for place, known in list(callers.items()):
                if known.tenant is not None and known.tenant.id in tenants:
                    callers[place] = replace(known, tenant=tenants[known.tenant.id])
        if row.revoked:
            for key in row.revoked:
                if (caller := self._callers.get(key)) is not None and not caller.revoked:
                    self._callers[key] = replace(caller, revoked=True)
            self.on_ended(frozenset(row.revoked))
        self._seen = row.now
        if self._clock() >= self._sweep_at:
            self._sweep()
        self._uses.write()

    # All that follows runs in a thread of a group or in the refresher. These may overtake each
    # other: what an overtaken read put back is put right by the next refresh's overlap.

    def _look_up_keys(self, keys: Sequence[str]) -> list[Caller | None]:
        found = self._read_keys(set(keys))
        forget = self._clock() + UNKNOWN_SECONDS
        for key in keys:
            self._unknown.pop(key, None)
            if key not in found:
                self._unknown[key] = forget
        while len(self._unknown) > MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        return [found.get(key) for key in keys]

    def _read_keys(self, keys: Collection[str]) -> dict[str, Caller]:
        asked_at = self._clock()
        rows = fetch(self._engine, READ_KEYS, {"ids": list(keys)})
        found = {row.key: caller_of(row, asked_at) for row in rows}
        self._callers.update(found)
        for key, caller in found.items():
            if caller.expires is not None:
                self._expiring[key] = caller.expires
        if rows:
            self._keep_fresh(rows[0].now)
        return found

    def _look_up_names(self, names: Sequence[str]) -> list[Caller | None]:
        rows = fetch(self._engine, READ_NAMED, {"names": list(set(names))})
        for row in rows:
            self._keyless[row.name] = Caller("", b"", tenant_of(row._mapping))
        if rows:
            self._keep_fresh(rows[0].now)
        return [self._keyless.get(name) for name in names]

    def _sweep(self) -> None:
        now = self._clock()
        valid = {
            key
            for key, caller in self._callers.items()
            if not caller.revoked and (caller.expires is None or now < caller.expires)
        }
        found = self._read_keys(valid)
        gone = valid - set(found)
        for key in gone:
            # Forgotten, not revoked: it comes back if its tenant moves here again.
            self._callers.pop(key, None)
        if ended := gone | {key for key, caller in found.items() if caller.revoked}:
            self.on_ended(ended)
        self._sweep_at = self._clock() + SWEEP_SECONDS

    def _tell_of_expired(self) -> None:
        now = self._clock()
        expired = [key for key, at in tuple(self._expiring.items()) if now >= at]
        if expired:
            self.on_ended(frozenset(expired))
        for key in expired:
            if now >= self._expiring[key] + TOLD_SECONDS:
                del self._expiring[key]

    def _keep_fresh(self, now: datetime) -> None:
        """Refresh from now on: the first rows were read."""
        if self._seen is None:
            # Of two threads that come here at once the later one wins; the overlap covers that.
            self._sweep_at = self._clock() + SWEEP_SECONDS
            self._seen = now
        self._refresher.start()


def caller_of(row: Row[Any], asked_at: float) -> Caller:
    """The caller of a row of READ_KEYS; ``asked_at``: by the directory's clock."""
    operator = row.id is None
    expires_at: datetime | None = row.expires_at
    # The read took a moment: a key expires that much too early rather than too late.
    left = None if expires_at is None else (expires_at - row.now).total_seconds()
    return Caller(
        key=row.key,
        digest=bytes(row.digest),
        tenant=None if operator else tenant_of(row._mapping),
        revoked=row.revoked,
        scopes=scopes_of(row.scopes, operator=operator),
        expires_at=None if expires_at is None else expires_at.astimezone(UTC),
        expires=None if left is None else asked_at + left,
    )
