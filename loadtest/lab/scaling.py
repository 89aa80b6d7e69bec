"""Do two workers score twice as much as one, and eight eight times?

The queue is filled before the first worker starts, so no slot is ever without work. Workers are
added, never replaced. Starting one costs seconds of CPU, so a count is measured only when all its
slots are alive and have had time to settle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from loadtest.figures import MACHINE, CoreMeter, steady_rate
from loadtest.fleet import Fairline
from loadtest.generator import Order
from loadtest.lab.experiment import POOL, SLOTS, RunContext, Size, fairline_gauges
from loadtest.lab.pictures import FAIRLINE, IDEAL, beside, bound, picture
from loadtest.lab.submissions import ACCEPTED, read_scored
from loadtest.report import Picture, Report, at_least, at_most, table
from loadtest.shapes import Stretch

TITLE = "Scaling: more workers, more scored"
QUESTION = "Do workers add up, one after the other, while the queue is never empty?"
#: What a worker takes to be alive.
WORKER_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers of workers, and for how long each is measured."""

    workers: tuple[int, ...]
    seconds: float
    score_seconds: float = 1.5
    #: How many times the jobs expected to be scored are queued: a start may take longer.
    spare: float = 1.3
    #: Shares of the ideal that the counts must reach, in percent.
    bars: tuple[tuple[int, float], ...] = ()

    @property
    def ideal(self) -> float:
        """Applications per second that one worker's slots can score."""
        return SLOTS / self.score_seconds

    @property
    def settle_seconds(self) -> float:
        """Until it no longer matters that slots began together with the start of a process."""
        return 2 * self.score_seconds

    @property
    def jobs(self) -> int:
        """More than can be scored."""
        added = [after - before for before, after in pairwise((0, *self.workers))]
        return round(
            self.spare
            * sum(
                count * self.ideal * (self.seconds + self.settle_seconds + number * WORKER_SECONDS)
                for count, number in zip(self.workers, added, strict=True)
            )
        )


PLANS = {
    Size.FULL: Plan((1, 2, 3, 4, 8), 40.0, bars=((4, 99.0), (8, 97.0))),
    # In ten seconds one ending more or less is half a percent of a worker's.
    Size.QUICK: Plan((1, 2, 3, 4, 8), 8.0, bars=((4, 97.0), (8, 95.0))),
    Size.MINI: Plan((1, 2), 1.0, score_seconds=0.5, spare=2.0),
}


@dataclass(frozen=True, slots=True)
class Count:
    """So many workers at saturation."""

    workers: int
    #: Scored, and what their slots could have scored.
    per_second: float
    ideal: float
    #: The shortest that the queue was meanwhile.
    least_waiting: int
    #: The most slots that waited for a database connection.
    waiters: int
    #: In use by Fairline and its services, and by the workers alone.
    cores: float
    worker_cores: float

    @property
    def percent(self) -> float:
        return 100 * self.per_second / self.ideal


COLUMNS = {
    "workers": "{.workers}",
    "scored": "{.per_second:.2f}",
    "ideal": "{.ideal:.2f}",
    "share": "{.percent:.1f} %",
    "cores": "{.cores:.2f}",
    "of them": "{.worker_cores:.2f}",
    "queued": "{.least_waiting:,}",
    "waiters": "{.waiters}",
}


def per_worker(counts: Sequence[tuple[int, float]]) -> float:
    """The slope of the line through the origin that is nearest to all counts. Pure."""
    squares = sum(workers**2 for workers, _ in counts)
    return sum(workers * rate for workers, rate in counts) / squares if squares else 0.0


TABLE = "Scored per second; cores in use, of them by workers; fewest queued"


def judge(counts: Sequence[Count], plan: Plan, refused: int) -> Report:
    by_workers = {count.workers: count for count in counts}
    each = per_worker([(count.workers, count.per_second) for count in counts])
    last = counts[-1]
    per_slot = min(count.least_waiting / (SLOTS * count.workers) for count in counts)
    return Report(
        "scaling",
        TITLE,
        findings=[
            f"Each worker adds {each:.2f} applications per second, {100 * each / plan.ideal:.1f} % "
            f"of what its {SLOTS} slots can do at {plan.score_seconds:g} s each "
            f"({plan.ideal:.2f}/s).",
            f"{last.workers} workers score {last.per_second:.1f}/s of an ideal {last.ideal:.1f}/s "
            f"({last.percent:.1f} %). Fairline, PostgreSQL and RabbitMQ use {last.cores:.2f} cores "
            f"for that, {last.worker_cores:.2f} of them in the workers.",
        ],
        pictures=[Picture("scaling.png", "Applications scored per second by number of workers")],
        tables=[table(TABLE, COLUMNS, counts)],
        bars=[
            *(
                at_least(
                    f"{workers} workers, of {workers * plan.ideal:.2f}/s",
                    *(by_workers[workers].percent, percent, " %"),
                )
                for workers, percent in plan.bars
            ),
            at_least("fewest queued for each slot while measured", per_slot, 1.0),
            at_most("waiters on a database pool of 2", max(count.waiters for count in counts)),
            at_most("submissions refused", refused),
        ],
        data={
            "counts": [{**asdict(count), "percent": count.percent} for count in counts],
            "per_worker": each,
            "refused": refused,
            "submitted": plan.jobs,
        },
    )


