"""Wait reasons: why a job has not started, and when it probably will. Pure.

Of all that holds a job back, the first in the order of :class:`WaitReason` binds: what concerns the
job, then its dependency, its tenant, its pool. The others are listed as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from app.policy.forecast import (
    Forecast,
    QueueFlow,
    later,
    predict_paced,
    predict_start,
    predict_wait,
)


class WaitReason(StrEnum):
    """What holds a job back, in the order in which one binds; see :func:`in_words`."""

    NONE = "none"
    CELL_AWAY = "cell_away"
    RUNNING = "running"
    WORKER_LOST = "worker_lost"
    STARTING = "starting"
    SCHEDULE = "schedule"
    BROKER = "broker"
    CIRCUIT = "circuit"
    QUOTA = "quota"
    SUSPENDED = "suspended"
    THROTTLE = "throttle"
    CAP = "cap"
    FREE_SLICE = "free_slice"
    NO_WORKERS = "no_workers"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a job and what may hold it back. Seconds are counted from now."""

    status: str
    pool: str
    #: Its tenant's queued jobs ahead of it, and whether there may be more.
    ahead: int
    at_least: bool
    flow: QueueFlow
    #: How many there are, where they were not counted to the end.
    estimated_ahead: float | None = None
    #: Until it is due; None if it was never scheduled.
    due_seconds: float | None = None
    dependency: str = ""
    #: State of its dependency's circuit, and how long it has been so.
    circuit: str = "closed"
    circuit_seconds: float = 0.0
    #: Why the dependency refuses everybody's calls; empty if they just fail.
    circuit_reason: str = ""
    #: How long a circuit stays open.
    open_seconds: float = 60.0
    #: Whether its dependency has a quota, and until it accepts calls again.
    quota: bool = False
    closed_seconds: float = 0.0
    #: Calls that the quota allows; None if unknown.
    calls_per_second: float | None = None
    #: Whether its tenant is suspended, until somebody resumes it.
    suspended: bool = False
    throttled: bool = False
    #: Of a running job: its worker is lost.
    worker_lost: bool = False
    #: … or it was asked to stop.
    cancelled: bool = False
    #: Whether the leader does not reach the broker.
    broker_away: bool = False
    #: Whether it is a free account, and those have as many in flight as they may.
    free_full: bool = False


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """Why a job waits, and for how long."""

    reason: WaitReason
    detail: str
    #: The other reasons, in order.
    also: tuple[WaitReason, ...]
    #: Until it starts; None if unknown.
    forecast: Forecast | None

    @property
    def seconds(self) -> float | None:
        """What is expected."""
        return None if self.forecast is None else self.forecast.seconds


@dataclass(frozen=True, slots=True)
class Voice:
    """How a tenant is referred to."""

    has: str
    of: str
    share: str


TO_TENANT = Voice("You have", "of yours", "your share")
#: For operators.
ABOUT_TENANT = Voice("The tenant has", "of the tenant", "its share")


def explain(facts: Facts, voice: Voice = TO_TENANT) -> WaitExplanation:
    """The binding reason in words, and when the job probably starts."""
    binding, *others = holding(facts)
    detail, wait = in_words(binding, facts, voice), predicted(binding, facts)
    if wait is not None and facts.circuit != "closed":
        wait = replace(wait, latest=None)  # nobody knows when the dependency is back
    return WaitExplanation(binding, detail, tuple(others), wait)


def holding(facts: Facts) -> tuple[WaitReason, ...]:
    """Everything that keeps it from running, in order; never empty."""
    flow = facts.flow
    if facts.status == "dispatched":
        # A worker that takes it hands it back.
        held = {
            WaitReason.CIRCUIT: facts.circuit == "open",
            WaitReason.QUOTA: facts.closed_seconds > 0,
            WaitReason.NO_WORKERS: flow.slots <= 0,
        }
        found = tuple(reason for reason, holds in held.items() if holds)
        return found or (WaitReason.STARTING,)
    if facts.status not in ("scheduled", "queued"):
        running = WaitReason.WORKER_LOST if facts.worker_lost else WaitReason.RUNNING
        return (running if facts.status == "running" else WaitReason.NONE,)
    at_cap = flow.cap is not None and flow.own >= flow.cap
    idle = flow.slots > 0 and flow.in_flight < flow.slots
    held = {
        WaitReason.SCHEDULE: facts.status == "scheduled",
        WaitReason.BROKER: facts.broker_away,
        WaitReason.CIRCUIT: facts.circuit != "closed",
        # With idle slots and nothing else in the way, it is the quota's pace that holds it.
        WaitReason.QUOTA: facts.closed_seconds > 0 or (facts.quota and idle and not at_cap),
        WaitReason.SUSPENDED: facts.suspended,
        WaitReason.THROTTLE: facts.throttled and at_cap,
        WaitReason.CAP: not (facts.throttled or facts.suspended) and at_cap,
        WaitReason.FREE_SLICE: facts.free_full,
        WaitReason.NO_WORKERS: flow.slots <= 0,
    }
    found = tuple(reason for reason, holds in held.items() if holds)
    return found or (WaitReason.SHARE,)


