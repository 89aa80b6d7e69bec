"""Re-encrypt: stored content is encrypted with the first key; no status changes.

Called by ``flask encryption rotate`` while jobs run. It reads a step of rows along their primary
key, encrypts in the process and writes each value back only where it is still the one that was
read; a row that somebody has locked is left to the next pass. Dying anywhere leaves every value
under one key or the other, both of which are configured; repeating it finds what is left. So
nothing is remembered between runs.

A blob is written before the row that says which key it has. If the row is gone by then, or names
another blob, the blob is deleted again: somebody else may have deleted it in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, Row

from models.encryption.key_ring import (
    PREFIX,
    ContentKind,
    DecryptionError,
    KeyRing,
    Place,
    key_id_of,
)
from models.encryption.values import decrypt_blob, decrypt_text
from models.jobs.ids import BELOW_ALL
from models.store.errors import BlobMissing
from models.store.session import fetch

if TYPE_CHECKING:
    from models.blobs import BlobStore

#: Rows of a step, and of one that only counts.
STEP = 100
COUNTED_STEP = 5_000
#: In place of the id of a key.
NOT_ENCRYPTED = ""

#: Types of the columns of primary keys, and what is below all their values.
KEY_TYPES = {
    "job_id": ("uuid", BELOW_ALL),
    "lease": ("int", "-1"),
    "place": ("int", "-1"),
    "number": ("bigint", "-1"),
    "id": ("uuid", BELOW_ALL),
}


@dataclass(frozen=True, slots=True)
class ContentColumn:
    """A column that holds content, in SQL about ``stored``, a row of its table."""

    table: str
    column: str
    kind: ContentKind
    key: tuple[str, ...] = ("id",)
    #: Whether it is JSON text.
    json: bool = True
    tenant: str = "stored.tenant_id"
    #: The id of the job or schedule that it belongs to.
    owner: str = "stored.id::text"
    #: Column that names a blob in its place.
    blob: str | None = None
    #: The value inside of the column, the rows that may have it, and the column with another
    #: value, ``given.value``.
    inside: str = ""
    condition: str = "true"
    changed: str = ""

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"

    @property
    def value(self) -> str:
        """The value as text; that of a blob is null if it is not known how it is encrypted."""
        if self.inside:
            return f"CASE WHEN {self.condition} THEN {self.inside} END"
        text = f"stored.{self.column}::text"
        if self.blob is None:
            return text
        return f"coalesce({text}, CASE WHEN stored.{self.blob} IS NOT NULL THEN 'null' END)"

    @property
    def start(self) -> tuple[str, ...]:
        """A position before all rows."""
        return tuple(KEY_TYPES[self.type_of(name)][1] for name in self.key)

    def type_of(self, name: str) -> str:
        return "number" if self.table == "events" else name

    def key_type(self, name: str) -> str:
        return KEY_TYPES[self.type_of(name)][0]

    def stored_text(self, text: str) -> str:
        return f'"{text}"' if self.json else text

    def read_statement(self) -> str:
        """A step along the primary key; the value only where another key than the first is used."""
        return self._step(f"""
               {f"stored.{self.blob}" if self.blob else "NULL"} AS blob,
               CASE WHEN NOT starts_with({self.value}, %(current)s) THEN {self.value} END AS value
        """)

    def count_statement(self) -> str:
        """The same, with no more than the beginning of each value."""
        return self._step(f"NULL AS blob, left({self.value}, 80) AS value")

    def _step(self, values: str) -> str:
        columns = ", ".join(f"stored.{name}" for name in self.key)
        shown = ", ".join(f"stored.{name}::text AS key_{name}" for name in self.key)
        position = ", ".join(f"%({name})s::{self.key_type(name)}" for name in self.key)
        return f"""
            SELECT {shown}, {self.tenant} AS tenant_id, {self.owner} AS owner, {values}
            FROM {self.table} AS stored
            WHERE ({columns}) > ({position})
            ORDER BY {columns} LIMIT %(step)s
        """

    def write_statement(self) -> str:
        """Writes values where the ones before are unchanged and nobody has locked the row."""
        names = ", ".join(self.key)
        arrays = ", ".join(f"%({name})s::{self.key_type(name)}[]" for name in self.key)
        same = " AND ".join(f"stored.{name} = given.{name}" for name in self.key)
        order = ", ".join(f"stored.{name}" for name in self.key)
        cast = "::json" if self.json and not self.inside else ""
        return f"""
            WITH given AS MATERIALIZED (
                SELECT * FROM unnest({arrays}, %(before)s::text[], %(values)s::text[])
                    AS given ({names}, before, value)
            ), unlocked AS MATERIALIZED (
                SELECT {", ".join(f"given.{name}" for name in self.key)}, given.before, given.value
                FROM {self.table} AS stored JOIN given ON {same} AND {self.value} = given.before
                ORDER BY {order} FOR NO KEY UPDATE OF stored SKIP LOCKED
            )
            UPDATE {self.table} AS stored
            SET {self.column} = {self.changed or f"given.value{cast}"}
            FROM unlocked AS given WHERE {same} AND {self.value} = given.before
            RETURNING {self.owner} AS owner
        """

    def names_statement(self) -> str:
        """Whether the row still names the blob."""
        same = " AND ".join(f"{name} = %({name})s::{self.key_type(name)}" for name in self.key)
        return f"SELECT 1 FROM {self.table} WHERE {same} AND {self.blob} = %(blob)s"


def of_job(table: str, column: str, kind: ContentKind, key: str = "", **more: Any) -> ContentColumn:
    """A column of a table whose rows belong to jobs, and have no tenant of their own."""
    return ContentColumn(
        *(table, column, kind, tuple(filter(None, ("job_id", key)))),
        tenant="(SELECT job.tenant_id FROM jobs AS job WHERE job.id = stored.job_id)",
        owner="stored.job_id::text",
        **more,
    )


#: Everything that is encrypted. Events keep errors of replayed jobs, and why ticks were skipped.
CONTENT = (
    ContentColumn("jobs", "payload", ContentKind.PAYLOAD, blob="payload_blob"),
    ContentColumn("jobs", "result", ContentKind.RESULT),
    ContentColumn("jobs", "error_message", ContentKind.ERROR, json=False),
    ContentColumn("applications", "rationale", ContentKind.RATIONALE, json=False),
    ContentColumn("applications", "record", ContentKind.RESULT),
    of_job("attempts", "error_message", ContentKind.ERROR, "lease", json=False),
    of_job("run_logs", "log", ContentKind.LOG, "place"),
    of_job("run_logs", "traceback", ContentKind.TRACEBACK, "place", json=False),
    of_job("checkpoints", "state", ContentKind.CHECKPOINT, blob="blob"),
    ContentColumn("schedules", "payload", ContentKind.SCHEDULE),
    ContentColumn(
        *("events", "detail", ContentKind.ERROR),
        json=False,
        owner="stored.job_id::text",
        inside="(stored.detail #>> '{error,message}')",
        changed="jsonb_set(stored.detail::jsonb, '{error,message}', to_jsonb(given.value))::json",
        condition="stored.kind = 'job_replayed'",
    ),
    ContentColumn(
        *("events", "detail", ContentKind.REASON),
        json=False,
        owner="stored.detail ->> 'schedule'",
        inside="(stored.detail ->> 'reason')",
        changed="jsonb_set(stored.detail::jsonb, '{reason}', to_jsonb(given.value))::json",
        condition="stored.kind = 'schedule_skipped' AND stored.detail ->> 'reason' <> 'overlap'",
    ),
)


@dataclass(slots=True)
class Reencrypted:
    """What a step has done."""

    #: Where the next one begins; None after the last.
    position: tuple[str, ...] | None
    looked: int = 0
    written: int = 0
    #: Changed or locked by somebody else meanwhile: to be looked at again.
    left: int = 0
    #: Why values cannot be decrypted.
    unreadable: Counter[str] = field(default_factory=Counter)


def count_step(
    engine: Engine, column: ContentColumn, position: tuple[str, ...]
) -> tuple[Counter[str], tuple[str, ...] | None]:
    """Values of a step by the id of their key, and where the next step begins; None: at none."""
    asked = {**dict(zip(column.key, position, strict=True)), "step": COUNTED_STEP}
    rows = fetch(engine, column.count_statement(), asked)
    found = [row.value for row in rows if row.value is not None]
    ids = Counter(key_id_of(value.removeprefix('"').encode()) or NOT_ENCRYPTED for value in found)
    return ids, position_of(column, rows[-1]) if len(rows) == COUNTED_STEP else None


def reencrypt_step(
    engine: Engine,
    blobs: BlobStore,
    ring: KeyRing,
    column: ContentColumn,
    position: tuple[str, ...],
) -> Reencrypted:
    """Encrypt the values of a step with the first key that are not."""
    asked = {
        **dict(zip(column.key, position, strict=True)),
        "current": column.stored_text(ring.prefix).removesuffix('"'),
        "step": STEP,
    }
    rows = fetch(engine, column.read_statement(), asked)
    done = Reencrypted(position_of(column, rows[-1]) if len(rows) == STEP else None, len(rows))
    changed: list[tuple[Row[Any], str]] = []
    for row in rows:
        # A job that is being removed has no tenant any more.
        if row.value is None or row.tenant_id is None or row.owner is None:
            continue
        try:
            changed.append((row, reencrypted(blobs, ring, column, row)))
        except DecryptionError as error:
            done.unreadable[str(error)] += 1
    if changed:
        done.written = write(engine, column, changed)
        done.left = len(changed) - done.written
        drop_unnamed(engine, blobs, column, changed)
    return done


def position_of(column: ContentColumn, row: Row[Any]) -> tuple[str, ...]:
    return tuple(getattr(row, f"key_{name}") for name in column.key)


def reencrypted(blobs: BlobStore, ring: KeyRing, column: ContentColumn, row: Row[Any]) -> str:
    """The value under the first key; its blob is, too, after this."""
    place = Place(row.tenant_id, row.owner, column.kind)
    if row.blob is not None:
        reencrypt_blob(blobs, ring, row.blob, place)
    quoted = column.json and row.value.startswith(f'"{PREFIX}')
    text = decrypt_text(row.value[1:-1] if quoted else row.value, place)
    return column.stored_text(ring.encrypt_text(text, place))


def reencrypt_blob(blobs: BlobStore, ring: KeyRing, name: str, place: Place) -> None:
    try:
        stored = blobs.get(name)
    except BlobMissing:
        return
    if key_id_of(stored) != ring.first:
        blobs.put(name, ring.encrypt(decrypt_blob(stored, place), place))


def write(engine: Engine, column: ContentColumn, changed: Sequence[tuple[Row[Any], str]]) -> int:
    """Write the values whose rows are as they were read; how many."""
    given: dict[str, Any] = {
        name: [getattr(row, f"key_{name}") for row, _ in changed] for name in column.key
    }
    given["before"] = [row.value for row, _ in changed]
    given["values"] = [value for _, value in changed]
    return len(fetch(engine, column.write_statement(), given))


def drop_unnamed(
    engine: Engine,
    blobs: BlobStore,
    column: ContentColumn,
    changed: Sequence[tuple[Row[Any], str]],
) -> None:
    """Delete blobs that no row names any more: writing them may have brought them back."""
    for row, _ in changed:
        if row.blob is not None:
            asked = dict(zip(column.key, position_of(column, row), strict=True))
            if not fetch(engine, column.names_statement(), {**asked, "blob": row.blob}):
                blobs.delete(row.blob)
