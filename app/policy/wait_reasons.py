"""Why a job has not started: of all that hold it, the one that binds. Pure.

In the order of :class:`Reason`: first what concerns the job, then its dependency, its tenant,
its pool, and last that others are ahead. What stands further back would hold it all the same if
the binding one went away, and is told as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.policy.forecast import QueueFlow, predict_paced, predict_start, predict_wait


class WaitReason(StrEnum):
    """What keeps a job from running, in the order in which one binds."""

    #: It has ended.
    NONE = "none"
    RUNNING = "running"
    #: Its message is under way to a worker.
    STARTING = "starting"
    #: It is put off until a time.
    SCHEDULE = "schedule"
    #: Its dependency fails and is not called.
    CIRCUIT = "circuit"
    #: Its dependency takes no more for now.
    QUOTA = "quota"
    #: Its tenant's jobs killed workers and run one at a time.
    THROTTLE = "throttle"
    #: Its tenant has as many in flight as it may.
    CAP = "cap"
    #: Its tenant is a free account, and those together have as many in flight as they may.
    FREE_SLICE = "free_slice"
    #: Nobody serves its pool.
    NO_WORKERS = "no_workers"
    #: Others are ahead.
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a job and of what may hold it. Seconds are counted from now."""

    status: str
    pool: str
    #: Its tenant's jobs ahead of it in the queue, and whether there may be more.
    ahead: int
    at_least: bool
    flow: QueueFlow
    #: Until it is due; None if it was never put off.
    due_seconds: float | None = None
    dependency: str = ""
    #: State of its dependency's circuit, and how long that was so.
    circuit: str = "closed"
    circuit_seconds: float = 0.0
    #: An open circuit stays open for so long.
    open_seconds: float = 60.0
    #: Whether its dependency has a quota, and until it takes calls again.
    quota: bool = False
    closed_seconds: float = 0.0
    #: Calls that the quota allows; None if nobody said.
    calls_per_second: float | None = None
    throttled: bool = False
    #: Whether it is a free account, and those have all that they may.
    free_full: bool = False


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """The answer to: why is my job waiting?"""

    reason: WaitReason
    detail: str
    #: The others that hold it too, in order.
    also: tuple[WaitReason, ...]
    #: Until it starts; None if nobody can say.
    seconds: float | None


def explain(facts: Facts) -> WaitExplanation:
    """The binding reason in words, and when the job probably starts."""
    reasons = holding(facts)
    binding = reasons[0]
    return WaitExplanation(
        binding, in_words(binding, facts), reasons[1:], predicted(binding, facts)
    )


def holding(facts: Facts) -> tuple[WaitReason, ...]:
    """Everything that keeps it from running, in order; never empty."""
    match facts.status:
        case "running":
            return (WaitReason.RUNNING,)
        case "dispatched":
            return (WaitReason.STARTING,)
        case "scheduled" | "queued":
            pass
        case _:
            return (WaitReason.NONE,)
    flow = facts.flow
    at_cap = flow.cap is not None and flow.own >= flow.cap
    idle = flow.slots > 0 and flow.in_flight < flow.slots
    held = {
        WaitReason.SCHEDULE: facts.status == "scheduled",
        WaitReason.CIRCUIT: facts.circuit != "closed",
        # With slots free and nothing else in the way it is the quota's pace that holds it.
        WaitReason.QUOTA: facts.closed_seconds > 0 or (facts.quota and idle and not at_cap),
        WaitReason.THROTTLE: facts.throttled and at_cap,
        WaitReason.CAP: not facts.throttled and at_cap,
        WaitReason.FREE_SLICE: facts.free_full,
        WaitReason.NO_WORKERS: flow.slots <= 0,
    }
    found = tuple(reason for reason, holds in held.items() if holds)
    return found or (WaitReason.SHARE,)


def predicted(binding: WaitReason, facts: Facts) -> float | None:
    """Seconds until it starts."""
    match binding:
        case WaitReason.NONE | WaitReason.RUNNING:
            return None
        case WaitReason.STARTING:
            # Behind what its tenant has at the broker, itself among it.
            return predict_start(facts.flow)
    seconds = predict_wait(facts.ahead, facts.flow, not_before(facts))
    if seconds is None or not facts.quota:
        return seconds
    if facts.calls_per_second is None:
        # It is paced, and nobody knows how; but when it opens is known.
        return None if binding is WaitReason.QUOTA and facts.closed_seconds <= 0 else seconds
    share = facts.flow.share
    paced = predict_paced(facts.ahead, facts.calls_per_second, share, not_before(facts))
    return None if paced is None else max(seconds, paced)


def not_before(facts: Facts) -> float:
    """Seconds for which it certainly does not start."""
    opens = facts.open_seconds - facts.circuit_seconds if facts.circuit == "open" else 0.0
    return max(0.0, facts.due_seconds or 0.0, opens, facts.closed_seconds)


def in_words(reason: WaitReason, facts: Facts) -> str:
    """The reason as a person would say it."""
    match reason:
        case WaitReason.NONE:
            return "It has ended."
        case WaitReason.RUNNING:
            return "It is running."
        case WaitReason.STARTING:
            return "It has been dispatched; a worker is about to take it."
        case WaitReason.SCHEDULE:
            due = facts.due_seconds or 0.0
            if due > 0:
                return f"It is not due for another {spoken(due)}."
            return "It is due and about to join the queue."
        case WaitReason.CIRCUIT if facts.circuit == "open":
            return (
                f"{facts.dependency} keeps failing and is not called;"
                f" it is asked again in {spoken(not_before(facts))}."
            )
        case WaitReason.CIRCUIT:
            return (
                f"{facts.dependency} kept failing; a few jobs are sent to see whether it is back."
            )
        case WaitReason.QUOTA if facts.closed_seconds > 0:
            return (
                f"The quota of {facts.dependency} is spent;"
                f" it takes calls again in {spoken(facts.closed_seconds)}."
            )
        case WaitReason.QUOTA:
            return f"Calls to {facts.dependency} are paced to its quota."
        case WaitReason.THROTTLE:
            return f"Jobs of yours killed workers of the pool {facts.pool}: they run one at a time."
        case WaitReason.CAP:
            jobs = "1 job" if facts.flow.own == 1 else f"{facts.flow.own} jobs"
            return (
                f"You have {jobs} in flight in the pool {facts.pool}, of {facts.flow.cap} at most."
            )
        case WaitReason.FREE_SLICE:
            return (
                f"Free accounts together have all the slots of the pool {facts.pool}"
                f" that they may: {facts.flow.slots}."
            )
        case WaitReason.NO_WORKERS:
            return f"The pool {facts.pool} has no workers."
        case WaitReason.SHARE:
            return share_in_words(facts)


def share_in_words(facts: Facts) -> str:
    """Who is ahead, and what part of the pool the tenant has."""
    if not facts.ahead:
        own = "It is the first of yours"
    else:
        least = "At least " if facts.at_least else ""
        jobs = "job of yours is" if facts.ahead == 1 else "jobs of yours are"
        own = f"{least}{facts.ahead} {jobs} ahead of it"
    return f"{own}; your share of the pool {facts.pool} is {facts.flow.share:.1%} now."


def spoken(seconds: float) -> str:
    """A stretch of time, roughly."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
