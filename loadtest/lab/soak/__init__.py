"""A soak: a long time at 70 % of capacity, with letters of any size, and everything stays flat.

One medium worker, letters of 100 bytes to 200 KB (small ones are as likely as large ones, in
powers), so that payloads lie in rows, out of line and in the blob store. What has ended is kept
for minutes instead of days: removal is at work from the first minutes on, and the tables show
within half an hour the level that they would show within weeks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine, text

from loadtest.fairline import Fairline
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, Size
from loadtest.lab.gauges import fairline_gauges
from loadtest.lab.sampling import Row, write_csv
from loadtest.lab.soak.drawing import draw
from loadtest.lab.soak.verdict import ACCEPTED, Soak, bars, figures, findings, table, tails
from loadtest.lab.soak.weights import Scales, Weighing, curve
from loadtest.report import Picture, Report
from loadtest.shapes import soak as soak_shape
from loadtest.users.record import Arrival
from models.pools import POOLS

SHARE = 0.7
#: Some are larger than what a row may hold, 64 KiB.
LETTER_BYTES = "100-200000"
DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3600.0
#: How long answers may take after the last start, and jobs after that.
GRACE_SECONDS = 10.0
DRAIN_SECONDS = 30.0
#: Folder in the fleet's home.
BLOBS = "soak-blobs"
PARTS = {"worker-medium-1": "worker"}

#: The score of a job outlives the job, which retention has removed by now.
SCORED = text("""
    SELECT id::text, extract(epoch FROM scored_at)::float8 FROM applications
    WHERE score IS NOT NULL
""")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how fast things are forgotten."""

    seconds: float
    score_seconds: float
    keep_seconds: float
    bucket_seconds: float
    weigh_seconds: float

    @property
    def per_second(self) -> float:
        return SHARE * POOLS["medium"].slots / self.score_seconds


PLANS = {
    Size.FULL: Plan(1800.0, 1.5, keep_seconds=180.0, bucket_seconds=60.0, weigh_seconds=5.0),
    Size.QUICK: Plan(30.0, 1.5, keep_seconds=5.0, bucket_seconds=5.0, weigh_seconds=1.0),
    Size.MINI: Plan(2.0, 0.5, keep_seconds=5.0, bucket_seconds=1.0, weigh_seconds=1.0),
}


class SoakExperiment:
    """The experiment."""

    name = "soak"
    title = "A soak at 70 % of capacity"
    question = (
        "One worker at 70 % of its capacity with payloads of any size: do memory, tables and "
        "latency stay flat?"
    )

    def seconds(self, size: Size) -> float:
        """The load, and the start."""
        return PLANS[size].seconds + 14.0

    def run(self, desk: Desk) -> Report:
        """Start, load, drain, judge."""
        plan = PLANS[desk.size]
        with started(desk, plan) as fairline:
            soak, weighings = watch(desk, plan, fairline)
        write_csv(desk.folder / "weights.csv", weighings)
        draw(desk.folder / "soak.png", soak)
        return Report(
            self.name,
            self.title,
            findings=findings(soak),
            pictures=[
                Picture(
                    "soak.png",
                    "Memory, table sizes, the line, dead rows and latency over the whole run",
                )
            ],
            tables=[table(soak), tails(soak)],
            bars=bars(soak, desk.size),
            notes=notes(desk.size, plan),
            data=figures(soak),
        )


def notes(size: Size, plan: Plan) -> list[str]:
    """What a reader must know."""
    said = [
        f"Ended jobs and events are kept for {plan.keep_seconds:g} s here, by default for 7 days; "
        "a walk through the old jobs begins once a minute. The second half (shaded) is judged, "
        "by the median of all slopes between two looks. Memory is the resident size, with what "
        "processes of one part share counted once. Scored applications are kept for ever, for the "
        "leaderboard: their table grows on purpose.",
    ]
    if size is not Size.FULL:
        said.append("Too short to judge flatness: only refusals and losses are.")
    return said


