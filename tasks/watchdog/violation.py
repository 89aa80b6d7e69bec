"""Which of its limits a run has broken, if any. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.errors import Cancelled, LeaseLost, ResourceViolation, Stop, TimeLimit

#: A run is overdue this long after its limit: by then its own timer has interrupted it once.
OVERDUE_SECONDS = 0.5
#: What is reported when a limit is exceeded, by field of Sight and Bounds.
MESSAGES = {
    "blocking_seconds": "The run blocked its worker for {:.1f} s without yielding.",
    "memory_mb": "The run used {:.0f} MB of memory; {:g} are allowed.",
    "cpu_seconds": "The run used {:.1f} s of CPU time; {:g} are allowed.",
    "checkpoint_seconds": "The run saved no checkpoint for {:.0f} s; its pool requires one every"
    " {:g} s, with ctx.checkpoint().",
    "progress_seconds": "The run made no progress for {:.0f} s: no checkpoint and no report.",
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a run; None: no limit."""

    timeout_seconds: float
    #: How long it may go on after it was cancelled.
    cancel_grace_seconds: float
    #: How long it may make no progress.
    progress_seconds: float | None = None
    #: How long it may keep other greenlets from running.
    blocking_seconds: float | None = None
    #: What it may add to a dedicated process.
    memory_mb: float | None = None
    cpu_seconds: float | None = None
    #: How long it may go without a checkpoint.
    checkpoint_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What the watchdog sees of a run."""

    #: Since its function was called.
    ran_seconds: float
    #: Since its last checkpoint or progress report.
    progress_seconds: float = 0.0
    #: Since it last let other greenlets run; 0 where there are none.
    blocking_seconds: float = 0.0
    #: Since it was cancelled, if it was.
    cancelled_seconds: float | None = None
    #: Its lease is lost: another worker has the job.
    lost: bool = False
    #: What it has added to its process.
    memory_mb: float = 0.0
    cpu_seconds: float = 0.0
    #: Since its last checkpoint, or its start.
    checkpoint_seconds: float = 0.0


def violation_of(sight: Sight, bounds: Bounds) -> Stop | None:
    """Why the run is to end, or None if it may go on."""
    overdue = sight.ran_seconds > bounds.timeout_seconds + OVERDUE_SECONDS
    if sight.lost and not overdue:
        return LeaseLost()  # its result no longer counts, but it may use the time it has
    cancelled = sight.cancelled_seconds
    if cancelled is not None and cancelled > bounds.cancel_grace_seconds:
        return Cancelled()
    if overdue:
        return TimeLimit(f"The run took longer than {bounds.timeout_seconds:g} s.")
    for limit, message in MESSAGES.items():
        seen, bound = getattr(sight, limit), getattr(bounds, limit)
        if bound is not None and seen > bound:
            return ResourceViolation(message.format(seen, bound))
    return None
