"""``flask --app app tenants …``: tenants and their terms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click
from sqlalchemy import Engine

from app.cli.errors import FairlineGroup
from app.policy.fairshare.tiers import Tier, entitlement_of
from app.tenants import changes, suspension
from app.tenants.listing import list_tenants
from app.tenants.tenant import TIERS, TenantProfile
from app.tenants.terms import WHOLE, Change
from models.audit import Act
from models.store.roles import DatabaseRole
from models.store.session import connect, open_engine

#: For more, the operator's routes have pages.
MOST_LISTED = 10_000

tenants = FairlineGroup("tenants", help="Manage tenants and their terms.")


def database() -> Engine:
    from app.config import settings

    return open_engine(settings(), process="cli", role=DatabaseRole.API)


class Amount(click.ParamType[float | None]):
    """A number, or ``none`` to clear it."""

    name = "number"

    def __init__(self, kind: type[float] | type[int] = float) -> None:
        self._kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> float | None:
        try:
            return None if value == "none" else self._kind(value)
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
            self.fail(f"{value!r} does not look like medium=20", param, ctx)
        try:
            return pool, None if amount == "none" else int(amount)
        except ValueError:
            self.fail(f"{amount!r} is neither a number nor none", param, ctx)


class Types(click.ParamType[tuple[str, ...] | None]):
    """Names of job types separated by commas, or ``none`` to allow all."""

    name = "type,type"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...] | None:
        if isinstance(value, tuple) or value == "none":
            return value if isinstance(value, tuple) else None
        return tuple(name.strip() for name in value.split(",") if name.strip())


#: Option, field and help of what is stored in ``tenants``.
FIELDS = (
    ("--weight", "weight", "Weight instead of the tier's."),
    ("--rate", "submit_per_second", "Submissions per second."),
    ("--burst", "submit_burst", "Submissions at once, above the rate."),
)
#: The same of what else it may do or have.
BOUND_FIELDS = (
    ("--requests", "requests_per_second", "Other requests per second to each API process."),
    ("--keys", "idempotency_keys", "Most idempotency keys that are kept."),
    ("--blob-bytes", "blob_bytes", "Most bytes in the blob store."),
)
#: Option, field and help of what is stored in ``tenant_limits``.
LIMITS = (
    ("--cap", "in_flight", "Most jobs in flight in a pool: medium=20."),
    ("--reserve", "reserved", "Dedicated slots in a pool: medium=2; enterprise only."),
    ("--depth", "depth", "Most jobs waiting in a pool: medium=1000000."),
)


def terms(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for terms; the command gets them as ``change``."""

    @functools.wraps(command)
    def run(*, tier: str | None, **given: Any) -> Any:
        fields: dict[str, Any] = {} if tier is None else {"tier": tier}
        if (tier_limits := given.pop("tier_limits")) is not None:
            fields["tier_limits"] = tier_limits
        limits: dict[str, dict[str, int | None]] = {}
        asked = click.get_current_context().get_parameter_source
        for name in (*(name for _, name, _ in (*FIELDS, *BOUND_FIELDS)), "types"):
            value = given.pop(name)
            if asked(name) is not click.core.ParameterSource.DEFAULT:
                fields[name] = value
        for _, name, _ in LIMITS:
            for pool, value in given.pop(name):
                limits.setdefault(pool, {})[name] = value
        return command(change=Change(fields, limits), **given)

    decorated: Callable[..., Any] = run
    for option, name, text in reversed(LIMITS):
        decorated = click.option(option, name, type=OfPool(), multiple=True, help=text)(decorated)
    for option, name, text in reversed((*FIELDS, *BOUND_FIELDS)):
        kind = Amount(int if name in WHOLE else float)
        decorated = click.option(option, name, type=kind, help=text)(decorated)
    types_help = "The only job types it may submit: score_application,greet; none: all."
    decorated = click.option("--types", type=Types(), help=types_help)(decorated)
    switch = "Whether the limits of its tier hold where it has none of its own; new tenants: yes."
    decorated = click.option("--tier-limits/--no-tier-limits", default=None, help=switch)(decorated)
    tier_help = "Sets the default weight and limits."
    return click.option("--tier", type=click.Choice(TIERS), help=tier_help)(decorated)


@tenants.command("create", acts=(Act.TENANT_CREATE,))
@click.argument("name")
@click.option("--cell", "in_cell", help="The cell that it lives in; else one that has few tenants.")
@terms
def create(name: str, in_cell: str | None, change: Change) -> None:
    """Create a tenant."""
    from app.cli.cells import new_home

    with new_home(name, in_cell, change) as engine:
        show_terms(changes.create_tenant(engine, name, change))


@tenants.command("set", acts=(Act.TENANT_CHANGE,))
@click.argument("name")
@terms
def change_terms(name: str, change: Change) -> None:
    """Change a tenant's terms. Omitted options stay as they are; none clears one."""
    if not change.fields and not change.limits:
        raise click.UsageError(
            "Nothing to change: give a tier, a weight, a rate, types or a limit."
        )
    from app.cli.cells import cells_of

    with cells_of(name) as engine:
        changed = changes.change_tenant(engine, name, change)
    show_terms(changed)


