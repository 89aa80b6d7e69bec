"""From what happened on the stairs to sentences, tables and bars. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loadtest.bars import Bar
from loadtest.lab.knee.analysis import (
    Figures,
    Job,
    Knee,
    figures,
    find_knee,
    plateau_rate,
    treads_of,
)
from loadtest.lab.knee.plan import SLOTS, Plan
from loadtest.lab.sampling import Row
from loadtest.report import Picture, Report, Table

TITLE = "The knee: one worker at and beyond its capacity"
HEADINGS = (
    *("offered", "scored", "in line", "p50", "p99"),
    *("door p95", "refused", "waiters"),
)


@dataclass(frozen=True, slots=True)
class Climb:
    """What happened."""

    #: When the first step began, in seconds since the epoch.
    begin: float
    jobs: list[Job]
    #: Second by second, in order.
    seconds: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Sight:
    """What it shows."""

    steps: list[Figures]
    #: None if even the last step was kept up with.
    knee: Knee | None
    #: Scored a second over all steps beyond the knee.
    plateau: float
    #: Of all jobs, the warm-up's too.
    submitted: int
    refused: int
    #: Accepted, but never scored.
    unscored: int


def see(climb: Climb, plan: Plan) -> Sight:
    """Step by step, then the knee."""
    treads = treads_of(plan.rates, plan.step_seconds, climb.begin)
    steps = []
    for tread in treads:
        rows = [row for row in climb.seconds if tread.begin <= float(row["at"]) < tread.end]
        steps.append(
            figures(
                tread,
                climb.jobs,
                plan.settle_seconds,
                depth=int(rows[-1]["waiting"]) if rows else 0,
                waiters=max((int(row["waiters"]) for row in rows), default=0),
            )
        )
    knee = find_knee([(step.offered, step.scored) for step in steps])
    plateau = 0.0
    if knee is not None:
        plateau = plateau_rate(treads, climb.jobs, knee.kept_up, plan.settle_seconds)
    return Sight(
        steps,
        knee,
        plateau,
        len(climb.jobs),
        sum(not job.accepted for job in climb.jobs),
        sum(job.accepted and job.scored_at is None for job in climb.jobs),
    )


def judge(sight: Sight, plan: Plan) -> Report:
    """The report."""
    first, last = sight.steps[0], sight.steps[-1]
    times = last.front_door_p95_ms / first.front_door_p95_ms if first.front_door_p95_ms else 0.0
    return Report(
        "knee",
        TITLE,
        findings=[
            knee_in_words(sight, plan),
            f"Offered {last.offered:g}/s, the line grows to {last.depth:,} jobs and a job of that "
            f"step is scored after {last.p50_seconds:.0f} s (p50) or {last.p99_seconds:.0f} s "
            f"(p99), against {first.p50_seconds:.2f} s and {first.p99_seconds:.2f} s at "
            f"{first.offered:g}/s.",
            f"The front door answers with a p95 of {last.front_door_p95_ms:.1f} ms at "
            f"{last.offered:g}/s, {times:.2f} times the {first.front_door_p95_ms:.1f} ms at "
            f"{first.offered:g}/s. "
            f"{sight.submitted:,} submissions, {sight.refused} refused, "
            f"{sight.unscored} never scored.",
        ],
        pictures=[
            Picture("knee.png", "What is scored, the line, the waits and the front door by rate"),
            Picture("staircase.png", "The same second by second, until the line is worked off"),
        ],
        tables=[
            Table(
                "Steps: jobs a second, in line at the end, from submission to score, front door",
                HEADINGS,
                [cells(step) for step in sight.steps],
            )
        ],
        bars=[
            Bar(
                f"the knee, of {SLOTS} slots ÷ {plan.score_seconds:g} s = {plan.capacity:.2f}/s",
                100 * sight.plateau / plan.capacity,
                ">=",
                plan.least_percent,
                " %",
            ),
            Bar(
                f"front-door p95 at {last.offered:g}/s, of that at {first.offered:g}/s",
                times,
                "<=",
                plan.most_times,
                " x",
            ),
            Bar("submissions refused", sight.refused, "<=", 0),
            Bar("accepted and never scored", sight.unscored, "<=", 0),
            Bar(
                "waiters on a database pool of 2",
                max(step.waiters for step in sight.steps),
                "<=",
                0,
            ),
        ],
        notes=[
            "The line carries over from step to step, and the arrivals stop before it is worked "
            "off: waits beyond the knee grow with the length of the steps "
            f"({plan.step_seconds:g} s here)."
        ],
        data={
            "steps": [asdict(step) for step in sight.steps],
            "knee": asdict(sight.knee) if sight.knee else None,
            "plateau": sight.plateau,
            "capacity": plan.capacity,
            "submitted": sight.submitted,
            "refused": sight.refused,
            "unscored": sight.unscored,
        },
    )


def knee_in_words(sight: Sight, plan: Plan) -> str:
    """Where it is, if there is one."""
    if sight.knee is None:
        return f"No knee: even {sight.steps[-1].offered:g}/s was kept up with."
    kept_up = sight.knee.kept_up
    beyond = [step.scored for step in sight.steps if step.offered > kept_up]
    return (
        f"The knee is at {sight.plateau:.2f} applications a second, "
        f"{100 * sight.plateau / plan.capacity:.1f} % of the {plan.capacity:.2f}/s that {SLOTS} "
        f"slots of {plan.score_seconds:g} s can score. "
        + (f"{kept_up:g}/s is kept up with; " if kept_up else "No step is kept up with; ")
        + f"beyond, {min(beyond):.2f} to {max(beyond):.2f}/s are scored, whatever arrives."
    )


def cells(step: Figures) -> tuple[str, ...]:
    """A step as a row of the report."""
    return (
        f"{step.offered:g}/s",
        f"{step.scored:.2f}/s",
        f"{step.depth:,}",
        f"{step.p50_seconds:.2f} s",
        f"{step.p99_seconds:.2f} s",
        f"{step.front_door_p95_ms:.1f} ms",
        f"{step.refused}",
        f"{step.waiters}",
    )
