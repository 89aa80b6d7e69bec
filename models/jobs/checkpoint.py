"""Checkpoint: a running job's state is saved, if the lease still holds; its status stays.

Called by a worker for ``ctx.checkpoint``. Dying before the commit repeats the step; dying after it
lets the next run resume behind it.

A run that lost its lease can neither write a checkpoint nor overwrite one: the row is
locked, its number and worker compared in the statement that writes. Large states lie in the blob
store; the one before is removed after the row names the new one, so a crash in between
leaves a blob that no row names, never a name without a blob.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import encrypt_json, key_ring
from models.jobs.claim import JobRef, ref_arrays
from models.store.session import fetch

SAVE = """
    WITH saving AS (
        SELECT saving.* FROM unnest(
            %(ids)s::uuid[], %(leases)s::int[], %(states)s::text[], %(blobs)s::text[]
        ) AS saving (id, lease, state, blob)
        JOIN jobs AS job ON job.id = saving.id AND job.lease = saving.lease
            AND job.status::text = 'running' AND job.worker = %(worker)s
        FOR SHARE OF job
    ), earlier AS (
        SELECT checkpoint.job_id, checkpoint.blob
        FROM checkpoints AS checkpoint JOIN saving ON saving.id = checkpoint.job_id
    ), saved AS (
        INSERT INTO checkpoints AS checkpoint (job_id, lease, state, blob)
        SELECT id, lease, state::json, blob FROM saving
        ON CONFLICT (job_id) DO UPDATE
        SET lease = excluded.lease, state = excluded.state, blob = excluded.blob,
            saved_at = now()
        RETURNING job_id, lease
    )
    SELECT saved.job_id::text AS job_id, saved.lease, earlier.blob
    FROM saved LEFT JOIN earlier USING (job_id)
"""
LOAD = """
    SELECT job_id::text AS job_id, state::text AS state, blob
    FROM checkpoints WHERE job_id = ANY (%(ids)s::uuid[])
"""


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint on its way to the table."""

    ref: JobRef
    #: JSON text, or None if ``blob`` names it.
    state: str | None
    blob: str | None
    #: Whose job it is: what is written is encrypted with that tenant's key.
    tenant_id: int | None = None

    @property
    def stored_state(self) -> str | None:
        """Encrypted, if keys are configured. That of a blob is then null: it says which key the
        blob was encrypted with."""
        if key_ring() is None:
            return self.state
        if self.tenant_id is None:
            raise ValueError(f"the tenant of job {self.ref.id} is not known")
        place = Place(self.tenant_id, self.ref.id, ContentKind.CHECKPOINT)
        return encrypt_json("null" if self.state is None else self.state, place)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of it."""

    #: False: the lease was lost.
    ours: bool
    #: Blob of the checkpoint before, which no row names any more.
    obsolete: str | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """A question for a job's checkpoint."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint as it is stored: JSON text, or the blob that holds it. Neither: there is
    none."""

    state: str | None = None
    blob: str | None = None


def save_group(engine: Engine, worker: str, group: Sequence[Saving]) -> list[Saved]:
    """Write the checkpoints; for each, whether it was still ours to write."""
    parameters = {
        **ref_arrays(saving.ref for saving in group),
        "worker": worker,
        "states": [saving.stored_state for saving in group],
        "blobs": [saving.blob for saving in group],
    }
    rows = fetch(engine, SAVE, parameters)
    # By lease too: a run that lost the job and its successor may meet in one group.
    earlier = {JobRef(row.job_id, row.lease): row.blob for row in rows}
    return [
        Saved(saving.ref in earlier, blob if blob != saving.blob else None)
        for saving in group
        for blob in [earlier.get(saving.ref)]
    ]


def load_group(engine: Engine, group: Sequence[Loading]) -> list[Loaded]:
    """The checkpoints of the jobs."""
    rows = fetch(engine, LOAD, {"ids": [loading.job_id for loading in group]})
    found = {row.job_id: Loaded(row.state, row.blob) for row in rows}
    return [found.get(loading.job_id, Loaded()) for loading in group]
