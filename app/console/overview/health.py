"""Whether all is well, in one sentence. Pure.

Every reason not to be content has a place: what keeps all jobs from running comes before what
keeps some, and that before what is only worth a look. The gravest is the sentence, the others
follow. No reason, and all is well; there is no third.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

#: The oldest may wait so many times its pool's objective before that is more than a burst.
LATE = 10
#: Of the jobs that ended lately, the part that may be dead.
DEAD_PART = 0.01
#: Names that a sentence tells; of more it tells how many.
MOST_NAMES = 3


class Level(StrEnum):
    """How grave it is."""

    WELL = "well"
    #: Jobs run, but somebody should look.
    WATCH = "watch"
    #: Jobs do not run as they should.
    TROUBLE = "trouble"


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """A pool at one moment."""

    name: str
    #: Jobs in the line.
    waiting: int = 0
    #: How long the oldest waits that only its turn is missing for, and how long it may.
    wait_seconds: float = 0.0
    objective_seconds: float = 5.0
    #: Slots of the living workers, and how many are in use.
    slots: int = 0
    busy: int = 0
    #: Whether the deployment says that it has workers for it.
    served: bool = True
    #: Jobs that ended in the last minutes, and how many of them are dead.
    ended: int = 0
    died: int = 0


@dataclass(frozen=True, slots=True)
class HealthReadings:
    """What is judged."""

    pools: Sequence[PoolHealth] = ()
    #: Whether a scheduler leads, or an API process stands in for it.
    leads: bool = True
    relieved: bool = False
    broker_seen: bool = True
    #: Dependencies by the state of their circuit: ``open`` or ``half_open``.
    circuits: Mapping[str, str] = field(default_factory=dict)
    #: Dependencies that refused, and are not asked for a while.
    closed_quotas: Sequence[str] = ()
    #: Job types.
    quarantined: Sequence[str] = ()
    #: Tenants that run one job at a time in a pool, by pool; and tenants far above their habit.
    throttled: Mapping[str, int] = field(default_factory=dict)
    spiking: int = 0


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Something that is not as it should be."""

    level: Level
    #: One sentence.
    sentence: str


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Whether all is well."""

    level: Level
    sentence: str
    #: What else is not well, the gravest first.
    others: tuple[str, ...] = ()


def judge(readings: HealthReadings) -> HealthVerdict:
    """The word on all of it."""
    found = list(reasons(readings))
    grave = [reason for reason in found if reason.level is Level.TROUBLE]
    ordered = grave + [reason for reason in found if reason.level is not Level.TROUBLE]
    if not ordered:
        return HealthVerdict(Level.WELL, well(readings))
    first, *others = ordered
    return HealthVerdict(first.level, first.sentence, tuple(other.sentence for other in others))


def well(readings: HealthReadings) -> str:
    """That all is well, and what that means now."""
    if any(pool.waiting for pool in readings.pools):
        return "All is well: what waits is served within its objective."
    if any(pool.busy for pool in readings.pools):
        return "All is well: jobs run, and nothing waits."
    return "All is well: workers are ready, and nothing waits."


def reasons(readings: HealthReadings) -> Iterator[HealthReason]:
    """Every reason, in the order of its weight."""
    yield from of_the_house(readings)
    yield from of_missing_workers(readings.pools)
    yield from of_waits(readings.pools)
    yield from of_dependencies(readings)
    yield from of_deaths(readings.pools)
    yield from of_verdicts(readings)
    yield from of_slots(readings.pools)


def of_the_house(readings: HealthReadings) -> Iterator[HealthReason]:
    """Scheduler and broker."""
    if readings.relieved:
        yield HealthReason(
            Level.TROUBLE,
            "No scheduler leads: an API process dispatches in its place,"
            " without fair share and without retries.",
        )
    elif not readings.leads:
        yield HealthReason(
            Level.TROUBLE, "No scheduler leads: jobs are accepted, but nothing is dispatched."
        )
    elif not readings.broker_seen:  # by the leader: without one nobody can tell
        yield HealthReason(
            Level.TROUBLE, "The broker does not answer: jobs are accepted and wait for it."
        )


def of_missing_workers(pools: Sequence[PoolHealth]) -> Iterator[HealthReason]:
    """Pools that nobody serves."""
    for pool in pools:
        if pool.slots == 0 and pool.waiting:
            yield HealthReason(
                Level.TROUBLE,
                f"No worker serves {pool.name}, where {jobs(pool.waiting, 'wait')}.",
            )
        elif pool.slots == 0 and pool.served:
            yield HealthReason(
                Level.WATCH, f"No worker serves {pool.name}; nothing waits there yet."
            )


def of_waits(pools: Sequence[PoolHealth]) -> Iterator[HealthReason]:
    """Jobs whose turn comes later than it should."""
    for pool in pools:
        if pool.slots == 0 or pool.wait_seconds <= pool.objective_seconds:
            continue
        late = pool.wait_seconds > LATE * pool.objective_seconds
        yield HealthReason(
            Level.TROUBLE if late else Level.WATCH,
            f"Jobs in {pool.name} wait {'far ' if late else ''}longer than their objective of"
            f" {pool.objective_seconds:g} s.",
        )


def of_dependencies(readings: HealthReadings) -> Iterator[HealthReason]:
    """Circuits and quotas."""
    for state, effect in (("open", "wait"), ("half_open", "wait for the first to succeed")):
        if held := sorted(name for name, now in readings.circuits.items() if now == state):
            told = state.replace("_", " ")
            yield HealthReason(
                Level.WATCH, f"The circuit is {told} for {listed(held)}: jobs in its lane {effect}."
            )
    if closed := sorted(readings.closed_quotas):
        yield HealthReason(
            Level.WATCH, f"The quota of {listed(closed)} is used up for now: jobs in its lane wait."
        )


def of_deaths(pools: Sequence[PoolHealth]) -> Iterator[HealthReason]:
    """Jobs that died lately, where they are more than a few."""
    for pool in pools:
        if pool.died > 0 and pool.died > DEAD_PART * pool.ended:
            yield HealthReason(
                Level.WATCH,
                f"{jobs(pool.died, 'died')} in {pool.name} in the last five minutes.",
            )


def of_verdicts(readings: HealthReadings) -> Iterator[HealthReason]:
    """What the scheduler holds against types and tenants."""
    if held := sorted(readings.quarantined):
        yield HealthReason(
            Level.WATCH,
            f"In quarantine, with fewer tries, as most of its runs fail: {listed(held)}.",
        )
    for pool, tenants in sorted(readings.throttled.items()):
        if tenants > 0:
            yield HealthReason(
                Level.WATCH, f"{people(tenants)} throttled in {pool}, after lost workers."
            )
    if readings.spiking > 0:
        yield HealthReason(
            Level.WATCH, f"{people(readings.spiking)} running far more jobs than usual."
        )


def of_slots(pools: Sequence[PoolHealth]) -> Iterator[HealthReason]:
    """Pools without room."""
    for pool in pools:
        if pool.waiting and 0 < pool.slots <= pool.busy:
            yield HealthReason(
                Level.WATCH, f"Every slot of {pool.name} is busy, and {jobs(pool.waiting, 'wait')}."
            )


def jobs(number: int, verb: str) -> str:
    """``3 jobs wait``, and ``1 job waits``."""
    if number == 1:
        return f"1 job {verb if verb == 'died' else verb + 's'}"
    return f"{number:,} jobs {verb}".replace(",", "\u202f")


def people(number: int) -> str:
    """``1 tenant is``, ``2 tenants are``."""
    return "1 tenant is" if number == 1 else f"{number} tenants are"


def listed(names: Sequence[str]) -> str:
    """Some names, or the first of them and how many more."""
    if len(names) <= MOST_NAMES:
        return " and ".join(", ".join(names).rsplit(", ", 1))
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
