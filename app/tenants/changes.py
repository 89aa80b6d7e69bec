"""Writing tenants and keys. Every process notices a change within about a second.

Whatever changes a tenant or its limits raises ``tenants.changed_at``: the directories of all
processes read what is newer. Changes of one tenant wait for each other, so that each is checked
against the terms that it changes.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, update
from sqlalchemy.dialects.postgresql import insert

from app.errors import Conflict, NotFound, invalid_field
from app.tenants.keys import SHORT_CHARACTERS, new_key, presented, same_digest
from app.tenants.scopes import Scope, check_scopes, scopes_of
from app.tenants.tenant import TENANT_COLUMNS, TenantProfile, tenant_of
from app.tenants.terms import BOUNDS, Change, changed
from models.audit import Act, differences, record, recording
from models.pools import POOLS
from models.schema import Base
from models.store.clock import DATABASE_CLOCK
from models.store.session import fetch, transaction

#: Name of the operator's key that is kept in a file.
FILE_KEY = "of the embedded stack"

TENANTS, LIMITS = Base.metadata.tables["tenants"], Base.metadata.tables["tenant_limits"]

LOCK_TENANT = f"""
    SELECT {TENANT_COLUMNS} FROM tenants AS tenant
    WHERE tenant.name = %(name)s FOR UPDATE OF tenant
"""
ISSUE_KEY = """
    INSERT INTO api_keys (id, tenant_id, name, digest, scopes, expires_at)
    VALUES (%(id)s, %(tenant)s, %(name)s, %(digest)s, %(scopes)s::text[], %(expires_at)s)
    ON CONFLICT (id) DO NOTHING
    RETURNING created_at
"""
#: The first revocation is the one that counts.
REVOKE_KEY = """
    WITH before AS (SELECT id, revoked_at FROM api_keys WHERE id = %(id)s FOR UPDATE)
    UPDATE api_keys AS key SET revoked_at = coalesce(key.revoked_at, clock_timestamp())
    FROM before WHERE key.id = before.id
    RETURNING key.revoked_at, key.tenant_id, key.name, before.revoked_at IS NULL AS is_new
"""
READ_OPERATOR_KEY = """
    SELECT digest FROM api_keys
    WHERE id = %(id)s AND tenant_id IS NULL AND revoked_at IS NULL
          AND (expires_at IS NULL OR expires_at > now())
"""


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A new key, shown this one time."""

    #: Its short part.
    id: str
    #: All of it.
    key: str
    created_at: datetime
    scopes: frozenset[Scope]


def new_tenant(name: str, change: Change | None = None) -> TenantProfile:
    """A tenant that is to be created; ValidationFailed says what is wrong with its name or terms.

    With the limits of its tier, unless the change says otherwise. Writes nothing.
    """
    return changed(TenantProfile(0, name, tier_limits=True), change or Change(), POOLS)


def create_tenant(engine: Engine, name: str, change: Change | None = None) -> TenantProfile:
    """Create a tenant; Conflict if there is one of that name."""
    wanted = new_tenant(name, change)
    with transaction(engine) as connection:
        new = insert(TENANTS).values(_terms(wanted)).on_conflict_do_nothing()
        tenant_id = connection.execute(new.returning(TENANTS.c.id)).scalar()
        if tenant_id is None:
            raise Conflict(f"There is a tenant {name!r} already.")
        wanted = replace(wanted, id=tenant_id)
        _write_limits(connection, wanted)
        _, given = differences(_shown(TenantProfile(0, name)), _shown(wanted))
        record(connection, Act.TENANT_CREATE, name, tenant=name, after=given)
    return wanted


def ensure_tenant(engine: Engine, name: str, change: Change | None = None) -> None:
    """Create a tenant unless there is one of that name."""
    with suppress(Conflict):
        create_tenant(engine, name, change)


def change_tenant(engine: Engine, name: str, change: Change) -> TenantProfile:
    """Change a tenant's terms; the tenant as it is then."""
    with transaction(engine) as connection:
        row = connection.exec_driver_sql(LOCK_TENANT, {"name": name}).first()
        if row is None:
            raise no_tenant(name)
        known = tenant_of(row._mapping)
        wanted = changed(known, change, POOLS)
        terms = update(TENANTS).where(TENANTS.c.id == wanted.id).values(_terms(wanted))
        connection.execute(terms)
        _write_limits(connection, wanted)
        before, after = differences(_shown(known), _shown(wanted))
        if after:
            record(connection, Act.TENANT_CHANGE, name, tenant=name, before=before, after=after)
    return wanted


