"""The staircases, what their submissions show, where the knee is, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from loadtest.figures import percentile, percentiles
from loadtest.lab.experiment import SLOTS, Size
from loadtest.lab.submissions import Submissions
from loadtest.report import Picture, Report, at_least, at_most, table
from loadtest.shapes import Stretch, arrival_times, steps
from models.pools import POOLS


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of equal length, after a short warm-up at the first one's rate."""

    rates: tuple[float, ...]
    step_seconds: float
    warm_seconds: float
    score_seconds: float = 1.5
    #: Of the capacity, scored beyond the knee.
    least_percent: float = 99.0
    #: The API's p95 in the last step, of that in the first.
    most_times: float = 1.5

    @property
    def capacity(self) -> float:
        """Applications per second that the slots can score."""
        return SLOTS / self.score_seconds

    @property
    def settle_seconds(self) -> float:
        """How long a step still ends what the step before began."""
        return 2 * self.score_seconds

    @property
    def stretches(self) -> list[Stretch]:
        warm = Stretch(self.warm_seconds, self.rates[0], self.rates[0])
        return [warm, *steps(self.rates, self.step_seconds)]

    @property
    def load_seconds(self) -> float:
        """While anything arrives."""
        return self.warm_seconds + self.step_seconds * len(self.rates)

    @property
    def drain_seconds(self) -> float:
        """For what the steps beyond the capacity leave queued."""
        left = self.step_seconds * sum(max(0.0, rate - self.capacity) for rate in self.rates)
        return left / self.capacity + self.score_seconds

    def begin(self, submissions: Submissions) -> float:
        """When the first step began, in seconds since the epoch."""
        return submissions.begin - next(arrival_times(self.stretches)) + self.warm_seconds


STAIRS = (2.0, 4.0, 6.0, 6.6, 8.0, 10.0, 12.0, 14.0)
PLANS = {
    Size.FULL: Plan(STAIRS, 30.0, 5.0),
    # Twenty responses at 2/s: their p95 is the slowest but one.
    Size.QUICK: Plan(STAIRS, 10.0, 4.0, least_percent=98.0, most_times=2.0),
    # Too short for any bar on a rate: only that it runs.
    Size.MINI: Plan((10.0, 60.0), 1.5, 0.5, score_seconds=0.3),
}


#: A last step that scores this share of what is offered has not reached a plateau.
KEEPS_UP = 0.97


@dataclass(frozen=True, slots=True)
class Step:
    """One step as measured. Waits and latencies are of the jobs that were to start in it;
    the scored ones are of all that ended in it."""

    offered: float
    scored: float
    jobs: int
    refused: int
    p50_seconds: float
    p99_seconds: float
    front_door_p95_ms: float
    #: Jobs queued when the step ended.
    depth: int
    waiters: int


@dataclass(frozen=True, slots=True)
class Knee:
    """Where ``scored = offered`` meets the plateau of what is scored."""

    #: Jobs per second, offered and scored.
    at: float
    #: The highest offered rate that was kept up with; 0 if none was.
    kept_up: float


def find_knee(points: Iterable[tuple[float, float]]) -> Knee | None:
    """The hinge that is nearest to (offered, scored): first ``scored = offered``, then a plateau.

    Every place between two steps is tried, and the one with the least squared error wins; the
    plateau is the mean of the steps beyond it. None if even the last step keeps up.
    """
    ordered = sorted(points)
    if not ordered or ordered[-1][1] >= KEEPS_UP * ordered[-1][0]:
        return None
    hinges = [hinge(ordered, split) for split in range(len(ordered))]
    return min(hinges, key=lambda found: found[0])[1]


def hinge(ordered: Sequence[tuple[float, float]], split: int) -> tuple[float, Knee]:
    """The squared error of a hinge with the plateau from this step on, and its knee."""
    below, beyond = ordered[:split], ordered[split:]
    plateau = sum(scored for _, scored in beyond) / len(beyond)
    error = sum((scored - offered) ** 2 for offered, scored in below)
    error += sum((scored - plateau) ** 2 for _, scored in beyond)
    return error, Knee(plateau, below[-1][0] if below else 0.0)


def step_of(
    submissions: Submissions, offered: float, begin: float, end: float, settle_seconds: float
) -> Step:
    """What one step showed. The first ``settle_seconds`` still end what the step before began."""
    own = submissions.between(begin, end)
    queued = own.gauge("waiting")
    p50, p99 = percentiles(own.waits(), 0.5, 0.99)
    return Step(
        offered,
        submissions.scored_per_second(begin + settle_seconds, end),
        len(own.arrivals),
        own.refused,
        *(p50, p99),
        1000 * percentile([each.latency_seconds for each in own.arrivals], 0.95),
        int(queued[-1][1]) if queued else 0,
        own.most("waiters"),
    )


@dataclass(frozen=True, slots=True)
class Staircase:
    """All steps, and the knee that they show."""

    steps: list[Step]
    #: None if even the last step was kept up with.
    knee: Knee | None
    #: Scored per second over all steps beyond the knee, as one stretch.
    plateau: float
    #: Of all jobs, the warm-up's too.
    submitted: int
    refused: int
    unscored: int


