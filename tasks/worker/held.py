"""What a worker process knows of a job it has claimed, while it waits, runs and is settled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType

from models.jobs.claim import Claim
from models.pools import POOLS
from tasks.errors import Stop


@dataclass(slots=True)
class Held:
    """A claim that this process holds.

    Read by the watchdog's own thread without a lock: each field is written whole.
    """

    claim: Claim
    timeout_seconds: float
    #: The lease is known to be lost.
    lost: bool = False
    #: When the function was called, on the process's own clock; and whether it is still at it.
    started: float | None = None
    running: bool = False
    #: What is called from this frame belongs to the run; set by the pipeline while it runs.
    frame: FrameType | None = field(default=None, repr=False, compare=False)
    #: When the lease was last renewed.
    beaten: float = field(default_factory=time.monotonic)
    #: When this process heard that the job is cancelled.
    cancelled: float | None = None
    #: Whether the function was told so.
    cancel_seen: bool = False
    #: Last checkpoint, report or start: what proves that the run gets on.
    moved: float = 0.0
    #: It waits for a checkpoint to be written: not its fault if that takes long.
    saving: bool = False
    #: Progress as JSON, and whether the row has it.
    progress: str | None = None
    progress_written: bool = True
    #: Checkpoints this run has written.
    checkpoints: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    #: Tokens as a dependency's quota counts them, in and out, if the run said so.
    quota_tokens: tuple[int, int] | None = None
    #: Raises a Stop inside the run, where that is possible; callable from any thread.
    interrupt: Callable[[Stop], None] | None = None
    #: A Stop that waits to be raised on top of a run that does not yield.
    strike: Stop | None = None
    #: Memory and processor time of the process when the run began, where it has its own.
    memory_before: int = 0
    cpu_before: float = 0.0

    def begin(self) -> None:
        """The function is called now."""
        self.started = self.moved = time.monotonic()
        self.running = True

    def ran(self, now: float) -> float:
        """Seconds since the function was called."""
        return 0.0 if self.started is None else now - self.started

    def due(self, now: float) -> bool:
        """Whether to renew the lease."""
        return now - self.beaten >= POOLS[self.claim.pool].heartbeat_seconds
