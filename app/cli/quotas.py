"""``flask --app app quotas …``: what dependencies take in a minute."""

from __future__ import annotations

import click
from flask.cli import AppGroup

from app.cli.errors import in_plain_words
from app.cli.tenants import database, moment, plain, show_table
from app.tenants.quotas import Declared, clear_quota, declare_quota, read_quotas
from models.store.session import connect

quotas = AppGroup("quotas", help="What dependencies take in a minute.")


@quotas.command("set")
@click.argument("dependency")
@click.option("--requests", "requests_per_minute", type=float, default=None, help="Calls a minute.")
@click.option(
    "--tokens-in", "tokens_in_per_minute", type=float, default=None, help="Input tokens a minute."
)
@click.option(
    "--tokens-out",
    "tokens_out_per_minute",
    type=float,
    default=None,
    help="Output tokens a minute.",
)
@in_plain_words
def set_quota(dependency: str, **limits: float | None) -> None:
    """Declare a quota, in place of what was declared before."""
    from app.celery import job_types

    if all(limit is None for limit in limits.values()):
        raise click.UsageError("Name --requests, --tokens-in or --tokens-out.")
    known = {one.dependency for one in job_types.values() if one.dependency}
    show([declare_quota(database(), dependency, limits, known)])


@quotas.command("list")
@in_plain_words
def list_quotas() -> None:
    """All quotas, declared or learned."""
    with connect(database()) as connection:
        show(read_quotas(connection))


@quotas.command("clear")
@click.argument("dependency")
@in_plain_words
def forget_quota(dependency: str) -> None:
    """Forget a quota; what is learned from the next answers counts again."""
    clear_quota(database(), dependency)
    click.echo(f"no quota for {dependency}")


def show(found: list[Declared]) -> None:
    """A table of what is declared, and what the last answer said is left of what."""
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
    heads = ("DEPENDENCY", "REQUESTS", "TOKENS IN", "TOKENS OUT", "LEFT", "CLOSED UNTIL", "REFUSED")
    show_table(heads, rows)