def analyse(submissions: Submissions, plan: Plan) -> Staircase:
    begin, seconds, settle = plan.begin(submissions), plan.step_seconds, plan.settle_seconds
    edges = [begin + number * seconds for number in range(len(plan.rates) + 1)]
    steps = [
        step_of(submissions, rate, edges[number], edges[number + 1], settle)
        for number, rate in enumerate(plan.rates)
    ]
    knee = find_knee([(step.offered, step.scored) for step in steps])
    plateau = 0.0
    if knee is not None:
        first = next(number for number, rate in enumerate(plan.rates) if rate > knee.kept_up)
        plateau = submissions.scored_per_second(edges[first] + settle, edges[-1])
    counts = len(submissions.arrivals), submissions.refused, submissions.unscored
    return Staircase(steps, knee, plateau, *counts)


#: Where applications are scored, and the share of the capacity up to which its objective holds.
POOL = "medium"
CALM = 0.91
START = f"submission to start p99 up to {CALM:.0%} of the capacity, objective of {POOL}"
TITLE = "The knee: one worker at and beyond its capacity"
COLUMNS = {
    "offered": "{.offered:g}/s",
    "scored": "{.scored:.2f}/s",
    "queued": "{.depth:,}",
    "p50": "{.p50_seconds:.2f} s",
    "p99": "{.p99_seconds:.2f} s",
    "API p95": "{.front_door_p95_ms:.1f} ms",
    "refused": "{.refused}",
    "waiters": "{.waiters}",
}
TABLE = "Steps: jobs per second, queued at the end, from submission to score, API latency"


def judge(found: Staircase, plan: Plan) -> Report:
    first, last = found.steps[0], found.steps[-1]
    times = last.front_door_p95_ms / first.front_door_p95_ms if first.front_door_p95_ms else 0.0
    slots = f"{SLOTS} slots ÷ {plan.score_seconds:g} s = {plan.capacity:.2f}/s"
    ratio = f"API p95 at {last.offered:g}/s, of that at {first.offered:g}/s"
    return Report(
        "knee",
        TITLE,
        findings=[
            describe_knee(found, plan),
            f"At {last.offered:g}/s offered, the queue grows to {last.depth:,} jobs and a job of "
            f"that step is scored after {last.p50_seconds:.0f} s (p50) or {last.p99_seconds:.0f} s "
            f"(p99), compared with {first.p50_seconds:.2f} s and {first.p99_seconds:.2f} s at "
            f"{first.offered:g}/s.",
            f"The API responds with a p95 of {last.front_door_p95_ms:.1f} ms at "
            f"{last.offered:g}/s, {times:.2f} times the {first.front_door_p95_ms:.1f} ms at "
            f"{first.offered:g}/s. {found.submitted:,} submissions, {found.refused} refused, "
            f"{found.unscored} never scored.",
        ],
        pictures=[
            Picture("knee.png", "Scored rate, queue length, waits and API latency by offered rate"),
            Picture("staircase.png", "The same second by second, until the queue is empty"),
        ],
        tables=[table(TABLE, COLUMNS, found.steps)],
        bars=[
            at_least(
                f"the knee, of {slots}",
                *(100 * found.plateau / plan.capacity, plan.least_percent, " %"),
            ),
            at_most(ratio, times, plan.most_times, " x"),
            at_most(START, calm_wait(found.steps, plan), POOLS[POOL].objective_seconds, " s"),
            at_most("submissions refused", found.refused),
            at_most("accepted and never scored", found.unscored),
            at_most("waiters on a database pool of 2", max(step.waiters for step in found.steps)),
        ],
        notes=[
            "The queue carries over from step to step, and the arrivals stop before it is empty: "
            f"waits beyond the knee grow with the length of the steps ({plan.step_seconds:g} s "
            "here)."
        ],
        data={**asdict(found), "capacity": plan.capacity},
    )


def calm_wait(steps: Iterable[Step], plan: Plan) -> float:
    """p99 of the seconds from submission to start, the longest of the steps below the knee."""
    below = [step for step in steps if step.offered <= CALM * plan.capacity]
    return max((step.p99_seconds - plan.score_seconds for step in below), default=0.0)


def describe_knee(found: Staircase, plan: Plan) -> str:
    if found.knee is None:
        return f"No knee: even {found.steps[-1].offered:g}/s was kept up with."
    kept_up = found.knee.kept_up
    beyond = [step.scored for step in found.steps if step.offered > kept_up]
    return (
        f"The knee is at {found.plateau:.2f} applications per second, "
        f"{100 * found.plateau / plan.capacity:.1f} % of the {plan.capacity:.2f}/s that {SLOTS} "
        f"slots of {plan.score_seconds:g} s can score. "
        + (f"{kept_up:g}/s is kept up with; " if kept_up else "No step is kept up with; ")
        + f"beyond, {min(beyond):.2f} to {max(beyond):.2f}/s are scored, whatever arrives."
    )
