"""A soak: a long time at 70 % of capacity, with letters of any size, and everything stays flat.

Letters of 100 bytes to 200 KB are stored in rows, in TOAST and in the blob store. Ended jobs are
kept for minutes instead of days, so that tables soon reach the level of weeks.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from loadtest.figures import folder_bytes, tree_memory
from loadtest.fleet import Fairline, rows
from loadtest.generator import Order
from loadtest.lab.experiment import POOL, Gauges, RunContext, Size, fairline_gauges, write_csv
from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture
from loadtest.lab.soak.verdict import PLANS, Plan, Soak, judge, tail_by_bucket
from loadtest.lab.soak.verdict import TITLE as TITLE
from loadtest.lab.submissions import Point, collect, read_scored
from loadtest.report import Report
from loadtest.shapes import soak as soak_shape

QUESTION = (
    "One worker at 70 % of its capacity with payloads of any size: do memory, tables and latency "
    "stay flat?"
)
#: From here on a soak is drawn in minutes, and its second half is judged.
LONG_SECONDS = 300.0
#: What never reaches this is not drawn.
VISIBLE_MB = 0.5
#: Beside the usual colours, for the fifth line and further ones.
MORE = ("#6b7280", "#7c3aed", "#0891b2", "#a16207")


def draw(file: Path, soak: Soak) -> None:
    """Memory, tables, dead rows, the queue, and two tails of latency."""
    submissions = soak.submissions

    def bucketed(points: Sequence[Point], share: float) -> list[Point]:
        return tail_by_bucket(points, soak.plan.bucket_seconds, share)

    running, waiting = (submissions.gauge(name) for name in ("running", "waiting"))
    jobs = {"running, median": bucketed(running, 0.5), "queued, most": bucketed(waiting, 1.0)}
    tail = f"of each {soak.plan.bucket_seconds:g} s"
    panels: list[tuple[str, Mapping[str, Sequence[Point]]]] = [
        ("Memory, MB", largest_first(soak.memory)),
        ("Tables and blobs, MB", largest_first({**soak.tables, "blobs": soak.blobs})),
        (f"Jobs ({tail})", jobs),
        ("Dead rows not yet vacuumed", {"": soak.dead_rows}),
        *(
            (f"{title} ({tail})", {"p99": bucketed(points, 0.99), "p50": bucketed(points, 0.5)})
            for title, points in (("Submit to scored, s", soak.scored), ("API, ms", soak.api_ms))
        ),
    ]
    with picture(file, 3, 2, inches_high=8.4, sharex=True) as axes:
        for axis, (title, lines) in zip(axes.flat, panels, strict=True):
            draw_lines(axis, title, lines, soak.plan.seconds)
        for axis in axes[-1]:
            axis.set_xlabel("minutes" if soak.plan.seconds >= LONG_SECONDS else "seconds")


def largest_first(sizes: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Those that can be seen, in the order in which their lines end."""
    seen = {
        name: points
        for name, points in sizes.items()
        if points and max(value for _, value in points) >= VISIBLE_MB
    }
    return dict(sorted(seen.items(), key=lambda item: -item[1][-1][1]))


def draw_lines(axis: Any, title: str, lines: Mapping[str, Sequence[Point]], seconds: float) -> None:
    """One line for each, from 0 on; the second half, which is judged, is shaded."""
    axis.set_title(title)
    scale = 60.0 if seconds >= LONG_SECONDS else 1.0
    for colour, (name, points) in zip((*COLOURS, *MORE), lines.items(), strict=False):
        seen = [(at / scale, value) for at, value in points if 0 <= at <= seconds * 1.02]
        if seen:
            single = colour if len(lines) > 1 else FAIRLINE
            axis.plot(*zip(*seen, strict=True), color=single, linewidth=1.6, label=name)
    if seconds >= LONG_SECONDS:
        half = (seconds / 2 / scale, seconds / scale)
        axis.axvspan(*half, color=IDEAL, alpha=0.07, linewidth=0)
    axis.set_xlim(0, seconds / scale)
    # Space for the names.
    axis.set_ylim(0, 1.3 * max(0.1, axis.get_ylim()[1]))
    if len(lines) > 1 and axis.get_lines():  # none, if nothing was seen in time
        style = {"fontsize": 8.5, "borderaxespad": 0.1, "columnspacing": 1.0, "handlelength": 1.3}
        axis.legend(loc="upper left", ncols=3, **style)


#: Bytes with indexes and TOAST, and dead rows, by table.
TABLES = """
    SELECT relname, pg_total_relation_size(relid), n_dead_tup FROM pg_stat_user_tables
    WHERE relname <> 'alembic_version' ORDER BY relname
"""


