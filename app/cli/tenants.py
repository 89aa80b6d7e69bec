"""``flask --app app tenants …`` and ``keys …``: tenants, their terms and their keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import click
from flask.cli import AppGroup
from sqlalchemy import Engine

from app.cli.errors import in_plain_words
from app.policy.fairshare.tiers import Tier, entitlement_of
from app.tenants import changes
from app.tenants.keys import SHORT, presented
from app.tenants.listing import list_keys, list_tenants, read_tenant
from app.tenants.tenant import NO_LIMITS, TIERS, PoolLimits, TenantProfile
from app.tenants.terms import Change
from models.store.session import connect, open_engine

#: More are for the operator's routes, which have pages.
MOST_LISTED = 10_000

tenants = AppGroup("tenants", help="Whose work it is.")
keys = AppGroup("keys", help="Who may speak for a tenant, or operate.")


def database() -> Engine:
    """The one that the settings name."""
    from app.config import settings

    return open_engine(settings(), process="cli")


class Amount(click.ParamType[float | int | None]):
    """A number, or ``none`` for nothing."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        self.name = "number"
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> float | int | None:
        if value == "none":
            return None
        try:
            return self._kind(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is neither a number nor none", param, ctx)


class OfPool(click.ParamType[tuple[str, int | None]]):
    """``pool=number`` or ``pool=none``."""

    name = "pool=number"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int | None]:
        if isinstance(value, tuple):
            return value
        pool, equals, amount = value.partition("=")
        if not (pool and equals):
            self.fail(f"{value!r} is not as medium=20", param, ctx)
        whole = Amount(int).convert(amount, param, ctx)
        return pool, None if whole is None else int(whole)


#: Option, field and help of what stands in ``tenants``.
FIELDS = (
    ("--weight", "weight", "Share in place of the tier's."),
    ("--rate", "submit_per_second", "Submissions a second."),
    ("--burst", "submit_burst", "Submissions at once."),
)
#: Option, field and help of what stands in ``tenant_limits``.
LIMITS = (
    ("--cap", "in_flight", "Most jobs of a pool in flight at once, as medium=20."),
    ("--reserve", "reserved", "Slots of its own in a pool, as medium=2; enterprise only."),
    ("--depth", "depth", "Most jobs of a pool waiting, as medium=1000000."),
)


