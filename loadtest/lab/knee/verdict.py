"""The staircases, what their jobs say, where the knee is, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf

from loadtest.figures import percentile, percentiles, steady_rate
from loadtest.lab.experiment import Row, Size
from loadtest.report import Bar, Picture, Report, table
from loadtest.shapes import Stretch, steps
from models.pools import POOLS

POOL = "medium"
SLOTS = POOLS[POOL].slots


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of equal length, after a short warm-up at the first one's rate."""

    rates: tuple[float, ...]
    step_seconds: float
    warm_seconds: float
    score_seconds: float = 1.5
    #: Of the capacity, scored beyond the knee.
    least_percent: float = 99.0
    #: The front door's p95 in the last step, of that in the first.
    most_times: float = 1.5

    @property
    def capacity(self) -> float:
        """Applications a second that the slots can score."""
        return SLOTS / self.score_seconds

    @property
    def settle_seconds(self) -> float:
        """How long a step still ends what the step before began."""
        return 2 * self.score_seconds

    @property
    def stretches(self) -> list[Stretch]:
        """What is offered."""
        warm = Stretch(self.warm_seconds, self.rates[0], self.rates[0])
        return [warm, *steps(self.rates, self.step_seconds)]

    @property
    def load_seconds(self) -> float:
        """While anything arrives."""
        return self.warm_seconds + self.step_seconds * len(self.rates)

    @property
    def drain_seconds(self) -> float:
        """For what the steps beyond the capacity leave in line."""
        left = self.step_seconds * sum(max(0.0, rate - self.capacity) for rate in self.rates)
        return left / self.capacity + self.score_seconds


STAIRS = (2.0, 4.0, 6.0, 6.6, 8.0, 10.0, 12.0, 14.0)
PLANS = {
    Size.FULL: Plan(STAIRS, 30.0, 5.0),
    # Twenty answers at 2/s: their p95 is the slowest but one.
    Size.QUICK: Plan(STAIRS, 10.0, 4.0, least_percent=98.0, most_times=2.0),
    # Nothing to hold against a bar: only that it runs.
    Size.MINI: Plan((10.0, 60.0), 1.5, 0.5, score_seconds=0.3),
}


#: A last step that scores this share of what is offered has not come to a plateau.
KEEPS_UP = 0.97


@dataclass(frozen=True, slots=True)
class Job:
    """One submission and what became of it, in seconds since the epoch."""

    intended_at: float
    #: From then to the answer.
    latency_seconds: float
    accepted: bool
    #: None if it was never scored.
    scored_at: float | None

    @property
    def wait_seconds(self) -> float:
        """From the intended start to the score."""
        return inf if self.scored_at is None else self.scored_at - self.intended_at


@dataclass(frozen=True, slots=True)
class Tread:
    """One step of the staircase as it was offered."""

    per_second: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One step as it came out. Waits and answers are of the jobs that were to start in it;
    the scored ones are of all that ended in it."""

    offered: float
    scored: float
    jobs: int
    refused: int
    p50_seconds: float
    p99_seconds: float
    front_door_p95_ms: float
    #: Jobs in line when the step ended.
    depth: int
    waiters: int


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the line of what is offered meets the plateau of what is scored."""

    #: Jobs a second, offered and scored.
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


def figures(
    tread: Tread, jobs: Sequence[Job], settle_seconds: float, *, depth: int, waiters: int
) -> Figures:
    """What one step showed. The first ``settle_seconds`` still end what the step before began."""
    own = [job for job in jobs if tread.begin <= job.intended_at < tread.end]
    waits = [job.wait_seconds for job in own if job.accepted]
    answers = [job.latency_seconds for job in own]
    return Figures(
        tread.per_second,
        steady_rate(endings(jobs), tread.begin + settle_seconds, tread.end),
        len(own),
        sum(not job.accepted for job in own),
        *percentiles(waits, 0.5, 0.99),
        1000 * percentile(answers, 0.95),
        depth,
        waiters,
    )


def plateau_rate(
    treads: Sequence[Tread], jobs: Sequence[Job], kept_up: float, settle_seconds: float
) -> float:
    """Scored a second over all steps beyond the knee, as one stretch."""
    beyond = [tread for tread in treads if tread.per_second > kept_up]
    if not beyond:
        return 0.0
    return steady_rate(endings(jobs), beyond[0].begin + settle_seconds, beyond[-1].end)


def endings(jobs: Iterable[Job]) -> list[float]:
    """When jobs were scored."""
    return [job.scored_at for job in jobs if job.scored_at is not None]


def treads_of(rates: Sequence[float], seconds: float, begin: float) -> list[Tread]:
    """Steps of equal length, one after the other."""
    return [
        Tread(rate, begin + number * seconds, begin + (number + 1) * seconds)
        for number, rate in enumerate(rates)
    ]


TITLE = "The knee: one worker at and beyond its capacity"
COLUMNS = {
    "offered": "{.offered:g}/s",
    "scored": "{.scored:.2f}/s",
    "in line": "{.depth:,}",
    "p50": "{.p50_seconds:.2f} s",
    "p99": "{.p99_seconds:.2f} s",
    "door p95": "{.front_door_p95_ms:.1f} ms",
    "refused": "{.refused}",
    "waiters": "{.waiters}",
}


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
            table(
                "Steps: jobs a second, in line at the end, from submission to score, front door",
                COLUMNS,
                sight.steps,
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
        data={**asdict(sight), "capacity": plan.capacity},
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
