"""A claimed job in a worker process, while it waits, runs and is settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType

from models.jobs.claim import Claim
from models.jobs.run_logs import Logged
from models.pools import POOLS
from tasks.errors import Stop
from tasks.worker.run_log import RunLog

#: The job that runs in this thread or greenlet, for log lines.
current_claim: ContextVar[Claim | None] = ContextVar("fairline_claim", default=None)


@dataclass(slots=True)
class Held:
    """A claim that this process holds.

    Read by the watchdog's thread without a lock: each field is written whole.
    """

    claim: Claim
    timeout_seconds: float
    #: It is handed back soon if it does not begin: it came in a message with others, was given to
    #: the worker, or came beside given jobs.
    waits_briefly: bool = False
    #: It was given to the worker, without a message.
    given: bool = False
    #: The lease is known to be lost.
    lost: bool = False
    #: It waits no more: it runs, or is being handed back. Written under the lock of the slots.
    taken: bool = False
    #: The row does not know yet that the run has begun: there was no slot for it at once.
    start_unrecorded: bool = False
    #: When the function was called, by the monotonic clock; and whether it has a slot.
    started: float | None = None
    running: bool = False
    #: What is called from this frame belongs to the run; set by the pipeline while it runs.
    frame: FrameType | None = field(default=None, repr=False, compare=False)
    #: When it was claimed.
    claimed: float = field(default_factory=time.monotonic)
    #: When this process read that the job is cancelled, and whether the function has seen it.
    cancelled: float | None = None
    cancel_seen: bool = False
    #: Last checkpoint, progress report or start: proof that the run makes progress.
    moved: float = 0.0
    #: Last checkpoint or start.
    saved: float = 0.0
    #: It waits for a checkpoint to be written, however long that takes.
    saving: bool = False
    #: Progress as JSON, and whether the row has it and the tokens.
    progress: str | None = None
    progress_written: bool = True
    #: Checkpoints this run has written.
    checkpoints: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    #: What it logged, None if nothing, and the traceback of what it raised.
    log: RunLog | None = field(default=None, repr=False, compare=False)
    traceback: str | None = field(default=None, repr=False)
    #: Tokens in and out as the dependency's quota counts them, if the run reported that.
    quota_tokens: tuple[int, int] | None = None
    #: Raises a Stop inside the run, where that is possible; callable from any thread.
    interrupt: Callable[[Stop], None] | None = None
    #: Ends that and stops the timer of the run; set as long as they are not ended.
    disarm: Callable[[], None] | None = None
    #: A Stop to be raised by a signal handler in a run that does not yield.
    strike: Stop | None = None
    #: Memory and CPU time of the process when the run began, where it has its own.
    memory_before: int = 0
    cpu_before: float = 0.0

    def begin(self) -> None:
        """It has a slot. Its time starts now; after a loss, once its start is recorded."""
        self.running = True
        if not (self.claim.lost_claims or self.claim.crashes):
            self.start_time()

    def start_time(self) -> None:
        """The function is called now."""
        self.started = self.moved = self.saved = time.monotonic()

    def ran(self, now: float) -> float:
        """Seconds since the function was called."""
        return 0.0 if self.started is None else now - self.started

    @property
    def logged(self) -> Logged | None:
        """What is kept of it for its author; None if it logged and raised nothing."""
        if self.log is None:
            if self.traceback is None:
                return None
            return Logged(None, 0, self.traceback, self.claim.tenant_id)
        return Logged(*self.log.document(), self.traceback, self.claim.tenant_id)

    @property
    def waited(self) -> float | None:
        """Seconds from when the job was due to its first start; None if this was not its first."""
        claim = self.claim
        if self.started is None or claim.wait_seconds is None or claim.attempt or claim.deferrals:
            return None
        return claim.wait_seconds + self.started - self.claimed

    def waited_too_long(self, now: float, brief_seconds: float | None = None) -> bool:
        """Whether another worker should have it: for as long as a lease it did not begin here, or
        for ``brief_seconds`` if it ``waits_briefly``."""
        most = POOLS[self.claim.pool].lease_seconds
        if self.waits_briefly and brief_seconds is not None:
            most = min(most, brief_seconds)
        return not self.taken and now - self.claimed >= most
