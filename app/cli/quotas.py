"""``flask --app app quotas …``: what dependencies accept per minute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from app.cli.errors import FairlineGroup
from app.cli.tenants import cell, database, show_table
from app.tenants.quotas import FIELDS, Declared, clear_quota, declare_quota, read_quotas
from models.audit import Act
from models.presence import NEWS_SECONDS
from models.store.session import connect

quotas = FairlineGroup("quotas", help="Manage what dependencies accept per minute.")


@quotas.command("set", acts=(Act.QUOTA_DECLARE,))
@click.argument("dependency")
@click.option("--requests", "requests_per_minute", type=float, help="Calls per minute.")
@click.option("--tokens-in", "tokens_in_per_minute", type=float, help="Input tokens per minute.")
@click.option("--tokens-out", "tokens_out_per_minute", type=float, help="Output tokens per minute.")
def set_quota(dependency: str, **limits: float | None) -> None:
    """Declare a quota, replacing an earlier one."""
    from app.celery import job_types

    if all(limit is None for limit in limits.values()):
        raise click.UsageError("Give --requests, --tokens-in or --tokens-out.")
    known = {one.dependency for one in job_types.values() if one.dependency}
    show([declare_quota(database(), dependency, limits, known)])


@quotas.command("list", acts=())
def list_quotas() -> None:
    """List all quotas, declared or reported by the dependency."""
    with connect(database()) as connection:
        show(read_quotas(connection))


@quotas.command("clear", acts=(Act.QUOTA_CLEAR,))
@click.argument("dependency")
def forget_quota(dependency: str) -> None:
    """Remove a quota; what the dependency reports applies again."""
    for line in describe_cleared(clear_quota(database(), dependency)):
        click.echo(f"{dependency}: {line}")


def describe_cleared(quota: Declared) -> Iterator[str]:
    """What clearing it has changed, in lines."""
    declared = {name.removesuffix("_per_minute"): getattr(quota, name) for name in FIELDS}
    if limits := listed(declared):
        yield f"removed the declared limit of {limits} per minute"
    if limits := listed({kind: limit for kind, (limit, *_) in quota.reading.items()}):
        yield f"forgot the reported limit of {limits}; what its next response reports applies"
    if quota.closed_until:
        yield f"was paused until {cell(quota.closed_until)}; called again within {NEWS_SECONDS} s"
    if quota.is_empty:
        yield "nothing was declared or reported; nothing changed"


def listed(limits: Mapping[str, float | None]) -> str:
    """Such as ``60 requests, 40000 tokens in``."""
    return ", ".join(
        f"{limit:g} {kind.replace('_', ' ')}" for kind, limit in limits.items() if limit
    )


TITLES = ("DEPENDENCY", "REQUESTS", "TOKENS IN", "TOKENS OUT", "LEFT", "PAUSED UNTIL", "REJECTED")


def show(found: list[Declared]) -> None:
    """A table of what is declared, and what the dependency last reported as remaining."""
    rows = []
    for quota in found:
        declared = (quota.requests_per_minute, quota.tokens_in_per_minute)
        readings = quota.reading.items()
        left = ", ".join(f"{kind} {left:g} of {limit:g}" for kind, (limit, left, _) in readings)
        state = (quota.tokens_out_per_minute, left, quota.closed_until, quota.refused)
        rows.append((quota.dependency, *declared, *state))
    show_table(TITLES, rows)
