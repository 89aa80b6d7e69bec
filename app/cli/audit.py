"""``flask --app app audit …``: what operators and tenants did."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
import orjson

from app.cli.errors import FairlineGroup
from app.cli.tenants import database
from app.reads.audit import AuditFilter, export_acts
from models.audit import Act

audit = FairlineGroup("audit", help="Read the audit log.")


@audit.command("export", acts=())
@click.option("--tenant", default=None, help="Only what concerns this tenant.")
@click.option("--who", default=None, help="Only what this key or user did.")
@click.option("--what", type=click.Choice([act.value for act in Act]), help="Only this act.")
@click.option("--since", type=click.DateTime(), help="Not before this time, in UTC.")
@click.option("--until", type=click.DateTime(), help="Before this time, in UTC.")
def export_audit(
    tenant: str | None,
    who: str | None,
    what: str | None,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Write the log to standard output, oldest first, an act a line, as JSON."""
    wanted = AuditFilter(tenant, who, what, as_utc(since), as_utc(until))
    for document in export_acts(database(), wanted):
        sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


def as_utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(tzinfo=UTC)
