"""A soak: a long time at 70 % of capacity, with letters of any size, and everything stays flat.

One medium worker, letters of 100 bytes to 200 KB (small ones are as likely as large ones, in
powers), so that payloads lie in rows, out of line and in the blob store. What has ended is kept
for minutes instead of days: removal is at work from the first minutes on, and the tables show
within half an hour the level that they would show within weeks.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from loadtest.fleet import Fairline, rows, until
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, Experiment, Row, Size, fairline_gauges, write_csv
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture
from loadtest.lab.soak.verdict import (
    ACCEPTED,
    COLUMNS,
    Point,
    Soak,
    bars,
    figures,
    findings,
    growths,
    tail_by_bucket,
    tails,
)
from loadtest.lab.soak.weights import Scales, Weighing, curve
from loadtest.report import Picture, Report, table
from loadtest.shapes import soak as soak_shape
from loadtest.users.wire import Arrival
from models.pools import POOLS

#: From here on a soak is drawn in minutes, and its second half is judged.
LONG_SECONDS = 300.0
#: What never comes to this is not worth a line.
VISIBLE_MB = 0.5
#: Beside those of the house, for the fifth line and further ones.
MORE = ("#6b7280", "#7c3aed", "#0891b2", "#a16207")


def draw(file: Path, soak: Soak) -> None:
    """Memory, tables, dead rows, the line, and two tails of latency."""
    scale, unit = (60.0, "minutes") if soak.seconds >= LONG_SECONDS else (1.0, "seconds")
    panel = Panel(scale, soak.seconds)
    with picture(file, 3, 2, inches_high=8.4, sharex=True) as axes:
        panel.lines(axes[0][0], "Memory, MB", largest_first(soak.memory))
        sizes = largest_first({**soak.tables, "blobs": soak.blobs})
        panel.lines(axes[0][1], "Tables and blobs, MB", sizes)
        tail = f"of each {soak.bucket_seconds:g} s"
        panel.lines(axes[1][0], f"Jobs ({tail})", in_line(soak))
        panel.lines(axes[1][1], "Dead rows not yet vacuumed", {"": soak.dead_rows})
        door = [(at, 1000 * seconds) for at, seconds in soak.door]
        for axis, title, points in (
            (axes[2][0], "Submit to scored, s", soak.scored),
            (axes[2][1], "Front door, ms", door),
        ):
            tails = {
                name: tail_by_bucket(points, soak.bucket_seconds, share)
                for name, share in (("p99", 0.99), ("p50", 0.5))
            }
            panel.lines(axis, f"{title} ({tail})", tails)
        for axis in axes[-1]:
            axis.set_xlabel(unit)


def in_line(soak: Soak) -> dict[str, list[Point]]:
    """What runs, as a rule, and the most that waited."""
    seen = {
        gauge: [(float(row["at"]), float(row[gauge])) for row in soak.rows if gauge in row]
        for gauge in ("running", "waiting")
    }
    return {
        "running, median": tail_by_bucket(seen["running"], soak.bucket_seconds, 0.5),
        "in line, most": tail_by_bucket(seen["waiting"], soak.bucket_seconds, 1.0),
    }


def largest_first(sizes: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Those that can be seen, in the order in which their lines end."""
    seen = {
        name: points
        for name, points in sizes.items()
        if points and max(value for _, value in points) >= VISIBLE_MB
    }
    return dict(sorted(seen.items(), key=lambda item: -item[1][-1][1]))


class Panel:
    """Lines over the same time."""

    def __init__(self, scale: float, seconds: float) -> None:
        self._scale = scale
        self._seconds = seconds

    def lines(self, axis: Any, title: str, curves: Mapping[str, Sequence[Point]]) -> None:
        """One line for each, from 0 on; the second half, which is judged, is shaded."""
        axis.set_title(title)
        for colour, (name, points) in zip((*COLOURS, *MORE), curves.items(), strict=False):
            seen = [point for point in points if 0 <= point[0] <= self._seconds * 1.02]
            if not seen:
                continue
            at, values = zip(*seen, strict=True)
            single = colour if len(curves) > 1 else FAIRLINE
            axis.plot(
                *([second / self._scale for second in at], values),
                color=single,
                linewidth=1.6,
                label=name,
            )
        if self._seconds >= LONG_SECONDS:
            axis.axvspan(
                *(self._seconds / 2 / self._scale, self._seconds / self._scale),
                color=IDEAL,
                alpha=0.07,
                linewidth=0,
            )
        axis.set_xlim(0, self._seconds / self._scale)
        # Room for the names.
        axis.set_ylim(0, 1.3 * max(0.1, axis.get_ylim()[1]))
        if len(curves) > 1:
            axis.legend(
                loc="upper left",
                ncols=3,
                fontsize=8.5,
                borderaxespad=0.1,
                columnspacing=1.0,
                handlelength=1.3,
            )


SHARE = 0.7
TITLE = "A soak at 70 % of capacity"
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
SCORED = """
    SELECT id::text, extract(epoch FROM scored_at)::float8 FROM applications
    WHERE score IS NOT NULL
"""


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


def run(desk: Desk) -> Report:
    """Start, load, drain, judge."""
    plan = PLANS[desk.size]
    with started(desk, plan) as fairline:
        soak, weighings = watch(desk, plan, fairline)
    write_csv(desk.folder / "weights.csv", weighings)
    draw(desk.folder / "soak.png", soak)
    caption = "Memory, table sizes, the line, dead rows and latency over the whole run"
    return Report(
        *("soak", TITLE),
        findings=findings(soak),
        pictures=[Picture("soak.png", caption)],
        tables=[table("Second half", COLUMNS, growths(soak).items()), tails(soak)],
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
        "leaderboard: their table grows on purpose."
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
        with fairline.running("medium"):
            yield fairline
    finally:
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
    scored: dict[str, float] = {}

    def ended() -> bool:
        scored.update(map(tuple, rows(engine, SCORED)))
        return ids <= scored.keys()

    until(ended, DRAIN_SECONDS, pause=0.25)
    return scored


def put_together(
    plan: Plan,
    arrivals: Sequence[Arrival],
    scored_at: Mapping[str, float],
    weighings: Sequence[Weighing],
    seconds: Sequence[Row],
) -> Soak:
    """Everything by the seconds since the first arrival."""
    begin = arrivals[0].intended_at
    accepted = [arrival for arrival in arrivals if arrival.status == ACCEPTED]
    names = weighings[0] if weighings else Weighing(begin, {}, {}, 0.0, 0)
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
        memory={name: curve(weighings, begin, "memory", name) for name in names.memory},
        tables={name: curve(weighings, begin, "tables", name) for name in names.tables},
        blobs=curve(weighings, begin, "blobs"),
        dead_rows=curve(weighings, begin, "dead_rows"),
        rows=[{**row, "at": float(row["at"]) - begin} for row in seconds],
    )


EXPERIMENT = Experiment(
    "soak",
    TITLE,
    "One worker at 70 % of its capacity with payloads of any size: do memory, tables and "
    "latency stay flat?",
    lambda size: PLANS[size].seconds + 14.0,
    run,
)