@contextmanager
def started(desk: Desk, plan: Plan) -> Iterator[Fairline]:
    """A Fairline that forgets soon."""
    desk.step("starting")
    keep_days = f"{plan.keep_seconds / DAY_SECONDS:.8f}"
    blobs = desk.fleet.home / BLOBS
    blobs.mkdir(parents=True)
    fairline = Fairline(
        desk.fleet,
        served_pools="medium",
        name="soak",
        score_seconds=str(plan.score_seconds),
        blob_url=str(blobs),
        keep_finished_days=keep_days,
        keep_dead_days=keep_days,
        keep_events_days=keep_days,
        keep_keys_hours=f"{plan.keep_seconds / HOUR_SECONDS:.8f}",
    )
    try:
        fairline.start_worker("medium")
        fairline.start_scheduler()
        fairline.start_api()
        fairline.await_ready()
        yield fairline
    finally:
        desk.fleet.kill("api", "worker-medium-1", "scheduler")
        desk.fleet.postgres.service.drop_database("soak")
        shutil.rmtree(blobs)


def watch(desk: Desk, plan: Plan, fairline: Fairline) -> tuple[Soak, list[Row]]:
    """Offer the load, weigh meanwhile, wait for the last score."""
    order = Order(
        fairline.url,
        "Submitter",
        soak_shape(plan.per_second, plan.seconds),
        {"letter-bytes": LETTER_BYTES},
    )
    with fairline.engine() as engine, fairline_gauges(fairline) as gauges:
        scales = Scales(
            engine,
            {PARTS.get(name, name): pids for name, pids in desk.fleet.pids().items()},
            desk.fleet.home / BLOBS,
            plan.weigh_seconds,
        )
        desk.step(f"{plan.per_second:.2f}/s for {plan.seconds:g} s")
        with desk.watch("soak", scales.beside(gauges)) as watched:
            record = Generator(order, desk.fleet.home / "soak-load").finish(GRACE_SECONDS)
            desk.step("until the last job")
            ids = {arrival.id for arrival in record.arrivals if arrival.status == ACCEPTED}
            scored_at = await_scores(engine, ids)
    begin = record.arrivals[0].intended_at
    soak = put_together(plan, record.arrivals, scored_at, scales.weighings, watched.rows)
    return soak, [weighing.flat(begin) for weighing in scales.weighings]


def await_scores(engine: Engine, ids: set[str]) -> dict[str, float]:
    """Wait until all of these have a score, or for as long as that may take; when each got it."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        with engine.connect() as connection:
            scored = {row[0]: row[1] for row in connection.execute(SCORED)}
        if ids <= scored.keys() or time.monotonic() > deadline:
            return scored
        time.sleep(0.25)


def put_together(
    plan: Plan,
    arrivals: Sequence[Arrival],
    scored_at: Mapping[str, float],
    weighings: Sequence[Weighing],
    rows: Sequence[Row],
) -> Soak:
    """Everything by the seconds since the first arrival."""
    begin = arrivals[0].intended_at
    accepted = [arrival for arrival in arrivals if arrival.status == ACCEPTED]
    names = weighings[0] if weighings else None
    return Soak(
        seconds=plan.seconds,
        per_second=plan.per_second,
        bucket_seconds=plan.bucket_seconds,
        scored=[
            (each.intended_at - begin, scored_at[each.id] - each.intended_at)
            for each in accepted
            if each.id in scored_at
        ],
        door=[(each.intended_at - begin, each.latency_seconds) for each in accepted],
        refused=len(arrivals) - len(accepted),
        lost=sum(each.id not in scored_at for each in accepted),
        memory={
            name: curve(weighings, begin, "memory", name)
            for name in (names.memory if names else ())
        },
        tables={
            name: curve(weighings, begin, "tables", name)
            for name in (names.tables if names else ())
        },
        blobs=curve(weighings, begin, "blobs"),
        dead_rows=curve(weighings, begin, "dead_rows"),
        rows=[{**row, "at": float(row["at"]) - begin} for row in rows],
    )


EXPERIMENT = SoakExperiment()
