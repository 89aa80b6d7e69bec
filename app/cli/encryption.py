"""``flask --app app encryption …``: which keys stored content is encrypted with, and rotation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import click
from sqlalchemy import Engine

from app.cli.errors import FairlineGroup
from app.cli.tenants import database, show_table
from models.audit import Act, record_first
from models.blobs import BlobStore, open_blobs
from models.encryption.key_ring import KEYS_SETTING, KeyRing
from models.encryption.values import key_ring
from models.jobs.reencrypt import (
    CONTENT,
    NOT_ENCRYPTED,
    ContentColumn,
    Reencrypted,
    count_step,
    reencrypt_step,
)
from models.store.session import fetch

encryption = FairlineGroup("encryption", help="Encryption of stored content.")

#: How often rows are looked at again that were locked or changed meanwhile.
MOST_PASSES = 10
#: PostgreSQL's estimate: counting would take as long as the walk.
ESTIMATE = (
    "SELECT greatest(reltuples, 0)::bigint AS rows FROM pg_class WHERE oid = %(table)s::regclass"
)


@encryption.command("status", acts=())
def show_status() -> None:
    """Count stored values by the key that they are encrypted with."""
    engine, ring = database(), key_ring()
    rows = [(name, key_name(key, ring), count) for name, key, count in counted(engine)]
    show_table(("COLUMN", "KEY", "VALUES"), rows)


@encryption.command("rotate", acts=(Act.CONTENT_REENCRYPT,))
def rotate() -> None:
    """Encrypt everything that is not with the first key; may be interrupted and repeated."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from app.config import settings

    ring = key_ring()
    if ring is None:
        raise click.ClickException(f"{KEYS_SETTING} is empty: there is no key to encrypt with")
    engine, blobs = database(), open_blobs(settings().blob_url)
    record_first(engine, Act.CONTENT_REENCRYPT, ring.first)
    written, left, unreadable = 0, 0, Counter[str]()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        for column in CONTENT:
            [estimate] = fetch(engine, ESTIMATE, {"table": column.table})
            task = progress.add_task(f"{column.name} ({column.kind})", total=estimate.rows)
            done = Reencrypted(None)
            for done in passes(engine, blobs, ring, column):
                progress.update(task, completed=done.looked, total=max(estimate.rows, done.looked))
            progress.update(task, total=done.looked)
            written, left = written + done.written, left + done.left
            unreadable += done.unreadable
    click.echo(f"{written} values encrypted with the key {ring.first}.")
    for why, values in unreadable.items():
        click.echo(f"{values} left as they are: {why}", err=True)
    if left:
        click.echo(f"{left} were locked or changed meanwhile: run it again.", err=True)
    if left or unreadable:
        raise click.exceptions.Exit(1)


def passes(
    engine: Engine, blobs: BlobStore, ring: KeyRing, column: ContentColumn
) -> Iterator[Reencrypted]:
    """What was done so far, after each step; until nothing is left, or for some passes."""
    written = 0
    for _ in range(MOST_PASSES):
        total = Reencrypted(column.start)
        while total.position is not None:
            step = reencrypt_step(engine, blobs, ring, column, total.position)
            written += step.written
            total = Reencrypted(
                step.position,
                total.looked + step.looked,
                written,
                total.left + step.left,
                total.unreadable + step.unreadable,
            )
            yield total
        if not total.left:
            return


def counted(engine: Engine) -> Iterator[tuple[str, str, int]]:
    """Column, id of the key and how many values."""
    for column in CONTENT:
        found = Counter[str]()
        position: tuple[str, ...] | None = column.start
        while position is not None:
            ids, position = count_step(engine, column, position)
            found += ids
        for key, count in sorted(found.items()):
            yield f"{column.name} ({column.kind})", key, count


def key_name(key: str, ring: KeyRing | None) -> str:
    """The id of a key, and what there is to know about it."""
    if key == NOT_ENCRYPTED:
        return "none: readable"
    if ring is None or key not in ring.ids:
        return f"{key}: NOT CONFIGURED"
    return f"{key}: encrypts" if key == ring.first else f"{key}: decrypts only"
