"""Which of its limits a run has broken, if any. Pure: what is seen is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.errors import Cancelled, LeaseLost, ResourceViolation, Stop, TimeLimit

#: A run is overdue this long after its limit: by then it was told once, by its own timer.
OVERDUE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a run may do."""

    timeout_seconds: float
    #: How long it may go on after it was cancelled.
    cancel_grace_seconds: float
    #: How long it may stand still.
    progress_seconds: float | None = None
    #: How long it may keep other greenlets from running.
    blocking_seconds: float | None = None
    #: What it may add to a process of its own.
    memory_mb: float | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """What the watchdog sees of a run."""

    #: Since its function was called.
    ran_seconds: float
    #: Since its last checkpoint or report.
    still_seconds: float = 0.0
    #: Since it last let others run; 0 where there are no others.
    blocking_seconds: float = 0.0
    #: Since it was cancelled, if it was.
    cancelled_seconds: float | None = None
    #: Its lease is lost: another worker has the job.
    lost: bool = False
    #: What it has added to its process.
    memory_mb: float = 0.0
    cpu_seconds: float = 0.0


def violation_of(sight: Sight, bounds: Bounds) -> Stop | None:
    """Why the run is to end, or None if it may go on."""
    overdue = sight.ran_seconds > bounds.timeout_seconds + OVERDUE_SECONDS
    if sight.lost and not overdue:
        return LeaseLost()  # of no more consequence, as long as the run has time left
    cancelled = sight.cancelled_seconds
    if cancelled is not None and cancelled > bounds.cancel_grace_seconds:
        return Cancelled()
    if overdue:
        return TimeLimit(f"The run took longer than {bounds.timeout_seconds:g} s.")
    if _beyond(sight.blocking_seconds, bounds.blocking_seconds):
        return ResourceViolation(
            f"The run held its worker for {sight.blocking_seconds:.1f} s without yielding."
        )
    if _beyond(sight.memory_mb, bounds.memory_mb):
        return ResourceViolation(
            f"The run took {sight.memory_mb:.0f} MB of memory; {bounds.memory_mb:g} are allowed."
        )
    if _beyond(sight.cpu_seconds, bounds.cpu_seconds):
        return ResourceViolation(
            f"The run took {sight.cpu_seconds:.1f} s of processor time;"
            f" {bounds.cpu_seconds:g} are allowed."
        )
    if _beyond(sight.still_seconds, bounds.progress_seconds):
        return ResourceViolation(
            f"The run made no progress for {sight.still_seconds:.0f} s:"
            " neither a checkpoint nor a report."
        )
    return None


def _beyond(seen: float, bound: float | None) -> bool:
    return bound is not None and seen > bound
