"""A region is lost under load: the other one takes submissions in, and hands them over, once.

First the region comes back after a while: everything that was accepted meanwhile ends there. Then
it is lost again, and an operator promotes the other one in its place (``cells promote``), which is
timed; at last the lost one comes back after all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.cells.clients import Clients
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import Cell, CellPlan, Customer, Installation, installation
from loadtest.cells.judge import KEPT, aliases_in, judge, settle
from loadtest.chaos.client import Api
from loadtest.chaos.witness import read_lines
from loadtest.fleet import rows, until
from loadtest.lab.experiment import Size
from loadtest.report import Bar, Report, Table, at_least, at_most, fault_bars, fault_notes
from models.jobs.ids import cell_number

TITLE = "A region is lost under load"
TENANTS = 4
#: Of the cell in the other region: cells are numbered in their order.
OTHER_NUMBER = 2
#: The objective of a promotion.
PROMOTION_SECONDS = 300.0
#: Ids that are polled while their cell is away.
POLLED = 50
#: For everything to end: a lost lease, a retry.
END_SECONDS = 240.0
#: For the first copies of the tenants.
COPIED_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    per_second: float
    away_seconds: float
    steady_seconds: float


PLANS = {
    Size.FULL: Plan(30.0, 300.0, 15.0),
    Size.QUICK: Plan(20.0, 20.0, 5.0),
    Size.MINI: Plan(8.0, 6.0, 2.0),
}


@dataclass(slots=True)
class Course:
    """What was measured."""

    #: Accepted while the region was away.
    taken_in: int = 0
    #: Rows that were kept at the end of that.
    kept: int = 0
    #: From the return of the region's database until nothing was kept any more.
    handed_over_seconds: float = 0.0
    #: Of those, run more than once.
    run_twice: list[str] = field(default_factory=list)
    #: Polls of such jobs by what they said.
    polls: dict[str, int] = field(default_factory=dict)
    #: The same of ids that are aliases, when all is over.
    alias_polls: dict[str, int] = field(default_factory=dict)
    #: The command, and until a job of every tenant had run.
    command_seconds: float = 0.0
    promoted_seconds: float = 0.0
    #: Repetitions of requests whose first answer was lost with the region: both were admitted.
    doubled: int = 0


@dataclass(frozen=True, slots=True)
class Regions:
    """Two regions with a cell and an API process each."""

    made: Installation
    lost: Cell
    other: Cell
    customers: list[Customer]

    def port(self, region: str) -> int:
        return self.made.ports[f"api-{region}"]

    def lose(self, clients: Clients) -> None:
        """Kill everything in one region; clients turn to the other one."""
        self.lost.kill()
        self.made.kill_api("api-eu")
        clients.ports = {"": self.port("us")}

    def come_back(self, clients: Clients) -> float:
        """The region is there again; how long handing over took once its database was."""
        self.lost.restart_database()
        began = time.monotonic()
        until(lambda: not rows(self.other.engine, KEPT)[0][0], END_SECONDS)
        took = time.monotonic() - began
        self.lost.restart_others()
        self.made.start_api("api-eu", "eu")
        clients.ports = {"": self.port("eu")}
        return took


def run(run: Run) -> Report:
    plan, course = PLANS[run.size], Course()
    plans = [CellPlan("cell-eu", "eu"), CellPlan("cell-us", "us")]
    with installation("cells-region", plans) as made:
        lost, other = made.cells.values()
        customers = [made.customer(f"tenant-{number}", lost) for number in range(TENANTS)]
        regions = Regions(made, lost, other, customers)
        for region in ("eu", "us"):
            made.start_api(f"api-{region}", region)
        until(lambda: copied(made) == TENANTS, COPIED_SECONDS, "copies of the tenants")
        first = lose_and_find(run, regions, plan, course)
        faults = judge([lost, other], first.accepted, made.witness, prefix="first-")
        faults["run twice"] = course.run_twice
        second = lose_and_promote(run, regions, plan, course)
        later = judge([lost, other], second.accepted, made.witness, prefix="second-")
        course.doubled = len(later.pop("admitted twice"))
        later.pop("run twice")  # runs that were cut off by the loss are repeated
    return report(plan, course, first, second, faults, later)


def copied(made: Installation) -> int:
    """Tenants that the registry has a copy of."""
    assert made.registry is not None
    return int(rows(made.registry, "SELECT count(*) FROM tenant_copies")[0][0])


def lose_and_find(run: Run, regions: Regions, plan: Plan, course: Course) -> Clients:
    """The region is away for a while, and comes back."""
    clients = Clients(regions.customers, {"": regions.port("eu")}, plan.per_second, name="first")
    with clients.running():
        run.wait("both regions there", plan.steady_seconds)
        regions.lose(clients)
        run.wait("one region is away", plan.away_seconds)
        # Their ids carry the number of the cell that took them in.
        taken = {
            key: job_id
            for key, job_id in tuple(clients.accepted.items())
            if cell_number(job_id) == OTHER_NUMBER
        }
        course.taken_in = len(taken)
        course.kept = rows(regions.other.engine, KEPT)[0][0]
        course.polls = poll(regions.port("us"), clients, list(taken.items())[-POLLED:])
        course.handed_over_seconds = regions.come_back(clients)
        run.wait("both regions there", plan.steady_seconds)
    settle([regions.lost, regions.other], END_SECONDS)
    aliases = aliases_in([regions.lost, regions.other])
    again = [item for item in clients.accepted.items() if item[1] in aliases]
    course.alias_polls = poll(regions.port("us"), clients, again)
    lines = read_lines(regions.made.witness)
    starts = Counter(line.job for line in lines if line.what == "start")
    course.run_twice = sorted(job_id for job_id in taken.values() if starts[job_id] > 1)
    return clients


def poll(port: int, clients: Clients, taken: Sequence[tuple[str, str]]) -> dict[str, int]:
    """What polls of jobs say that were taken in, each by its tenant."""
    found: dict[str, int] = {}
    with Api(port) as api:
        for key, job_id in taken:
            headers = clients.owners[key].headers
            answer = api.call("GET", f"/jobs/{job_id}", headers=headers)
            document: Any = answer.document or {}
            said = f"{answer.status} {document.get('status')} {document.get('reason', '')}".strip()
            found[said] = found.get(said, 0) + 1
    return found


def lose_and_promote(run: Run, regions: Regions, plan: Plan, course: Course) -> Clients:
    """The region is lost for good; the other one is promoted."""
    clients = Clients(regions.customers, {"": regions.port("eu")}, plan.per_second, name="second")
    with clients.running():
        run.wait("both regions there", plan.steady_seconds)
        regions.lose(clients)
        run.wait("one region is lost", plan.steady_seconds)
        began = time.monotonic()
        words = ("cells", "promote", "cell-eu", "--to", "cell-us", "--yes")
        regions.made.operate(*words)
        course.command_seconds = time.monotonic() - began
        until(lambda: all_served(regions), PROMOTION_SECONDS, pause=0.2)
        course.promoted_seconds = time.monotonic() - began
        run.wait("on the other region", plan.steady_seconds)
        regions.come_back(clients)
        run.wait("the lost one is back", plan.steady_seconds)
    settle([regions.lost, regions.other], END_SECONDS)
    return clients


SERVED = """
    SELECT count(DISTINCT tenant_id) FROM jobs
    WHERE tenant_id = ANY (CAST(:tenants AS bigint[])) AND status = 'succeeded'
