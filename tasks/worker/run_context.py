"""The job context of a run in a worker: checkpoints, progress and cancellation through the row."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import orjson

from models.blobs import INLINE_BYTES, BlobError, BlobMissing, checkpoint_key
from models.jobs.checkpoint import Saving
from tasks.context import JobContext
from tasks.errors import DependencyFailure, Drained, LeaseLost, Permanent
from tasks.quota import QuotaReading
from tasks.worker.held import Held
from tasks.worker.run_log import RunLog

if TYPE_CHECKING:
    from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)


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
        claim = self._held.claim
        if claim.payload_blob is None:
            return claim.payload
        return self._read(claim.payload_blob, "payload")

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
                self._worker.blobs.put(key, data)
            except BlobError as error:
                raise DependencyFailure("blobs", str(error)) from error
        saved = self._worker.ledger.save(Saving(ref, None if key else data.decode(), key))
        if not saved.ours:
            held.lost = True
            # Unless the row names it: the answer to an earlier attempt may have been lost.
            if key and self._worker.ledger.load(ref.id).blob != key:
                self._delete(key)
            raise LeaseLost
        self._delete(saved.obsolete)

    def load_checkpoint(self) -> Any:
        loaded = self._worker.ledger.load(self.job_id)
        if loaded.blob is None:
            return None if loaded.state is None else orjson.loads(loaded.state)
        return self._read(loaded.blob, "checkpoint")

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
        self._held.tokens_in += max(0, tokens_in)
        self._held.tokens_out += max(0, tokens_out)
        self._held.progress_written = False

    def keep_line(self, level: int, message: object) -> None:
        held = self._held
        if held.log is None:
            held.log = RunLog()
        held.log.add(level, message)

    def report_quota(self, reading: QuotaReading) -> None:
        held = self._held
        if reading.used_in or reading.used_out:
            before = held.quota_tokens or (0, 0)
            held.quota_tokens = (before[0] + reading.used_in, before[1] + reading.used_out)
        if allowances := reading.allowances():
            self._worker.quotas.note(held.claim.dependency, allowances, time.monotonic())

    def _read(self, blob: str, what: str) -> Any:
        try:
            return orjson.loads(self._worker.blobs.get(blob))
        except BlobMissing as error:
            raise Permanent(f"The {what} is missing: {error}") from error
        except BlobError as error:
            raise DependencyFailure("blobs", str(error)) from error

    def _delete(self, blob: str | None) -> None:
        if blob is None:
            return
        try:
            self._worker.blobs.delete(blob)
        except BlobError as error:  # the collector will find it
            logger.debug("could not delete %s: %s", blob, error)