def draw(file: Path, counts: Sequence[Count], plan: Plan) -> None:
    """The measured rate against the ideal, and its share of it."""
    workers = [count.workers for count in counts]
    with picture(file, columns=2, inches_high=4.0, width_ratios=(3, 2)) as (left, right):
        most = max(workers) + 0.5
        left.plot((0, most), (0, most * plan.ideal), ":", color=IDEAL, lw=1.6, label="ideal")
        left.plot(workers, [c.per_second for c in counts], "o-", color=FAIRLINE, label="scored")
        for count in counts:
            at = (count.workers, count.per_second)
            beside(left, f"{count.per_second:.1f}", at, (8, -12), fontweight="bold")
        left.set(
            title=f"Scored per second, {SLOTS} slots × {plan.score_seconds:g} s per worker",
            xlabel="workers",
            ylabel="applications/s",
            xticks=workers,
            xlim=(0, most),
            ylim=(0, most * plan.ideal),
        )
        left.legend(loc="upper left")
        bound(right, 100)
        right.plot([str(number) for number in workers], [c.percent for c in counts], "o")
        for place, count in enumerate(counts):
            at, text = (place, count.percent), f"{count.percent:.1f}"
            beside(right, text, at, (0, -15), ha="center", fontweight="bold")
        for number, (count_of_bar, percent) in enumerate(plan.bars):
            place = workers.index(count_of_bar)
            edges = (place - 0.3, place + 0.3)
            name = "" if number else "required"
            right.plot(edges, (percent, percent), color=IDEAL, lw=1.6, label=name)
            right.legend(loc="lower left")
        lowest = min(90.0, 10 * int(min(c.percent for c in counts) / 10))
        right.set(title="Share of the ideal", xlabel="workers", ylabel="percent")
        right.set(ylim=(lowest, 102), xlim=(-0.6, len(counts) - 0.4))


#: Submissions per second while the queue is filled.
FILL_PER_SECOND = 400.0
#: Services, migrations, API.
START_SECONDS = 16.0


def seconds(size: Size) -> float:
    plan = PLANS[size]
    starts = START_SECONDS + max(plan.workers) * WORKER_SECONDS
    counts = len(plan.workers) * (plan.seconds + plan.settle_seconds)
    return starts + plan.jobs / FILL_PER_SECOND + counts


def run(context: RunContext) -> Report:
    """A full queue, and one number of workers after the other."""
    plan = PLANS[context.size]
    fairline = context.fairline("scaling", plan.score_seconds, db_pool_size="2")
    started = ["api", "scheduler"]
    try:
        context.step("starting API and scheduler")
        fairline.start_scheduler()
        fairline.start_api()
        context.step(f"queueing {plan.jobs:,} applications")
        stretch = Stretch(plan.jobs / FILL_PER_SECOND, FILL_PER_SECOND, FILL_PER_SECOND)
        record = context.generate(Order(fairline.url, "Submitter", [stretch])).finish()
        counts = []
        for workers in plan.workers:
            alive = len(started) - 2
            context.step(f"worker {workers}" if workers == alive + 1 else f"to {workers} workers")
            started += [fairline.start_worker(POOL, n) for n in range(alive + 1, workers + 1)]
            fairline.await_ready()
            fairline.await_slots(POOL, SLOTS * workers, seconds=30.0 + 10 * workers)
            counts.append(measure(context, fairline, plan, workers))
    finally:
        context.fleet.kill(*started)
    draw(context.folder / "scaling.png", counts, plan)
    return judge(counts, plan, sum(status != ACCEPTED for status in record.statuses()))


def measure(context: RunContext, fairline: Fairline, plan: Plan, workers: int) -> Count:
    """How much these workers score while they have enough to do."""
    name = f"{workers} worker{'s' if workers > 1 else ''}"
    context.step(f"{name}: settling")
    time.sleep(plan.settle_seconds)
    pids = fairline.fleet.pids()
    with fairline_gauges(fairline) as gauges, context.watch(name, gauges) as watched:
        meter, begin = CoreMeter(pids), time.time()
        time.sleep(plan.seconds)
        cores, end = meter.read(), time.time()
    with fairline.engine() as engine:
        scored = list(read_scored(engine).values())
    return Count(
        workers,
        steady_rate(scored, begin, end),
        workers * plan.ideal,
        least_waiting=int(min((float(row["waiting"]) for row in watched.rows), default=0.0)),
        waiters=int(watched.most("waiters")),
        cores=sum(used for part, used in cores.items() if part != MACHINE),
        worker_cores=sum(used for part, used in cores.items() if part.startswith("worker-")),
    )