def issue_key(
    engine: Engine,
    tenant: str | None,
    name: str = "",
    *,
    scopes: Collection[str] | None = None,
    expires_at: datetime | None = None,
) -> CreatedKey:
    """A new key of the tenant of that name, or of an operator; ``scopes``: None for all."""
    operator = tenant is None
    stored = check_scopes(scopes, operator=operator)
    with recording(engine) as connection:
        if expires_at is not None and expires_at <= DATABASE_CLOCK.now():
            raise invalid_field("expires_at", "must be in the future")
        tenant_id = None
        if tenant is not None:
            found = connection.exec_driver_sql("SELECT id FROM tenants WHERE name = %s", (tenant,))
            if (tenant_id := found.scalar()) is None:
                raise no_tenant(tenant)
        while True:  # until the short part is free: nearly always at once
            key = new_key()
            sent = presented(key)
            assert sent is not None
            values = {
                "id": sent.id,
                "tenant": tenant_id,
                "name": name,
                "digest": sent.digest,
                "scopes": stored,
                "expires_at": expires_at,
            }
            created_at = connection.exec_driver_sql(ISSUE_KEY, values).scalar()
            if created_at is not None:
                granted = scopes_of(stored, operator=operator)
                given = {"name": name, "scopes": sorted(granted)}
                if expires_at is not None:
                    given["expires_at"] = expires_at.isoformat()
                record(connection, Act.KEY_ISSUE, sent.id, tenant=tenant, after=given)
                return CreatedKey(sent.id, key, created_at, granted)


def revoke_key(engine: Engine, key_id: str) -> datetime:
    """Revoke a key for good; when it was revoked first."""
    with recording(engine) as connection:
        row = connection.exec_driver_sql(REVOKE_KEY, {"id": key_id}).first()
        if row is None:
            raise NotFound(f"There is no key {key_id[:SHORT_CHARACTERS]!r}.")
        if row.is_new:
            label = {"name": row.name} if row.name else None
            record(connection, Act.KEY_REVOKE, key_id, tenant=row.tenant_id, before=label)
    revoked_at: datetime = row.revoked_at
    return revoked_at


def keep_operator_key(engine: Engine, file: Path) -> None:
    """Write a new operator's key into the file, unless it holds a valid one of this database."""
    if _is_operator_key(engine, file):
        return
    # Readable by its owner only from the first byte on, and replaced atomically.
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as written:
        written.write(f"{issue_key(engine, None, FILE_KEY).key}\n")
    draft.replace(file)


def _is_operator_key(engine: Engine, file: Path) -> bool:
    try:
        key = presented(file.read_text().strip())
    except (OSError, UnicodeDecodeError):
        return False
    if key is None:
        return False
    rows = fetch(engine, READ_OPERATOR_KEY, {"id": key.id})
    return any(same_digest(bytes(row.digest), key.digest) for row in rows)


def no_tenant(name: str) -> NotFound:
    """The error of a name that no tenant has."""
    return NotFound(f"There is no tenant {name[:63]!r}.")


def _terms(tenant: TenantProfile) -> dict[str, Any]:
    named = {name: getattr(tenant, name) for name in ("name", "tier", "tier_limits", *BOUNDS)}
    types = None if tenant.types is None else list(tenant.types)
    return {**named, "types": types, "changed_at": func.clock_timestamp()}


def _shown(tenant: TenantProfile) -> dict[str, Any]:
    """The terms, as the audit log has them."""
    named = {name: getattr(tenant, name) for name in ("tier", "tier_limits", *BOUNDS, "types")}
    return {**named, "limits": {pool: asdict(of) for pool, of in tenant.limits.items()}}


def _write_limits(connection: Connection, tenant: TenantProfile) -> None:
    connection.execute(delete(LIMITS).where(LIMITS.c.tenant_id == tenant.id))
    rows = [
        {"tenant_id": tenant.id, "pool": pool, **asdict(of)} for pool, of in tenant.limits.items()
    ]
    if rows:
        connection.execute(insert(LIMITS), rows)
