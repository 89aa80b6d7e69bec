"""Services of a cell's routes that keep submissions in the intake, for a cell that is away.

The routes are those of a cell: who submits gets the same answers and errors. Different is where it
goes: requests are kept in ``intake_jobs`` of a cell that is there, the *host*, with their payloads,
however large. The tenant's rate is that of its terms, by a bucket in the host; as many of its jobs
may wait there as in a queue, with as many bytes as it may have in the blob store. What all tenants
may leave there is bounded too: the host's disk is that of its own tenants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from app.admission import Admission
from app.admission.depth import Depth, TenantQueue
from app.admission.gate import (
    DEPTH_RETRY_SECONDS,
    HELD_SECONDS,
    OTHERS_BYTES_PER_SECOND,
    Entered,
    Gate,
)
from app.errors import BlobBytesExceeded, CellUnavailable, IdempotencyKeyReused
from models.cells.intake_jobs import keep_group
from models.cells.intake_room import count_bytes, count_waiting
from models.jobs.hand_over import IntakeRequest
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission, SubmissionGroup
from models.store.errors import BlobError
from models.store.group_commit import GroupCommit
from models.tallies import Tallies

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from app.api.services import Services
    from app.config import Settings
    from app.reads.events import Watch
    from app.tenants.tenant import TenantProfile
    from models.blobs import BlobEntry


#: What a host keeps for other cells at most, in bytes, unless a setting says otherwise.
MOST_KEPT_BYTES = 20 * 10**9
#: All of it, as one queue.
ALL_TENANTS: TenantQueue = (0, "")
NO_ROOM = "Your cell is not responding, and there is no room for more requests until it is back."


@dataclass(slots=True)
class TenantHomes:
    """The tenants that submitted here: name, and the cell that their requests are for."""

    by_id: dict[int, tuple[str, str]] = field(default_factory=dict)

    def note(self, tenant: TenantProfile, cell: str) -> None:
        self.by_id[tenant.id] = tenant.name, cell

    def name(self, tenant_id: int) -> str:
        return self.by_id[tenant_id][0]


class BodyBlobs:
    """Large payloads on their way into the body of their request, in place of a blob store."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self._blobs[key] = data

    def take(self, key: str) -> bytes:
        """The payload, which is the caller's from here on."""
        return self._blobs.pop(key)

    def delete(self, key: str) -> None:
        self._blobs.pop(key, None)

    def get(self, key: str) -> NoReturn:
        raise BlobError("payloads of requests that are not handed over are in their rows")

    def list(self, older_than_seconds: float) -> Iterator[str]:
        return iter(())

    def entries(self, folder: str = "") -> Iterator[BlobEntry]:
        return iter(())


class NoWaiting:
    """In place of event streams: nothing ends here, so nobody waits for it."""

    def wait_for_end(self, *_: Any) -> bool:
        return False


