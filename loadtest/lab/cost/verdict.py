"""The cost of a job as a report: sentences, tables and bars from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from loadtest.lab.cost.waits import LOCK, WAIT_KINDS, Wait, Waited
from loadtest.lab.experiment import SLOTS, Size
from loadtest.lab.peers.costs import HEADINGS, KINDS, POSTGRES, Cost
from loadtest.lab.peers.tables import CELERY, FAIRLINE
from loadtest.report import Bar, Report, Table, at_least, at_most

TITLE = "Cost: what a job takes"
#: The length that the bars are about.
BAR_MS = 50
NO_WAIT = Wait("nothing", "at all", "any statement")
#: Waits that are listed for the most processes of either kind.
LISTED = 6


@dataclass(frozen=True, slots=True)
class Grown:
    """Fairline with so many worker or API processes at work."""

    processes: int
    cost: Cost
    waited: Waited
    #: Jobs per second of slots that are always busy with runs as long as these were; of API
    #: processes there is no such figure.
    ideal: float = 0.0
    #: Jobs that were queued at the end.
    left: int = 0
    #: Of all workers.
    slots: int = 0

    @property
    def of_ideal(self) -> float:
        return self.cost.rate / self.ideal if self.ideal else 0.0


@dataclass(slots=True)
class Measured:
    """Filled by the experiment, read by the report and the pictures."""

    #: Of every contender at fixed rates.
    slots: int
    steady: list[Cost] = field(default_factory=list)
    workers: list[Grown] = field(default_factory=list)
    apis: list[Grown] = field(default_factory=list)
    simulated: Grown | None = None
    #: Plain Celery, ten slots, from a full queue.
    celery: Cost | None = None
    unexpected: int = 0

    @property
    def full(self) -> list[Grown]:
        """All that were measured with a full queue."""
        return [*self.workers, *([self.simulated] if self.simulated else [])]

    def at(self, rate: float, ms: int) -> dict[str, Cost]:
        """What jobs of one length cost at one rate, by contender."""
        return {c.name: c for c in self.steady if (c.offered, c.ms) == (rate, ms)}

    @property
    def rates(self) -> list[float]:
        return sorted({cost.offered for cost in self.steady})

    @property
    def lengths(self) -> list[int]:
        return sorted({cost.ms for cost in self.steady})


@dataclass(frozen=True, slots=True)
class Required:
    #: Most time per job from a full queue outside PostgreSQL, and in it, of plain Celery's time
    #: outside PostgreSQL: 1.0 and 0.4 ms on a machine where Celery takes 4.0 ms.
    of_queued: float
    postgres_of_queued: float
    #: Least part of the ideal rate.
    of_ideal: float
    #: Most of plain Celery's time at the highest rate, all processes together. It neither claims
    #: nor schedules and runs without Flower.
    of_celery: float
    #: Most of one process's time per job that it may take with all of them.
    growth: float
    #: Most backends that wait for a lock on average.
    locked: float


REQUIRED = {
    Size.FULL: Required(0.25, 0.1, 0.99, 1.0, 1.25, 0.15),
    # A few hundred jobs each, and a machine that is still busy with the start of processes.
    Size.QUICK: Required(0.38, 0.2, 0.95, 1.5, 1.5, 0.3),
    # Too short for times; it still must not lose anything.
    Size.MINI: Required(1e9, 1e9, 0.0, 1e9, 1e9, 1e9),
}
NOTES = (
    "Every contender runs alone, set up as in `make lab-peers`, with {} slots in all; Dramatiq "
    "with the broker's confirm of each message. It keeps no row of a job, hence no WAL. Fairline "
    "runs with Flower, as `make up` starts it; plain Celery without, and without events.",
    "Processor time is the kernel's account of the processes named, without the load generator. "
    "What an idle process takes counts too, so at a low rate a job costs more.",
    "With a full queue jobs are written to the table beforehand, so the API takes no part; what "
    "it takes to accept a job is in the table of API processes.",
    "Backends on average: how many were executing a statement at a look, by what they waited for; "
    "CPU is one that waits for nothing but a processor.",
)


def judge(found: Measured, size: Size) -> Report:
    return Report(
        "cost",
        TITLE,
        findings=findings(found),
        tables=tables(found),
        bars=bars(found, REQUIRED[size]),
        notes=[note.format(found.slots) for note in NOTES],
        data={
            "steady": [asdict(cost) | {"ms_per_job": by_kind(cost)} for cost in found.steady],
            "celery": asdict(found.celery) if found.celery else None,
            "workers": [grown_data(each) for each in found.workers],
            "simulated": grown_data(found.simulated) if found.simulated else None,
            "apis": [grown_data(each) for each in found.apis],
        },
    )


def by_kind(cost: Cost) -> dict[str, float]:
    return {kind: round(cost.of(kind), 4) for kind in KINDS if kind in cost.cores}


def grown_data(grown: Grown) -> dict[str, object]:
    return {
        "processes": grown.processes,
        **asdict(grown.cost),
        "ms_per_job": by_kind(grown.cost),
        "of_ideal": grown.of_ideal,
        "left": grown.left,
        "looks": grown.waited.looks,
        "backends": grown.waited.by_kind(),
        "waits": [[*wait, mean] for wait, mean in grown.waited.longest(20)],
    }


def growth(grown: Sequence[Grown]) -> float:
    """Processor time per job with the most processes, of that with the fewest."""
    first, last = grown[0].cost.total, grown[-1].cost.total
    return last / first if first else 0.0


def bars(found: Measured, required: Required) -> list[Bar]:
    fixed = found.at(found.rates[-1], BAR_MS)
    ours, celery = fixed[FAIRLINE].total, fixed[CELERY].total
    claim = f"{BAR_MS}-ms job at {found.rates[-1]:g}/s, of plain Celery's"
    checked = [found.workers[0], *([found.simulated] if found.simulated else [])]
    locked = max(each.waited.by_kind()[LOCK] for each in (*found.workers, *found.apis))
    sides = (("a job", "workers", found.workers), ("an accept", "API processes", found.apis))
    return [
        *(bar for grown in checked for bar in full_bars(grown, found.celery, required)),
        at_most(claim, ours / celery if celery else 0.0, required.of_celery, " x"),
        *(
            at_most(
                f"{what} with {grown[-1].processes} {kind}, of that with one",
                *(growth(grown), required.growth, " x"),
            )
            for what, kind, grown in sides
        ),
        at_most("backends that wait for a lock, on average", locked, required.locked),
        at_least("jobs queued at the end", min(each.left for each in found.full), 1),
        at_most("jobs that never ended", sum(cost.lost for cost in found.steady)),
        at_most("unexpected answers", found.unexpected),
    ]


def full_bars(grown: Grown, celery: Cost | None, required: Required) -> list[Bar]:
    what, cost = f"{grown.cost.ms}-ms job, full queue", grown.cost
    base = celery.but_postgres if celery else 0.0
    outside, inside = (
        spent / base if base else math.inf for spent in (cost.but_postgres, cost.of(POSTGRES))
    )
    return [
        at_most(
            f"{what}, all but PostgreSQL, of plain Celery's", outside, required.of_queued, " x"
        ),
        at_most(f"{what}, PostgreSQL, of it", inside, required.postgres_of_queued, " x"),
        at_least(f"{what}, of {grown.ideal:,.0f}/s", grown.of_ideal, required.of_ideal),
    ]


def findings(found: Measured) -> list[str]:
    rate, one, last = found.rates[-1], found.workers[0], found.workers[-1]
    fixed = found.at(rate, BAR_MS)
    totals = ", ".join(f"{name} {cost.total:.2f}" for name, cost in fixed.items())
    accepted = found.apis[-1]
    whole = accepted.cost.of(POSTGRES) + last.cost.of(POSTGRES)
    (wait, _), *_ = last.waited.longest(1) or [(NO_WAIT, 0.0)]
    return [
        f"A {BAR_MS}-ms job submitted at {rate:g} per second takes so many milliseconds of "
        f"processor time in all processes together: {totals}.",
        f"From a full queue, {SLOTS} slots, it takes {one.cost.but_postgres:.2f} ms and "
        f"{one.cost.of(POSTGRES):.2f} ms in PostgreSQL, with {one.cost.wal:,.0f} bytes of WAL, at "
        f"{one.of_ideal:.1%} of the ideal rate{beside_celery(found.celery)}.",
        f"From {one.processes} to {last.processes} workers a job goes from {one.cost.total:.2f} to "
        f"{last.cost.total:.2f} ms; {last.waited.by_kind()[LOCK]:.2f} backends wait for a lock on "
        f"average. What they wait for most is {wait.kind} {wait.event} in {wait.statement}.",
        f"One core of the scheduler is enough for {last.cost.per_core('scheduler'):,.0f} jobs per "
        f"second. PostgreSQL takes {accepted.cost.of(POSTGRES):.2f} ms to accept a job and "
        f"{last.cost.of(POSTGRES):.2f} ms for the rest of its life: "
        f"{1000 / whole if whole else 0.0:,.0f} jobs per second and core.",
    ]


def beside_celery(celery: Cost | None) -> str:
    if celery is None:
        return ""
    took = f"{celery.but_postgres:.2f} ms and {celery.of(POSTGRES):.2f} ms in PostgreSQL"
    return f"; plain Celery takes {took}, at {celery.rate:,.0f} per second"


def tables(found: Measured) -> list[Table]:
    return [
        *(steady_table(found, rate) for rate in found.rates),
        growth_table(found),
        Table(
            "What backends wait for with the most processes, backends on average",
            ("statement", "kind", "event", "workers", "API"),
            waits(found),
        ),
        core_table(found),
    ]


def steady_table(found: Measured, rate: float) -> Table:
    return Table(
        f"Processor milliseconds per job, {rate:g} jobs per second",
        ("", "ended/s", *HEADINGS),
        [
            (f"{ms} ms, {name}", f"{cost.rate:,.1f}", *cost.cells())
            for ms in found.lengths
            for name, cost in found.at(rate, ms).items()
        ],
    )


def growth_table(found: Measured) -> Table:
    named = {f"{each.processes} × {SLOTS} slots, {each.cost.ms} ms": each for each in found.workers}
    if large := found.simulated:
        named[f"1 × {large.slots} slots, {large.cost.ms} ms"] = large
    named |= {f"{each.processes} API, accept": each for each in found.apis}
    if found.celery:
        celery = Grown(1, found.celery, Waited(), SLOTS * 1000 / found.celery.ms)
        named[f"plain Celery, {SLOTS} slots, {found.celery.ms} ms"] = celery
    return Table(
        "Fairline as processes are added: milliseconds per job, and backends on average",
        ("", "jobs/s", "of ideal", *HEADINGS, *WAIT_KINDS),
        [grown_cells(name, each) for name, each in named.items()],
    )


def core_table(found: Measured) -> Table:
    """Where a process that there is only one of is at its limit."""
    workers, apis = found.workers[-1], found.apis[-1]
    named = {
        f"queue to end, {workers.processes} workers": workers.cost,
        f"accept, {apis.processes} API processes": apis.cost,
    }
    parts = (("scheduler",), (POSTGRES,), KINDS)
    return Table(
        "Jobs per second of one core",
        ("", "scheduler", POSTGRES, "all"),
        [
            (name, *(f"{cost.per_core(*kinds):,.0f}" for kinds in parts))
            for name, cost in named.items()
        ],
    )


def grown_cells(name: str, grown: Grown) -> list[str]:
    part = f"{grown.of_ideal:.1%}" if grown.ideal else ""
    backends = (f"{mean:.2f}" for mean in grown.waited.by_kind().values())
    return [name, f"{grown.cost.rate:,.0f}", part, *grown.cost.cells(), *backends]


def waits(found: Measured) -> list[tuple[str, ...]]:
    """The longest waits of either kind of process, each with both averages."""
    both = [dict(grown[-1].waited.longest(1000)) for grown in (found.workers, found.apis)]
    listed = dict.fromkeys(wait for one in both for wait in list(one)[:LISTED])
    return [
        (
            *(wait.statement, wait.kind, wait.event),
            *(f"{one[wait]:.3f}" if wait in one else "" for one in both),
        )
        for wait in listed
    ]
