"""``flask --app app keys …``: API keys of tenants and operators."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import click

from app.cli.cells import all_cells, cells_of, every_database
from app.cli.errors import FairlineGroup
from app.cli.tenants import MOST_LISTED, cell, database, show_table
from app.tenants import changes
from app.tenants.keys import SHORT, presented
from app.tenants.listing import ListedKey, list_keys, read_tenant
from models.audit import Act
from models.store.clock import DATABASE_CLOCK
from models.store.session import connect

#: Of a time after which a key expires.
UNITS = {"d": "days", "h": "hours", "m": "minutes"}

keys = FairlineGroup("keys", help="Manage API keys of tenants and operators.")


class Scopes(click.ParamType[tuple[str, ...]]):
    """Names of scopes separated by commas."""

    name = "scope,scope"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(name.strip() for name in value.split(",") if name.strip())


class Expiry(click.ParamType[datetime]):
    """When something expires: after a time such as ``90d``, or at one with its zone."""

    name = "90d|12h|time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        amount, unit = value[:-1], UNITS.get(value[-1:])
        try:
            if unit and amount.isascii() and amount.isdecimal():
                return DATABASE_CLOCK.now() + timedelta(**{unit: int(amount)})
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            moment = None
        if moment is None or moment.tzinfo is None:
            example = "neither a time such as 2030-01-31T12:00:00Z nor 90d, 12h or 30m"
            self.fail(f"{value!r} is {example}", param, ctx)
        return moment


@keys.command("issue", acts=(Act.KEY_ISSUE,))
@click.option("--tenant", default=None, help="Tenant of the key.")
@click.option("--operator", is_flag=True, help="Issue an operator key.")
@click.option("--name", "label", default="", help="Label of the key.")
@click.option(
    "--scopes",
    type=Scopes(),
    help="What it may do: submit, read (a tenant's); read, operate, scale (an operator's). All of"
    " these by default.",
)
@click.option("--expires", type=Expiry(), help="When it expires: 90d, 12h or a time. Never.")
def issue(
    tenant: str | None,
    operator: bool,
    label: str,
    scopes: tuple[str, ...] | None,
    expires: datetime | None,
) -> None:
    """Issue a key and print it once."""
    if (tenant is None) is not operator:
        raise click.UsageError("Give either --tenant or --operator.")
    with nullcontext(database()) if tenant is None else cells_of(tenant) as engine:
        issued = changes.issue_key(engine, tenant, label, scopes=scopes, expires_at=expires)
        # Before it is copied: if another cell is away, the key is there and is not shown again.
        click.echo(issued.key)
        # On stderr, so that a script reads the key and nothing else.
        revoking = f"flask --app app keys revoke {issued.id}"
        click.echo(f"It is not shown again. To revoke it: {revoking}", err=True)


keys.add_command(issue, "create")


@keys.command("revoke", acts=(Act.KEY_REVOKE,))
@click.argument("key")
def revoke(key: str) -> None:
    """Revoke a key by its id or in full. Takes effect within two seconds."""
    sent = presented(key)
    short = sent.id if sent else key
    if not SHORT.fullmatch(short):  # not repeated: it may be a part of the secret
        raise click.UsageError("Not a key: its id is in the first column of keys list.")
    revoked_at = revoke_key(short)
    click.echo(f"key {short} revoked at {cell(revoked_at)}")


def revoke_key(key_id: str) -> datetime:
    """Revoke a key, in every cell that has it; when it was revoked first."""
    from app.config import settings

    if not settings().registry_url:
        return changes.revoke_key(database(), key_id)
    from app.cells.tenant_changes import revoke_everywhere

    with all_cells() as found:
        databases = {cell: found.engine(cell) for cell in found.cells()}
        # An operator's may be in a database that is no cell's.
        return revoke_everywhere({**databases, "home": database()}, key_id)


@keys.command("list", acts=())
@click.option("--tenant", default=None, help="Only keys of this tenant.")
def show_keys(tenant: str | None) -> None:
    """List keys, without their secrets, which are not stored."""
    found: dict[str, ListedKey] = {}
    with every_database() as engines:
        known = False
        # An operator's may be in a database that is no cell's.
        home = [database()] if tenant is None else []
        for engine in (*home, *engines):
            with connect(engine) as connection:
                listed = None if tenant is None else read_tenant(connection, tenant)
                if tenant is not None and listed is None:
                    continue
                known = True
                of = listed.tenant.id if listed else None
                found |= {key.id: key for key in list_keys(connection, MOST_LISTED, of)}
    if tenant is not None and not known:
        raise changes.no_tenant(tenant)
    rows = [
        (
            key.id,
            key.tenant or "(operator)",
            key.name,
            ",".join(key.scopes),
            key.created_at,
            key.expires_at,
            key.last_used_at,
            key.revoked_at,
        )
        for key in found.values()
    ]
    titles = ("KEY", "TENANT", "NAME", "SCOPES", "ISSUED", "EXPIRES", "LAST USED", "REVOKED")
    show_table(titles, rows)