class IntakeGate(Gate):
    """The limits of what is taken in; all pools are one queue."""

    def __init__(
        self,
        engine: Engine,
        timeout_seconds: float,
        homes: TenantHomes,
        most_bytes: int,
        **limits: Any,
    ) -> None:
        """``most_bytes``: what the host keeps for all tenants together."""
        super().__init__(engine, timeout_seconds, **limits)
        self._homes = homes
        self._most_bytes = most_bytes
        # All rows of the tenant are counted, so not every second.
        self._depth = Depth(engine, timeout_seconds, self._read_jobs, fresh_seconds=HELD_SECONDS)
        self._blobs = Depth(
            engine,
            timeout_seconds,
            self._read_bytes,
            fresh_seconds=HELD_SECONDS,
            others_per_second=OTHERS_BYTES_PER_SECOND,
        )

    def enter(
        self,
        tenant: TenantProfile,
        submissions: Sequence[Submission],
        key: IdempotencyKey | None = None,
        blob_bytes: int = 0,
    ) -> Entered:
        """Reserve room for the jobs and all their bytes. Their number bounds keys, too."""
        # A character may be more bytes, which the next reading tells.
        size = max(blob_bytes, sum(len(item.payload) for item in submissions))
        entered = super().enter(tenant, submissions, blob_bytes=size)
        try:
            if entered.blob_bytes < size:
                error = self.too_large(tenant)
                self.count(tenant, error, len(submissions))
                raise error
            if entered.reserve(self._blobs, ALL_TENANTS, size, self._most_bytes) < size:
                raise CellUnavailable(NO_ROOM)
        except BaseException:
            self.settle(entered, joined=False)
            raise
        return entered

    def too_large(self, tenant: TenantProfile) -> BlobBytesExceeded:
        """The error of a submission that there is no room for."""
        return BlobBytesExceeded(
            f"At most {self.bound(tenant, 'blob_bytes'):,.0f} bytes of your requests are kept until"
            " your cell is back, and this would be more.",
            retry_seconds=DEPTH_RETRY_SECONDS,
        )

    def repeats(self, tenant: TenantProfile, key: IdempotencyKey | None) -> bool:
        """Never known here: a repetition that there is no room for is refused like another."""
        return False

    def _read_jobs(self, engine: Engine, queues: Sequence[TenantQueue]) -> dict[TenantQueue, int]:
        waiting = self._read_waiting(engine, queues)
        return {queue: waiting[queue[0]][0] for queue in queues}

    def _read_bytes(self, engine: Engine, queues: Sequence[TenantQueue]) -> dict[TenantQueue, int]:
        of_tenants = [queue for queue in queues if queue != ALL_TENANTS]
        waiting = self._read_waiting(engine, of_tenants)
        found = {queue: waiting[queue[0]][1] for queue in of_tenants}
        if ALL_TENANTS in queues:
            found[ALL_TENANTS] = count_bytes(engine, self._most_bytes // 2)
        return found

    def _read_waiting(
        self, engine: Engine, queues: Sequence[TenantQueue]
    ) -> dict[int, tuple[int, int]]:
        tenants = sorted({tenant_id for tenant_id, _ in queues})
        names = [self._homes.name(tenant_id) for tenant_id in tenants]
        return dict(zip(tenants, count_waiting(engine, names), strict=True))


class IntakeAdmission(Admission):
    """Keeps requests in the host, instead of admitting them."""

    def __init__(
        self, engine: Engine, timeout_seconds: float, homes: TenantHomes, blobs: BodyBlobs
    ) -> None:
        # Not the base class's: it has a publisher, and nothing is published here.
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._homes = homes
        self._blobs = blobs
        self._requests: GroupCommit[IntakeRequest, Admitted | KeyReused] = GroupCommit(
            self._keep, name="region intake", gathers=True
        )
        #: Never written: what is taken in is counted when it is handed over.
        self.tallies = Tallies()

    def _enter(self, entry: SubmissionGroup) -> Admitted:
        tenant, cell = self._homes.by_id[entry.submissions[0].tenant_id]
        blobs = {
            item.id: self._blobs.take(item.payload_blob)
            for item in entry.submissions
            if item.payload_blob is not None
        }
        request = IntakeRequest(tenant, cell, entry.submissions, entry.key, blobs)
        kept = self._requests.submit(request, self._timeout_seconds, request.weight)
        if isinstance(kept, KeyReused):
            raise IdempotencyKeyReused
        return kept

    def close(self, timeout: float) -> None:
        """Write what still waits, before the process ends."""
        self._requests.close(timeout)

    def _keep(self, group: Sequence[IntakeRequest]) -> list[Admitted | KeyReused]:
        return keep_group(self._engine, group)


def intake_services(host: Services, settings: Settings, homes: TenantHomes) -> Services:
    """The services of a host, for requests that are for another cell."""
    engine, seconds, blobs = host.engine, settings.admission_seconds, BodyBlobs()
    most = MOST_KEPT_BYTES if settings.intake_bytes is None else settings.intake_bytes
    return replace(
        host,
        gate=IntakeGate(engine, seconds, homes, most, **settings.submission_limits),
        admission=IntakeAdmission(engine, seconds, homes, blobs),
        blobs=blobs,
        events=cast("Watch", NoWaiting()),
    )
