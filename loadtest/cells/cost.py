"""Two cells against one: the processor time of a job.

One Fairline without cells and with two workers; two cells with a worker each, their registry and
one API process for both, under the same load; and one Fairline with one worker under half of it,
which has as much to do as each of the cells. They take turns. Everything counts: API, schedulers,
workers, PostgreSQL, RabbitMQ, registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from loadtest.cells.clients import Clients, application
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import CellPlan, Installation, installation
from loadtest.cells.judge import settle
from loadtest.figures import cpu_seconds
from loadtest.lab.experiment import Size
from loadtest.report import Report, Table, at_least, at_most

TITLE = "Two cells against one: processor time per job"
MOST = 1.05
ONE, TWO, HALF = "one Fairline", "two cells", "one Fairline, half the load"
#: Of the load, by side.
LOADS = {ONE: 1.0, HALF: 0.5, TWO: 1.0}
PARTS = ("api", "scheduler", "worker", "postgres", "rabbitmq", "registry")
#: Half of them with half of the load.
TENANTS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    per_second: float
    warm_seconds: float
    seconds: float


PLANS = {
    Size.FULL: Plan(rounds=3, per_second=120.0, warm_seconds=15.0, seconds=60.0),
    Size.QUICK: Plan(rounds=1, per_second=60.0, warm_seconds=8.0, seconds=20.0),
    Size.MINI: Plan(rounds=1, per_second=10.0, warm_seconds=1.0, seconds=3.0),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one side used in one round."""

    side: str
    jobs: int
    #: Milliseconds of processor time per job, by part.
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def run(run: Run) -> Report:
    plan = PLANS[run.size]
    costs: list[Cost] = []
    for number in range(1, plan.rounds + 1):
        for side in LOADS:
            run.console.print(f"round {number}: {side}", highlight=False)
            costs.append(one_side(run, side, plan))
    return report(costs, plan)


def one_side(run: Run, side: str, plan: Plan) -> Cost:
    plans = {
        ONE: [CellPlan("cell-1", workers=2)],
        HALF: [CellPlan("cell-1")],
        TWO: [CellPlan("cell-1"), CellPlan("cell-2")],
    }[side]
    with installation("cells-cost", plans, registry=side == TWO) as made:
        cells = list(made.cells.values())
        customers = [
            made.customer(f"tenant-{number}", cells[number % len(cells)])
            for number in range(round(TENANTS * LOADS[side]))
        ]
        port = made.start_api(workers=1)
        clients = Clients(customers, {"": port}, plan.per_second * LOADS[side], application)
        with clients.running():
            run.wait("warming up", plan.warm_seconds)
            before, accepted = used(made), len(clients.accepted)
            run.wait("load", plan.seconds)
            # What was accepted meanwhile has nearly all been run: none waits for long.
            after, jobs = used(made), len(clients.accepted) - accepted
        settle(cells)
    parts = {part: 1000 * (after[part] - before[part]) / max(1, jobs) for part in after}
    return Cost(side, jobs, {part: round(value, 3) for part, value in parts.items()})


def used(made: Installation) -> dict[str, float]:
    """Processor seconds so far, by part."""
    pids = made.pids()
    return {part: cpu_seconds(pids.get(part, [])) for part in PARTS}


def report(costs: Sequence[Cost], plan: Plan) -> Report:
    middle = {side: median(cost.total for cost in costs if cost.side == side) for side in LOADS}
    same, each_same = middle[TWO] / middle[ONE], middle[TWO] / middle[HALF]
    headings = ("", *PARTS, "together")
    lines = []
    for side in LOADS:
        each = [cost for cost in costs if cost.side == side]
        parts = [median(cost.parts[part] for cost in each) for part in PARTS]
        lines.append((side, *(f"{part:.2f}" for part in parts), f"{middle[side]:.2f}"))
    shortest = min(cost.jobs / LOADS[cost.side] for cost in costs)
    return Report(
        name="cells-cost",
        title=TITLE,
        findings=[
            f"A job costs {middle[TWO]:.2f} ms of processor time in two cells and"
            f" {middle[ONE]:.2f} ms in one Fairline with the same load:"
            f" {100 * (same - 1):+.1f} %. Of one that has as much to do as each of the cells it is"
            f" {middle[HALF]:.2f} ms: {100 * (each_same - 1):+.1f} %."
        ],
        tables=[Table("Milliseconds of processor time per job, medians", headings, lines)],
        bars=[
            at_most("processor time of a job in two cells, same load", same, MOST, " x"),
            at_most("processor time of a job, same load of each cell", each_same, MOST, " x"),
            at_least("jobs in the shortest round", shortest, 0.9 * plan.per_second * plan.seconds),
        ],
        notes=[
            f"{plan.per_second:g} applications per second of {TENANTS} tenants for"
            f" {plan.seconds:g} s, {plan.rounds} rounds each, in turn. The fixed cost of a second"
            " scheduler, PostgreSQL and RabbitMQ is in the first comparison: it weighs less the"
            " more a cell has to do. The second shows what cells cost as such."
        ],
        data={"rounds": [asdict(cost) for cost in costs]},
    )