def predicted(binding: WaitReason, facts: Facts) -> Forecast | None:
    """Until it starts."""
    if binding in (WaitReason.NONE, WaitReason.RUNNING, WaitReason.WORKER_LOST):
        return None
    if facts.broker_away and facts.status == "queued":
        return None  # nobody knows when it is back
    if facts.suspended and binding is not WaitReason.STARTING:
        return None  # nor when it is resumed
    if binding is WaitReason.STARTING:
        return predict_start(facts.flow)
    ahead = facts.ahead if facts.estimated_ahead is None else facts.estimated_ahead
    wait = predict_wait(ahead, facts.flow, not_before(facts))
    if wait is None or not facts.quota:
        return wait
    if facts.calls_per_second is None:
        # The pace is unknown; when the dependency reopens is known.
        return None if binding is WaitReason.QUOTA and facts.closed_seconds <= 0 else wait
    share = facts.flow.share
    paced = predict_paced(ahead, facts.calls_per_second, share, not_before(facts))
    return None if paced is None else later(wait, paced)


def not_before(facts: Facts) -> float:
    """Seconds for which it certainly does not start."""
    opens = facts.open_seconds - facts.circuit_seconds if facts.circuit == "open" else 0.0
    return max(0.0, facts.due_seconds or 0.0, opens, facts.closed_seconds)


def in_words(reason: WaitReason, facts: Facts, voice: Voice = TO_TENANT) -> str:
    """The reason as a sentence."""
    match reason:
        case WaitReason.RUNNING if facts.cancelled:
            return "It is running, and was asked to stop."
        case WaitReason.SCHEDULE if (due := facts.due_seconds or 0.0) > 0:
            return f"It is not due for another {spoken(due)}."
        case WaitReason.CIRCUIT if facts.circuit == "open":
            again = f"it is called again in {spoken(not_before(facts))}"
            why = " keeps failing and is not called"
            if facts.circuit_reason:
                why = f": {facts.circuit_reason}"
            return f"{facts.dependency}{why}; {again}."
        case WaitReason.CIRCUIT if facts.circuit_reason:
            probing = "a few jobs probe whether it is back"
            return f"{facts.dependency}: {facts.circuit_reason}; {probing}."
        case WaitReason.QUOTA if facts.closed_seconds > 0:
            again = f"it accepts calls again in {spoken(facts.closed_seconds)}"
            return f"The quota of {facts.dependency} is used up; {again}."
        case WaitReason.CAP:
            jobs = "1 job" if facts.flow.own == 1 else f"{facts.flow.own} jobs"
            most = f"of {facts.flow.cap} at most"
            return f"{voice.has} {jobs} in flight in the pool {facts.pool}, {most}."
        case WaitReason.FREE_SLICE:
            all_slots = f"Free accounts together have all the slots of the pool {facts.pool}"
            return f"{all_slots} that they may: {facts.flow.slots}."
        case WaitReason.SHARE:
            return share_in_words(facts, voice)
    return SENTENCES[reason].format(facts=facts, voice=voice)


#: Of reasons that need no more than a name.
SENTENCES = {
    WaitReason.NONE: "It has ended.",
    WaitReason.CELL_AWAY: (
        "The cell of your account is not responding; the job is kept, and starts when it is back."
    ),
    WaitReason.RUNNING: "It is running.",
    WaitReason.WORKER_LOST: "Its worker was lost; it is about to be queued again.",
    WaitReason.STARTING: "It has been dispatched; a worker is about to start it.",
    WaitReason.SCHEDULE: "It is due and about to be queued.",
    WaitReason.BROKER: "The broker is not responding; it is dispatched when that is back.",
    WaitReason.CIRCUIT: "{facts.dependency} kept failing; a few jobs probe whether it is back.",
    WaitReason.QUOTA: "Calls to {facts.dependency} are paced to its quota.",
    WaitReason.SUSPENDED: "{voice.has} been suspended by an operator.",
    WaitReason.THROTTLE: (
        "Jobs {voice.of} killed workers of the pool {facts.pool}: they run one at a time."
    ),
    WaitReason.NO_WORKERS: "The pool {facts.pool} has no workers.",
}


def share_in_words(facts: Facts, voice: Voice) -> str:
    """How many jobs are ahead, and the tenant's share of the pool."""
    own = f"It is the first {voice.of}"
    if facts.ahead:
        least = "At least " if facts.at_least else ""
        jobs = f"job {voice.of} is" if facts.ahead == 1 else f"jobs {voice.of} are"
        own = f"{least}{facts.ahead} {jobs} ahead of it"
    return f"{own}; {voice.share} of the pool {facts.pool} is {facts.flow.share:.1%} now."


def spoken(seconds: float) -> str:
    """A duration, rounded."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds):.0f} s"
