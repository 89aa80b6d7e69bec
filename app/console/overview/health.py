"""Whether all is well, in one sentence. Pure.

Problems are ordered: what keeps all jobs from running comes before what affects some, and that
before what only deserves attention. The first one is the sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from models.store.snapshots import LONG_SECONDS

#: An oldest job that waits so many times its objective is more than a burst.
LATE = 10
#: The fraction of recently ended jobs that may be dead.
DEAD_PART = 0.01
#: Names in a sentence; of more it gives the number.
MOST_NAMES = 3


class Level(StrEnum):
    """How bad it is."""

    WELL = "well"
    #: Jobs run, but it deserves attention.
    WATCH = "watch"
    #: Jobs do not run as they should.
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """A pool at one moment."""

    name: str
    #: Jobs in the queue.
    waiting: int = 0
    #: How long the oldest job has waited for a slot, and how long it may.
    wait_seconds: float = 0.0
    objective_seconds: float = 5.0
    #: Slots of the living workers, and how many are in use.
    slots: int = 0
    busy: int = 0
    #: Whether the deployment is configured to have workers for it.
    served: bool = True
    #: Jobs that ended in the last minutes, and how many of them are dead.
    ended: int = 0
    died: int = 0


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """What the verdict is based on."""

    pools: Sequence[PoolHealth] = ()
    #: Whether there is a leading scheduler, or an API process that dispatches in its place.
    leads: bool = True
    relieved: bool = False
    broker_seen: bool = True
    #: Dependencies by the state of their circuit: ``open`` or ``half_open``.
    circuits: Mapping[str, str] = field(default_factory=dict)
    #: Until when open circuits stay open, as it is shown.
    open_until: Mapping[str, str] = field(default_factory=dict)
    #: Why dependencies of these refuse everybody's calls, if that is known.
    outages: Mapping[str, str] = field(default_factory=dict)
    #: Dependencies that rejected calls and are not called for a while.
    closed_quotas: Sequence[str] = ()
    #: Job types.
    quarantined: Sequence[str] = ()
    #: Throttled tenants by pool, and tenants that submit far more jobs than usual.
    throttled: Mapping[str, int] = field(default_factory=dict)
    spiking: int = 0
    #: Age of the oldest open transaction of the database.
    snapshot_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Something that is wrong."""

    level: Level
    sentence: str