@dataclass(slots=True)
class Scales:
    """Measures sizes in the sampler's thread, every few seconds."""

    engine: Engine
    pids: Mapping[str, Sequence[int]]
    blobs: Path
    every_seconds: float
    #: When, and megabytes by the columns of ``weights.csv``.
    measured: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    due: float = 0.0

    def beside(self, gauges: Gauges) -> Gauges:
        """The same gauges; reading them also measures sizes when that is due."""

        def read() -> Mapping[str, float]:
            if time.monotonic() >= self.due:
                self.due = time.monotonic() + self.every_seconds - 0.5
                self.measured.append((time.time(), self.weigh()))
            return gauges()

        return read

    def weigh(self) -> dict[str, float]:
        """One measurement of everything."""
        tables = rows(self.engine, TABLES)
        return {
            **{
                f"memory_{name}_mb": round(tree_memory(pids) / 1e6, 2)
                for name, pids in self.pids.items()
            },
            **{f"table_{name}_mb": round(size / 1e6, 3) for name, size, _ in tables},
            "blobs_mb": round(folder_bytes(self.blobs) / 1e6, 2),
            "dead_rows": sum(dead for *_, dead in tables),
        }

    def since(self, begin: float) -> list[dict[str, float]]:
        """Rows by the seconds since a moment."""
        return [{"second": round(at - begin, 1), **sizes} for at, sizes in self.measured]


def curve(sizes: Sequence[Mapping[str, float]], column: str) -> list[Point]:
    return [(row["second"], row[column]) for row in sizes]


def curves(sizes: Sequence[Mapping[str, float]], prefix: str) -> dict[str, list[Point]]:
    """The columns that begin like this and end in ``_mb``, by what is in between."""
    columns = [name for name in (sizes[0] if sizes else ()) if name.startswith(prefix)]
    return {name.removeprefix(prefix).removesuffix("_mb"): curve(sizes, name) for name in columns}


#: Some are larger than what a row may hold, 64 KiB.
LETTER_BYTES = "100-200000"
DAY_SECONDS = 86_400.0
#: How long jobs may take after the last submission.
DRAIN_SECONDS = 30.0
#: Folder in the fleet's home.
BLOBS = "soak-blobs"
PARTS = {f"worker-{POOL}-1": "worker"}


def seconds(size: Size) -> float:
    return PLANS[size].seconds + 14.0


def run(context: RunContext) -> Report:
    plan = PLANS[context.size]
    if context.minutes is not None:
        plan = replace(plan, seconds=context.minutes * 60)
    with started(context, plan) as fairline:
        soak, sizes = measure(context, plan, fairline)
    write_csv(context.folder / "weights.csv", sizes)
    draw(context.folder / "soak.png", soak)
    return judge(soak, context.size)


@contextmanager
def started(context: RunContext, plan: Plan) -> Iterator[Fairline]:
    """A Fairline with a short retention."""
    context.step("starting")
    keep_days = plan.keep_seconds / DAY_SECONDS
    blobs = context.fleet.home / BLOBS
    blobs.mkdir(parents=True)
    fairline = context.fairline(
        "soak",
        plan.score_seconds,
        blob_url=str(blobs),
        keep_keys_hours=f"{24 * keep_days:.8f}",
        **{f"keep_{what}_days": f"{keep_days:.8f}" for what in ("finished", "dead", "events")},
    )
    try:
        with fairline.running(POOL):
            yield fairline
    finally:
        context.fleet.postgres.service.drop_database("soak")
        shutil.rmtree(blobs)


def measure(
    context: RunContext, plan: Plan, fairline: Fairline
) -> tuple[Soak, list[dict[str, float]]]:
    """Offer the load, measure sizes meanwhile, wait for the last score."""
    shape = soak_shape(plan.per_second, plan.seconds)
    order = Order(fairline.url, "Submitter", shape, {"letter-bytes": LETTER_BYTES})
    with fairline.engine() as engine, fairline_gauges(fairline) as gauges:
        pids = {PARTS.get(name, name): pids for name, pids in context.fleet.pids().items()}
        scales = Scales(engine, pids, context.fleet.home / BLOBS, plan.weigh_seconds)
        with context.watch("soak", scales.beside(gauges)) as watched:
            context.step(f"{plan.per_second:.2f}/s for {plan.seconds:g} s")
            read, generator = partial(read_scored, engine), context.generate(order)
            submissions = collect(context, generator, watched.rows, read, DRAIN_SECONDS)
    sizes = scales.since(submissions.begin)
    soak = Soak(
        *(plan, submissions),
        memory=curves(sizes, "memory_"),
        tables=curves(sizes, "table_"),
        blobs=curve(sizes, "blobs_mb"),
        dead_rows=curve(sizes, "dead_rows"),
    )
    return soak, sizes
