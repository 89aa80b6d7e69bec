"""``flask --app app quotas …``: what dependencies accept per minute."""

from __future__ import annotations

import click
from flask.cli import AppGroup

from app.cli.errors import short_errors
from app.cli.tenants import database, moment, plain, show_table
from app.tenants.quotas import Declared, clear_quota, declare_quota, read_quotas
from models.store.session import connect

quotas = AppGroup("quotas", help="What dependencies accept per minute.")


@quotas.command("set")
@click.argument("dependency")
@click.option("--requests", "requests_per_minute", type=float, help="Calls per minute.")
@click.option("--tokens-in", "tokens_in_per_minute", type=float, help="Input tokens per minute.")
@click.option("--tokens-out", "tokens_out_per_minute", type=float, help="Output tokens per minute.")
@short_errors
def set_quota(dependency: str, **limits: float | None) -> None:
    """Declare a quota, replacing an earlier one."""
    from app.celery import job_types

    if all(limit is None for limit in limits.values()):
        raise click.UsageError("Give --requests, --tokens-in or --tokens-out.")
    known = {one.dependency for one in job_types.values() if one.dependency}
    show([declare_quota(database(), dependency, limits, known)])


@quotas.command("list")
@short_errors
def list_quotas() -> None:
    """List all quotas, declared or reported by the dependency."""
    with connect(database()) as connection:
        show(read_quotas(connection))


@quotas.command("clear")
@click.argument("dependency")
@short_errors
def forget_quota(dependency: str) -> None:
    """Remove a quota; what the dependency reports applies again."""
    clear_quota(database(), dependency)
    click.echo(f"quota for {dependency} removed")


def show(found: list[Declared]) -> None:
    """A table of what is declared, and what the dependency last reported as remaining."""
    rows = [
        (
            quota.dependency,
            plain(quota.requests_per_minute),
            plain(quota.tokens_in_per_minute),
            plain(quota.tokens_out_per_minute),
            ", ".join(
                f"{kind} {left:g} of {limit:g}" for kind, (limit, left, _) in quota.reading.items()
            )
            or "-",
            moment(quota.closed_until) if quota.closed_until else "-",
            str(quota.refused),
        )
        for quota in found
    ]
    heads = (
        "DEPENDENCY",
        "REQUESTS",
        "TOKENS IN",
        "TOKENS OUT",
        "REMAINING",
        "PAUSED UNTIL",
        "REJECTED",
    )
    show_table(heads, rows)