"""


def all_served(regions: Regions) -> bool:
    """Whether a job of every tenant has run in the promoted cell."""
    tenants = [customer.id for customer in regions.customers]
    return int(rows(regions.other.engine, SERVED, tenants=tenants)[0][0]) == len(tenants)


def report(
    plan: Plan,
    course: Course,
    first: Clients,
    second: Clients,
    faults: dict[str, list[str]],
    later: dict[str, list[str]],
) -> Report:
    handed_over = course.handed_over_seconds
    aliases = sum(course.alias_polls.values())
    lines = [
        ("accepted while the region was away", f"{course.taken_in:,}"),
        ("requests kept at the end of that", f"{course.kept:,}"),
        (
            "from the return of its database until all were handed over, s",
            f"{course.handed_over_seconds:.1f}",
        ),
        ("of them admitted before the loss already: ids kept as aliases", f"{aliases:,}"),
        ("command `cells promote`, s", f"{course.command_seconds:.1f}"),
        ("until every tenant's jobs ran in the other cell, s", f"{course.promoted_seconds:.1f}"),
        ("accepted around the promotion", f"{len(second.accepted):,}"),
        ("requests admitted in both cells around the promotion", f"{course.doubled:,}"),
    ]
    queued = course.polls.get("200 queued cell_away", 0)
    known = course.alias_polls.get("200 succeeded", 0)
    strange = first.strange + second.strange
    return Report(
        name="cells-region",
        title=TITLE,
        findings=[
            f"A region was away for {plan.away_seconds:g} s: {course.taken_in:,} submissions were"
            f" accepted by the other one and handed over within {handed_over:.1f} s"
            f" of its return; {len(faults['lost'])} were lost, {len(faults['run twice'])} ran"
            f" twice. A promotion took {course.promoted_seconds:.1f} s until every tenant's jobs"
            " ran again."
        ],
        tables=[
            Table("Regions", ("", "value"), lines),
            Table(
                "Polls of jobs that were taken in",
                ("answer", "polls"),
                [(said, str(count)) for said, count in course.polls.items()],
            ),
        ],
        bars=[
            at_least(
                "accepted while the region was away",
                course.taken_in,
                0.8 * plan.per_second * (plan.away_seconds - 3.0),
            ),
            at_least("polls that say queued, cell_away", queued, sum(course.polls.values())),
            at_least("polls of aliases that say succeeded", known, aliases),
            *fault_bars(faults),
            *later_bars(later),
            at_most("promotion", course.promoted_seconds, PROMOTION_SECONDS, " s"),
            at_most("answers other than 202 and 503", len(strange)),
        ],
        notes=[
            f"{plan.per_second:g} submissions per second of {TENANTS} tenants, each repeated under"
            " its key until it is accepted. A request that the lost region had admitted, but not"
            " answered, is repeated elsewhere: when the region comes back that is found by its key;"
            " after a promotion nobody knows the key, and both run.",
            *fault_notes(faults),
            *fault_notes(later),
            *strange[:3],
        ],
        data={"faults": faults, "after promotion": later, "course": dict(lines)},
    )


def later_bars(later: dict[str, list[str]]) -> list[Bar]:
    return [at_most(f"after the promotion: {name}", len(found)) for name, found in later.items()]