def terms(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that are a change of terms; the command gets ``change``."""

    @functools.wraps(command)
    def run(*, tier: str | None, **given: Any) -> Any:
        fields: dict[str, Any] = {} if tier is None else {"tier": tier}
        limits: dict[str, dict[str, int | None]] = {}
        asked = click.get_current_context().get_parameter_source
        for _, name, _ in FIELDS:
            value = given.pop(name)
            if asked(name) is not click.core.ParameterSource.DEFAULT:
                fields[name] = value
        for _, name, _ in LIMITS:
            for pool, value in given.pop(name):
                limits.setdefault(pool, {})[name] = value
        return command(change=Change(fields, limits), **given)

    decorated: Callable[..., Any] = run
    for option, name, words in reversed(LIMITS):
        decorated = click.option(option, name, type=OfPool(), multiple=True, help=words)(decorated)
    for option, name, words in reversed(FIELDS):
        decorated = click.option(option, name, type=Amount(float), help=words)(decorated)
    return click.option("--tier", type=click.Choice(TIERS), default=None)(decorated)


@tenants.command("create")
@click.argument("name")
@terms
@in_plain_words
def create(name: str, change: Change) -> None:
    """Create a tenant."""
    show_terms(changes.create_tenant(database(), name, change))


@tenants.command("set")
@click.argument("name")
@terms
@in_plain_words
def change_terms(name: str, change: Change) -> None:
    """Change a tenant's terms; what is not named stays, none clears."""
    if not change.fields and not change.limits:
        raise click.UsageError("Nothing to change: name a tier, a weight, a rate or a limit.")
    show_terms(changes.change_tenant(database(), name, change))


@tenants.command("ensure")
@click.argument("name")
@in_plain_words
def ensure(name: str) -> None:
    """Create a tenant unless it is there."""
    changes.ensure_tenant(database(), name)
    click.echo(f"tenant {name}")


@tenants.command("list")
@in_plain_words
def show_tenants() -> None:
    """All tenants with their terms."""
    with connect(database()) as connection:
        found = list_tenants(connection, MOST_LISTED)
    rows = [
        (
            listed.tenant.name,
            listed.tenant.tier,
            weight_text(listed.tenant),
            plain(listed.tenant.submit_per_second),
            plain(listed.tenant.submit_burst),
            limits_text(listed.tenant) or "-",
        )
        for listed in found
    ]
    show_table(("TENANT", "TIER", "WEIGHT", "RATE", "BURST", "LIMITS"), rows)


@keys.command("issue")
@click.option("--tenant", default=None, help="Whose key it is.")
@click.option("--operator", is_flag=True, help="A key that operates the platform.")
@click.option("--name", "label", default="", help="What you call it.")
@in_plain_words
def issue(tenant: str | None, operator: bool, label: str) -> None:
    """Issue a key and print it, this once."""
    if (tenant is None) is not operator:
        raise click.UsageError("Name either --tenant or --operator.")
    issued = changes.issue_key(database(), tenant, label)
    click.echo(issued.key)
    # Apart, so that a script takes the key and nothing else.
    revoking = f"flask --app app keys revoke {issued.id}"
    click.echo(f"It is not shown again. It is revoked by: {revoking}", err=True)


@keys.command("revoke")
@click.argument("key")
@in_plain_words
def revoke(key: str) -> None:
    """Revoke a key by its short part or as a whole; all processes refuse it within two seconds."""
    sent = presented(key)
    short = sent.id if sent else key
    if not SHORT.fullmatch(short):  # which may be a part of the secret: it is not repeated
        raise click.UsageError(
            "That is no key; its short part is in the first column of keys list."
        )
    revoked_at = changes.revoke_key(database(), short)
    click.echo(f"key {short} revoked at {moment(revoked_at)}")


@keys.command("list")
@click.option("--tenant", default=None, help="Only keys of this tenant.")
@in_plain_words
def show_keys(tenant: str | None) -> None:
    """Keys without their secrets, which nobody has."""
    with connect(database()) as connection:
        listed = None if tenant is None else read_tenant(connection, tenant)
        if tenant is not None and listed is None:
            raise changes.no_tenant(tenant)
        found = list_keys(connection, MOST_LISTED, listed.tenant.id if listed else None)
    rows = [
        (
            key.id,
            key.tenant or "(operator)",
            key.name or "-",
            moment(key.created_at),
            moment(key.revoked_at),
        )
        for key in found
    ]
    show_table(("KEY", "TENANT", "NAME", "ISSUED", "REVOKED"), rows)


def show_terms(tenant: TenantProfile) -> None:
    """A tenant's terms, and what does nothing in them."""
    from app.config import settings

    click.echo(described(tenant))
    rated = tenant.submit_per_second is not None or settings().submit_per_second
    if tenant.submit_burst is not None and not rated:
        click.echo("A burst without a rate limits nothing: name a --rate too.", err=True)


def described(tenant: TenantProfile) -> str:
    """A tenant in one line."""
    parts = [f"tenant {tenant.name}: {tenant.tier}"]
    if tenant.weight is not None:
        parts.append(f"weight {plain(tenant.weight)}")
    if tenant.submit_per_second is not None:
        parts.append(f"{plain(tenant.submit_per_second)} submissions a second")
    if tenant.submit_burst is not None:
        parts.append(f"{plain(tenant.submit_burst)} at once")
    if limits := limits_text(tenant):
        parts.append(limits)
    return ", ".join(parts)


def limits_text(tenant: TenantProfile) -> str:
    """Limits as the options name them."""
    return ", ".join(
        f"{option.removeprefix('--')} {pool}={amount}"
        for pool, limits in sorted(tenant.limits.items())
        for option, amount in amounts(limits)
    )


def amounts(limits: PoolLimits) -> Iterable[tuple[str, int]]:
    """Those of the limits that say something."""
    if limits == NO_LIMITS:
        return
    for option, name, _ in LIMITS:
        if (amount := getattr(limits, name)) is not None:
            yield option, amount


def weight_text(tenant: TenantProfile) -> str:
    """The weight in effect; one of the tenant's own is marked."""
    weight = plain(entitlement_of(Tier(tenant.tier), tenant.weight).weight)
    return weight if tenant.weight is None else f"{weight} (own)"


def plain(amount: float | None) -> str:
    """A number as people write it."""
    return "-" if amount is None else f"{amount:g}"


def moment(at: datetime | None) -> str:
    """A time to the second, in UTC."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%SZ}"


def show_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of text, as wide as they must be."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