@tenants.command("ensure", acts=(Act.TENANT_CREATE,))
@click.argument("name")
def ensure(name: str) -> None:
    """Create a tenant if it does not exist."""
    from app.cli.cells import new_home

    with new_home(name, None) as engine:
        changes.ensure_tenant(engine, name)
    click.echo(f"tenant {name}")


@tenants.command("suspend", acts=(Act.TENANT_SUSPEND,))
@click.argument("name")
def suspend(name: str) -> None:
    """Accept nothing from a tenant and dispatch none of its queued jobs, until it is resumed."""
    from app.cli.cells import cells_of

    with cells_of(name) as engine:
        suspension.suspend_tenant(engine, name)
    click.echo(f"tenant {name}: suspended")


@tenants.command("resume", acts=(Act.TENANT_RESUME,))
@click.argument("name")
def resume(name: str) -> None:
    """Take a suspension back."""
    from app.cli.cells import cells_of

    with cells_of(name) as engine:
        suspension.resume_tenant(engine, name)
    click.echo(f"tenant {name}: resumed")


@tenants.command("delete", acts=(Act.TENANT_DELETE,))
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, yes: bool) -> None:
    """Delete a tenant with everything it has; the scheduler removes it in the background."""
    if not yes:
        click.confirm(f"Delete {name} with all its jobs, results, keys and usage?", abort=True)
    from app.cli.cells import cells_of

    with cells_of(name) as engine:
        suspension.delete_tenant(engine, name)
    click.echo(f"tenant {name}: suspended, its keys are revoked, its rows are being removed")


@tenants.command("list", acts=())
def show_tenants() -> None:
    """List all tenants with their terms."""
    from app.cli.cells import every_database

    found: dict[str, TenantProfile] = {}
    with every_database() as engines:
        for engine in engines:
            with connect(engine) as connection:
                listed = [one.tenant for one in list_tenants(connection, MOST_LISTED)]
            found |= {one.name: one for one in listed}
    rows = []
    for _, one in sorted(found.items()):
        rates = (one.submit_per_second, one.submit_burst)
        tier_limits = "yes" if one.tier_limits else "no"
        rows.append((one.name, one.tier, weight_text(one), tier_limits, *rates, limits_text(one)))
    titles = ("TENANT", "TIER", "WEIGHT", "TIER LIMITS", "RATE", "BURST", "LIMITS")
    show_table(titles, rows)


def show_terms(tenant: TenantProfile) -> None:
    """A tenant's terms, with a warning about what has no effect."""
    from app.admission.submission_limits import SubmissionLimits
    from app.config import settings

    click.echo(described(tenant))
    limits = SubmissionLimits(**settings().submission_limits)
    if tenant.submit_burst is not None and limits.limit(tenant) is None:
        click.echo("A burst without a rate has no effect: give a --rate too.", err=True)


def described(tenant: TenantProfile) -> str:
    """A tenant in one line."""
    parts = [f"tenant {tenant.name}: {tenant.tier}"]
    if not tenant.tier_limits:
        parts.append("without its tier's limits")
    if tenant.weight is not None:
        parts.append(f"weight {cell(tenant.weight)}")
    if tenant.submit_per_second is not None:
        parts.append(f"{cell(tenant.submit_per_second)} submissions per second")
    if tenant.submit_burst is not None:
        parts.append(f"burst {cell(tenant.submit_burst)}")
    if limits := limits_text(tenant):
        parts.append(limits)
    return ", ".join(parts)


def limits_text(tenant: TenantProfile) -> str:
    """Limits as the options name them, and whether it is suspended."""
    standing = {"being deleted": tenant.deleting, "suspended": tenant.suspended}
    bounds = [
        f"{option.removeprefix('--')} {cell(amount)}"
        for option, name, _ in BOUND_FIELDS
        if (amount := getattr(tenant, name)) is not None
    ]
    limits = [
        f"{option.removeprefix('--')} {pool}={amount}"
        for pool, limits in sorted(tenant.limits.items())
        for option, name, _ in LIMITS
        if (amount := getattr(limits, name)) is not None
    ]
    if tenant.types is not None:
        limits.append(f"types {','.join(tenant.types) or 'none at all'}")
    return ", ".join([*[word for word, holds in standing.items() if holds][:1], *bounds, *limits])


def weight_text(tenant: TenantProfile) -> str:
    """The weight in effect; a tenant's own weight is marked."""
    weight = cell(entitlement_of(Tier(tenant.tier), tenant.weight).weight)
    return weight if tenant.weight is None else f"{weight} (own)"


def cell(value: object) -> str:
    """Numbers without trailing zeros, times to the second in UTC, ``-`` for nothing."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%SZ}"
    if value is None or value == "":
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def show_table(titles: Sequence[str], values: Sequence[Sequence[object]]) -> None:
    """A table with columns as wide as their longest cell."""
    rows = [[cell(value) for value in row] for row in values]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in (titles, *rows):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())
