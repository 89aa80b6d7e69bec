"""The job context of a run in a worker: checkpoints, progress and cancellation through the row."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from models.blobs import INLINE_BYTES, BlobError, BlobMissing, checkpoint_key
from models.encryption.key_ring import ContentKind, DecryptionError, Place
from models.encryption.values import decrypt_blob, decrypt_json, decrypt_value, encrypt_blob
from models.jobs.checkpoint import Saving
from tasks.context import JobContext
from tasks.errors import DependencyFailure, Drained, LeaseLost, Permanent
from tasks.quota import QuotaReading
from tasks.worker.held import Held
from tasks.worker.run_log import RunLog

if TYPE_CHECKING:
    from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)

#: Tokens that a run can report: sums of them fit into their columns.
MOST_TOKENS = 10**12


def token_sum(before: int, more: float) -> int:
    """``before`` and what a job reported, whatever kind of number that is."""
    return min(before + max(0, int(more)), MOST_TOKENS)


@contextmanager
def undecryptable_is_permanent() -> Iterator[None]:
    """Another attempt would not help: the job is a dead letter, to be replayed with the key."""
    try:
        yield
    except DecryptionError as error:
        raise Permanent(str(error)) from None


class RunContext(JobContext):
    def __init__(self, worker: Worker, held: Held) -> None:
        claim = held.claim
        # A lost claim may have been a run: see `tasks.retry.lost`.
        earlier = claim.attempt + claim.crashes + claim.deferrals + claim.replays
        earlier += claim.lost_claims
        super().__init__(claim.ref.id, claim.tenant_id, claim.attempt + 1, earlier == 0)
        self._worker = worker
        self._held = held

    def payload(self) -> Any:
        """The job's payload, from the row or its blob."""
        claim, place = self._held.claim, self._place(ContentKind.PAYLOAD)
        if claim.payload_blob is not None:
            return self._read(claim.payload_blob, place)
        with undecryptable_is_permanent():
            return decrypt_value(claim.payload, place)

    def checkpoint(self, state: Any) -> None:
        """Save ``state``; if the worker drains, the run ends here, to resume elsewhere.

        Unless the worker retires: then there is time for the run to end.
        """
        try:
            data = orjson.dumps(state)
        except orjson.JSONEncodeError as error:
            raise Permanent(f"A checkpoint must be JSON: {error}") from None
        held = self._held
        held.checkpoints += 1
        held.saving = True
        try:
            self._save(held, data)
        finally:
            held.saving = False
            held.moved = held.saved = time.monotonic()
        if self._worker.slots.cuts_runs_short():
            raise Drained

    def _save(self, held: Held, data: bytes) -> None:
        ref, key = held.claim.ref, None
        if len(data) > INLINE_BYTES:
            key = checkpoint_key(ref.id, ref.lease, held.checkpoints)
            try:
                place = self._place(ContentKind.CHECKPOINT)
                self._worker.blobs.put(key, encrypt_blob(data, place))
            except BlobError as error:
                raise DependencyFailure("blobs", str(error)) from error
        state = None if key else data.decode()
        saved = self._worker.ledger.save(Saving(ref, state, key, self.tenant_id))
        if not saved.ours:
            held.lost = True
            # Unless the row names it: the answer to an earlier attempt may have been lost.
            if key and self._worker.ledger.load(ref.id).blob != key:
                self._delete(key)
            raise LeaseLost
        self._delete(saved.obsolete)

    def load_checkpoint(self) -> Any:
        loaded = self._worker.ledger.load(self.job_id)
        place = self._place(ContentKind.CHECKPOINT)
        if loaded.blob is not None:
            return self._read(loaded.blob, place)
        if loaded.state is None:
            return None
        with undecryptable_is_permanent():
            return orjson.loads(decrypt_json(loaded.state, place))

    def progress(self, done: float, total: float | None = None) -> None:
        held = self._held
        text = orjson.dumps({"done": done, "total": total}).decode()
        if text != held.progress:  # reporting the same again is no progress
            held.progress = text
            held.progress_written = False
            held.moved = time.monotonic()

    def is_cancelled(self) -> bool:
        held = self._held
        if held.cancelled is not None:
            held.cancel_seen = True
        return held.cancelled is not None or held.lost

    def charge_tokens(self, tokens_in: int, tokens_out: int) -> None:
        held = self._held
        held.tokens_in = token_sum(held.tokens_in, tokens_in)
        held.tokens_out = token_sum(held.tokens_out, tokens_out)
        held.progress_written = False

    def keep_line(self, level: int, message: object) -> None:
        held = self._held
        if held.log is None:
            held.log = RunLog()
        held.log.add(level, message)

    def report_quota(self, reading: QuotaReading) -> None:
        held = self._held
        if reading.used_in or reading.used_out:
            used_in, used_out = held.quota_tokens or (0, 0)
            used_in = token_sum(used_in, reading.used_in)
            held.quota_tokens = (used_in, token_sum(used_out, reading.used_out))
        if allowances := reading.allowances():
            self._worker.quotas.note(held.claim.dependency, allowances, time.monotonic())

    def _place(self, kind: ContentKind) -> Place:
        return Place(self.tenant_id, self.job_id, kind)

    def _read(self, blob: str, place: Place) -> Any:
        try:
            with undecryptable_is_permanent():
                return orjson.loads(decrypt_blob(self._worker.blobs.get(blob), place))
        except BlobMissing as error:
            raise Permanent(f"The {place.kind} is missing: {error}") from error
        except BlobError as error:
            raise DependencyFailure("blobs", str(error)) from error

    def _delete(self, blob: str | None) -> None:
        if blob is None:
            return
        try:
            self._worker.blobs.delete(blob)
        except BlobError as error:  # the collector will find it
            logger.debug("could not delete %s: %s", blob, error)