trouble = partial(HealthReason, Level.TROUBLE)
watch = partial(HealthReason, Level.WATCH)


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Whether all is well."""

    level: Level
    sentence: str
    #: Other problems, the worst first.
    others: tuple[str, ...] = ()


def judge(readings: HealthReadings) -> HealthVerdict:
    """The verdict on all of it."""
    # Sorting is stable: problems of one level stay in order.
    ordered = sorted(reasons(readings), key=lambda reason: reason.level is not Level.TROUBLE)
    if not ordered:
        return HealthVerdict(Level.WELL, well(readings))
    first, *others = ordered
    return HealthVerdict(first.level, first.sentence, tuple(other.sentence for other in others))


def well(readings: HealthReadings) -> str:
    """That all is well, and what that means now."""
    if any(pool.waiting for pool in readings.pools):
        return "All is well: queued jobs start within their objective."
    if any(pool.busy for pool in readings.pools):
        return "All is well: jobs are running, none are queued."
    return "All is well: workers are ready, no jobs are queued."


def reasons(readings: HealthReadings) -> Iterator[HealthReason]:
    """Every problem, the most important first."""
    yield from services(readings)
    for of_pool in (missing_workers, long_waits):
        for pool in readings.pools:
            yield from of_pool(pool)
    yield from dependencies(readings)
    for pool in readings.pools:
        if pool.died > 0 and pool.died > DEAD_PART * pool.ended:
            yield watch(f"{jobs(pool.died)} died in {pool.name} in the last five minutes.")
    yield from restrictions(readings)
    for pool in readings.pools:
        if pool.waiting and 0 < pool.slots <= pool.busy:
            yield watch(f"All slots of {pool.name} are busy, and {waiting(pool.waiting)}.")
    if readings.snapshot_seconds >= LONG_SECONDS:
        yield watch(
            f"A database transaction has been open for {readings.snapshot_seconds // 60:.0f} min:"
            " dead rows cannot be removed until it ends."
        )


def services(readings: HealthReadings) -> Iterator[HealthReason]:
    """Scheduler and broker."""
    if readings.relieved:
        yield trouble(
            "No leading scheduler: an API process dispatches in its place,"
            " without fair share and without schedules."
        )
    elif not readings.leads:
        yield trouble("No leading scheduler: jobs are accepted but not dispatched.")
    elif not readings.broker_seen:  # by the leader: without one it is unknown
        yield trouble("The broker is not responding: jobs are accepted and wait for it.")


def missing_workers(pool: PoolHealth) -> Iterator[HealthReason]:
    """A pool without workers."""
    if pool.slots == 0 and pool.waiting:
        yield trouble(f"No worker serves {pool.name}, where {waiting(pool.waiting)}.")
    elif pool.slots == 0 and pool.served:
        yield watch(f"No worker serves {pool.name}; no jobs are queued there yet.")


def long_waits(pool: PoolHealth) -> Iterator[HealthReason]:
    """Jobs that start later than they should."""
    if pool.slots and pool.wait_seconds > pool.objective_seconds:
        late = pool.wait_seconds > LATE * pool.objective_seconds
        yield (trouble if late else watch)(
            f"Jobs in {pool.name} wait {'far ' if late else ''}longer than their objective of"
            f" {pool.objective_seconds:g} s."
        )


def dependencies(readings: HealthReadings) -> Iterator[HealthReason]:
    """Circuits and quotas."""
    for name, reason in sorted(readings.outages.items()):
        yield trouble(f"Calls to {name} fail for everybody: {reason}; jobs that need it wait.")
    for state, effect in (("open", "wait"), ("half_open", "wait for its probes to succeed")):
        found = [name for name, now in readings.circuits.items() if now == state]
        if held := sorted(name for name in found if name not in readings.outages):
            shown = state.replace("_", " ")
            until = readings.open_until
            held = [f"{name} (until {until[name]})" if name in until else name for name in held]
            yield watch(f"The circuit is {shown} for {listed(held)}: jobs that need it {effect}.")
    if closed := sorted(readings.closed_quotas):
        yield watch(f"The quota of {listed(closed)} is exhausted: jobs that need it wait.")


def restrictions(readings: HealthReadings) -> Iterator[HealthReason]:
    """What the scheduler has imposed on types and tenants."""
    if held := sorted(readings.quarantined):
        yield watch(f"Quarantined with fewer attempts, as most runs fail: {listed(held)}.")
    for pool, throttled in sorted(readings.throttled.items()):
        if throttled > 0:
            yield watch(f"{tenants(throttled)} throttled in {pool}, after lost workers.")
    if readings.spiking > 0:
        yield watch(f"{tenants(readings.spiking)} running far more jobs than usual.")


def jobs(number: int) -> str:
    """``3 jobs``, and ``1 job``."""
    return "1 job" if number == 1 else f"{number:,} jobs".replace(",", "\u202f")


def waiting(number: int) -> str:
    """``3 jobs are waiting``, and ``1 job is waiting``."""
    return f"{jobs(number)} {'is' if number == 1 else 'are'} waiting"


def tenants(number: int) -> str:
    """``1 tenant is``, ``2 tenants are``."""
    return "1 tenant is" if number == 1 else f"{number} tenants are"


def listed(names: Sequence[str]) -> str:
    """Some names, or the first of them and how many more."""
    if len(names) <= MOST_NAMES:
        return " and ".join(", ".join(names).rsplit(", ", 1))
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
