"""Two cells against one: the processor time of a job.

One Fairline without cells and with two workers; two cells with a worker each, their registry and
one API process for both, under the same load. They take turns. Everything counts: API, schedulers,
workers, PostgreSQL, RabbitMQ, registry. Each has two loads, one after the other: applications that
come one by one, and batches of jobs, by which a cell has as much to do as it is made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from loadtest.cells.clients import Clients, application
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import Cell, CellPlan, Installation, installation
from loadtest.cells.judge import settle
from loadtest.figures import cpu_seconds
from loadtest.lab.experiment import Size
from loadtest.report import Report, Table, at_least, at_most

TITLE = "Two cells against one: processor time per job"
MOST = 1.05
ONE, TWO = "one Fairline", "two cells"
SIDES = {
    ONE: [CellPlan("cell-1", workers=2)],
    TWO: [CellPlan("cell-1"), CellPlan("cell-2")],
}
SINGLE, BATCHES = "one by one", "in batches"
PARTS = ("api", "scheduler", "worker", "postgres", "rabbitmq", "registry")
TENANTS = 10
#: Jobs of a batch.
BATCH = 50


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    #: Requests, by kind of load.
    per_second: dict[str, float]
    warm_seconds: float
    seconds: float


PLANS = {
    Size.FULL: Plan(3, {SINGLE: 120.0, BATCHES: 20.0}, warm_seconds=10.0, seconds=40.0),
    Size.QUICK: Plan(1, {SINGLE: 60.0, BATCHES: 10.0}, warm_seconds=6.0, seconds=20.0),
    Size.MINI: Plan(1, {SINGLE: 10.0, BATCHES: 2.0}, warm_seconds=1.0, seconds=3.0),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one side used for one load in one round."""

    side: str
    load: str
    jobs: int
    #: Milliseconds of processor time per job, by part.
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def batch(key: str) -> tuple[str, dict[str, Any]]:
    """Jobs that do next to nothing."""
    job = {"type": "chaos.mark", "payload": {"seconds": 0.0, "tag": key}}
    return "/jobs/batch", {"jobs": [job] * BATCH}


#: The body of a request, and how many jobs that is.
LOADS = {SINGLE: (application, 1), BATCHES: (batch, BATCH)}


def run(run: Run) -> Report:
    plan = PLANS[run.size]
    costs: list[Cost] = []
    for number in range(1, plan.rounds + 1):
        for side in SIDES:
            run.console.print(f"round {number}: {side}", highlight=False)
            costs += one_side(run, side, plan)
    return report(costs, plan)


def one_side(run: Run, side: str, plan: Plan) -> list[Cost]:
    costs = []
    with installation("cells-cost", SIDES[side], registry=side == TWO) as made:
        cells = list(made.cells.values())
        customers = [
            made.customer(f"tenant-{number}", cells[number % len(cells)])
            for number in range(TENANTS)
        ]
        port = made.start_api(workers=1)
        for load, per_second in plan.per_second.items():
            clients = Clients(customers, {"": port}, per_second, LOADS[load][0], name=load)
            send(run, f"{load}: warming up", plan.warm_seconds, clients, cells)
            before = used(made)
            clients = Clients(
                customers, {"": port}, per_second, LOADS[load][0], name=f"measured {load}"
            )
            send(run, f"{load}: measuring", plan.seconds, clients, cells)
            after, jobs = used(made), LOADS[load][1] * len(clients.accepted)
            parts = {part: 1000 * (after[part] - before[part]) / max(1, jobs) for part in after}
            costs.append(Cost(side, load, jobs, {p: round(ms, 3) for p, ms in parts.items()}))
    return costs


def send(run: Run, what: str, seconds: float, clients: Clients, cells: Sequence[Cell]) -> None:
    """Submit for so long, and wait until every job has ended."""
    with clients.running():
        run.wait(what, seconds)
    if not settle(cells):
        raise RuntimeError(f"{what}: jobs have not ended")


def used(made: Installation) -> dict[str, float]:
    """Processor seconds so far, by part."""
    pids = made.pids()
    return {part: cpu_seconds(pids.get(part, [])) for part in PARTS}


def report(costs: Sequence[Cost], plan: Plan) -> Report:
    def middle(load: str, side: str) -> float:
        return median(one.total for one in costs if (one.load, one.side) == (load, side))

    ratio = {load: middle(load, TWO) / middle(load, ONE) for load in LOADS}
    lines = []
    for load in LOADS:
        for side in SIDES:
            each = [one for one in costs if (one.load, one.side) == (load, side)]
            parts = [median(one.parts[part] for one in each) for part in PARTS]
            total = f"{middle(load, side):.2f}"
            lines.append((load, side, *(f"{part:.2f}" for part in parts), total))
    least = min(
        one.jobs / (LOADS[one.load][1] * plan.per_second[one.load] * plan.seconds) for one in costs
    )
    return Report(
        name="cells-cost",
        title=TITLE,
        findings=[
            f"Jobs that come {load}: {middle(load, TWO):.2f} ms of processor time each in two cells"
            f" and {middle(load, ONE):.2f} ms in one Fairline: {100 * (ratio[load] - 1):+.1f} %."
            for load in LOADS
        ],
        tables=[
            Table(
                "Milliseconds of processor time per job, medians",
                ("load", "", *PARTS, "together"),
                lines,
            )
        ],
        bars=[
            *(
                at_most(f"processor time of a job, {load}", ratio[load], MOST, " x")
                for load in LOADS
            ),
            at_least("jobs in the shortest round, of those wanted", least, 0.9),
        ],
        notes=[
            f"{plan.per_second[SINGLE]:g} applications per second, then"
            f" {plan.per_second[BATCHES]:g} batches of {BATCH} jobs per second, of {TENANTS}"
            f" tenants, {plan.seconds:g} s each, {plan.rounds} rounds, in turn. Two cells with the"
            " load of one have a second scheduler, PostgreSQL and RabbitMQ, and form smaller"
            " groups: that weighs less the more a cell has to do."
        ],
        data={"rounds": [asdict(cost) for cost in costs]},
    )
