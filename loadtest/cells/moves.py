"""Moves under load: tenants go back and forth between two cells while schedulers are killed.

Every move is run by the scheduler of a cell; both are killed with SIGKILL again and again, at
random moments, and started again. Tenants submit all the time, each request repeated under its key
until it is accepted. In the end every accepted job is in one cell, ended, and ran once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine

from loadtest.cells.clients import Clients, p99_ms
from loadtest.cells.experiment_run import Run
from loadtest.cells.installation import Cell, CellPlan, Customer, Installation, installation
from loadtest.cells.judge import judge, settle
from loadtest.figures import percentile
from loadtest.fleet import until
from loadtest.lab.experiment import Size
from loadtest.report import Report, Table, at_least, at_most, fault_bars, fault_notes
from models.cells.moves import MoveStep, read_move, request_move
from models.cells.placements import read_placement

TITLE = "Moves of tenants under load, with kills"
TENANTS = 5
#: A move that takes longer has not come to an end.
MOVE_SECONDS = 90.0
LOOK_SECONDS = 0.02
#: In their order.
STEPS = tuple(step for step in MoveStep if step is not MoveStep.UNDO)
#: About as long as a step takes, with the pause after it.
STEP_SECONDS = 0.15


@dataclass(frozen=True, slots=True)
class Plan:
    moves: int
    per_second: float
    #: Of the moves, those during which a scheduler is killed.
    kills: float
    seed: int = 19


PLANS = {
    Size.FULL: Plan(moves=50, per_second=40.0, kills=0.8),
    Size.QUICK: Plan(moves=10, per_second=25.0, kills=0.8),
    Size.MINI: Plan(moves=2, per_second=10.0, kills=1.0),
}


@dataclass(slots=True)
class Course:
    """What happened."""

    seconds: list[float] = field(default_factory=list)
    #: Kills by the step that the move was in.
    kills: Counter[str] = field(default_factory=Counter)
    unfinished: list[str] = field(default_factory=list)


def run(run: Run) -> Report:
    plan = PLANS[run.size]
    with installation("cells-moves", [CellPlan("cell-1"), CellPlan("cell-2")]) as made:
        cells = list(made.cells.values())
        customers = [
            made.customer(f"tenant-{number}", cells[number % 2]) for number in range(TENANTS)
        ]
        port = made.start_api(workers=1)
        # Some run while their tenant moves.
        clients = Clients(customers, {"": port}, plan.per_second)
        course = Course()
        with clients.running():
            run.wait("load", 3.0)
            move_all(run, made, customers, plan, course)
            run.wait("load", 3.0)
        settle(cells)
        faults = judge(cells, clients.accepted, made.witness)
    return report(plan, course, faults, clients)


def move_all(
    run: Run, made: Installation, customers: Sequence[Customer], plan: Plan, course: Course
) -> None:
    chance = random.Random(plan.seed)
    for number in run.screen.steps(f"{plan.moves} moves", plan.moves):
        customer = customers[number % len(customers)]
        step = STEPS[number % len(STEPS)] if chance.random() < plan.kills else None
        move_one(made, customer, chance, course, step)


def move_one(
    made: Installation,
    customer: Customer,
    chance: random.Random,
    course: Course,
    step: MoveStep | None,
) -> None:
    """Move a tenant to the other cell; kill who moves it in or after that step, if one is given."""
    registry = made.registry
    assert registry is not None
    placement = read_placement(registry, customer.name)
    assert placement is not None
    other = next(name for name in made.cells if name not in placement.weights)
    request_move(registry, customer.name, {other: 1.0})
    began = time.monotonic()
    if step is not None:
        until(lambda: has_come_to(registry, customer, step), MOVE_SECONDS, pause=0.005)
        time.sleep(chance.uniform(0.0, STEP_SECONDS))
        kill_runner(made, customer, course)
    ended = until(
        lambda: read_move(registry, customer.name) is None, MOVE_SECONDS, pause=LOOK_SECONDS
    )
    course.seconds.append(time.monotonic() - began)
    if not ended:
        move = read_move(registry, customer.name)
        course.unfinished.append(f"{customer.name}: {move}")


def has_come_to(registry: Engine, customer: Customer, step: MoveStep) -> bool:
    """Whether a move is in this step, or beyond."""
    move = read_move(registry, customer.name)
    return move is None or STEPS.index(move.step) >= STEPS.index(step)


def kill_runner(made: Installation, customer: Customer, course: Course) -> None:
    """Kill the scheduler that runs the move; both, if none does yet."""
    assert made.registry is not None
    move = read_move(made.registry, customer.name)
    course.kills["over" if move is None else move.step.value] += 1
    for cell in runners(list(made.cells.values()), "" if move is None else move.runner):
        cell.kill_scheduler()


def runners(cells: Sequence[Cell], runner: str) -> list[Cell]:
    """The cells whose scheduler has this name, which ends with its process."""
    found = [cell for cell in cells if runner.endswith(f":{cell.fleet.children['scheduler'].pid}")]
    return found or list(cells)


def report(plan: Plan, course: Course, faults: dict[str, list[str]], clients: Clients) -> Report:
    sent = clients.sent
    refused = sum(one.status == 503 for one in sent)
    longest = max((one.answer_seconds for one in sent), default=0.0)
    kills = sum(course.kills.values())
    lines = [
        ("moves", f"{len(course.seconds)}"),
        ("kills", f"{kills}"),
        ("seconds of a move, median", f"{percentile(course.seconds, 0.5):.1f}"),
        ("seconds of a move, longest", f"{max(course.seconds, default=0.0):.1f}"),
        ("jobs accepted", f"{len(clients.accepted):,}"),
        ("503, repeated", f"{refused:,}"),
        ("p99 of submissions, ms", f"{p99_ms(sent):.0f}"),
        ("slowest answer, s", f"{longest:.2f}"),
    ]
    steps = [(step, str(number)) for step, number in course.kills.most_common()]
    return Report(
        name="cells-moves",
        title=TITLE,
        findings=[
            f"{len(course.seconds)} moves while {len(clients.accepted):,} jobs were accepted and"
            f" schedulers were killed {kills} times: {len(faults['lost'])} lost,"
            f" {len(faults['run twice']) + len(faults['in two cells'])} doubled."
        ],
        tables=[
            Table("Moves", ("", "count"), lines),
            Table("Kills by the step of the move", ("step", "kills"), steps),
        ],
        bars=[
            at_least(
                "moves that came to an end",
                len(course.seconds) - len(course.unfinished),
                plan.moves,
            ),
            *fault_bars(faults),
            at_most("answers other than 202 and 503", len(clients.strange)),
            at_most("requests without an answer", clients.unanswered),
            at_most("slowest answer", longest, 2.0, " s"),
        ],
        notes=[*fault_notes(faults), *course.unfinished[:3], *clients.strange[:3]],
        data={"faults": faults, "seconds": course.seconds, "kills": dict(course.kills)},
    )
