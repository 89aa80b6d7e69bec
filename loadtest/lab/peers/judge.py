"""The comparison's report: sentences, bars and pictures from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.figures import percentile
from loadtest.lab.experiment import Size
from loadtest.lab.peers.tables import (
    CELERY,
    COST_JOBS,
    FAIRLINE,
    JOB_KINDS,
    Measured,
    tables,
)
from loadtest.lab.pictures import COLOURS, IDEAL, picture
from loadtest.report import Bar, Picture, Report, at_least, at_most

TITLE = "Fairline and its peers"


@dataclass(frozen=True, slots=True)
class Required:
    #: How many times another's rate: accepted, of plain Celery's and of the empty route's; polls
    #: of either kind, of the empty route's; jobs, of the best peer's and of plain Celery's.
    ratios: tuple[float, float, float, float, float, float]
    start_over_celery_ms: float
    #: The API's p95 with a long queue, of that with an empty one.
    queue_ratio: float


REQUIRED = {
    Size.FULL: Required((5.5, 0.75, 0.8, 0.8, 1.0, 5.0), 5.0, 1.3),
    # One short round each: half the distance is lost in noise.
    Size.QUICK: Required((4.0, 0.6, 0.65, 0.65, 0.8, 3.5), 10.0, 1.8),
    # Too short for rates; it still must not lose anything.
    Size.MINI: Required((0.0,) * 6, 1e9, 1e9),
}

NOTES = (
    "All contenders ran on one machine, on the same PostgreSQL and RabbitMQ, one after the "
    "other in turns, each alone, with two API processes. While the accept rate of a peer is "
    "measured its workers do not run; Fairline's scheduler and worker do.",
    "The peers and the empty Flask route are served by gunicorn's own gevent worker, Fairline "
    "by the worker class that its gunicorn.conf.py names. Where these differ the empty route "
    "is no ceiling for Fairline, and part of its lead in requests per second is the server's, "
    "not the queue's.",
    "In a closed loop a gevent server may serve some connections far more often than others: "
    "where p50 is far below connections divided by rate, it is that of the favoured ones.",
    "Dramatiq keeps no record of a job: it is counted when its function returns, before the "
    "message is acknowledged. All others are counted by their own committed rows.",
    "For the kill, Fairline's lease and Procrastinate's heartbeat were shortened to 4 s; "
    "their defaults are 10 s and 30 s.",
)


def judge(found: Measured, size: Size) -> Report:
    return Report(
        "peers",
        TITLE,
        findings=findings(found),
        tables=tables(found),
        bars=bars(found, REQUIRED[size]),
        notes=list(NOTES),
        data=dict(found.data()),
    )


def bars(found: Measured, required: Required) -> list[Bar]:
    few, many = found.connections
    rate, accept, jobs = found.rate, found.rates("accept"), found.rates("no-op end to end")
    best = max(each for name, each in jobs.items() if name != FAIRLINE)
    empty, done = rate("empty Flask route @few"), "no-op jobs, HTTP batch to done, of"
    of_empty = f"of the empty route at {few} connections"
    at_many = rate(f"accept: {FAIRLINE} @many"), rate("empty Flask route @many")
    ratios = [
        (f"accept rate at {few} connections, of plain Celery's", accept[FAIRLINE], accept[CELERY]),
        (f"accept rate at {many} connections, of the empty route's", *at_many),
        (f"polls, 304, {of_empty}", rate("poll: 304 @few"), empty),
        (f"polls, terminal, {of_empty}", rate("poll: terminal @few"), empty),
        (f"{done} the best peer's", jobs[FAIRLINE], best),
        (f"{done} plain Celery's", jobs[FAIRLINE], jobs[CELERY]),
    ]
    starts = found.start_ms()
    later = starts[FAIRLINE] - starts[CELERY]
    start = "submit to start when idle, p50, beyond plain Celery's"
    queued = percentile(found.lined_ms, 0.95) / max(1e-9, percentile(found.idle_ms, 0.95))
    queue = f"API p95 with {found.waiting:,} jobs waiting, of the idle one"
    lost = next(each.survival.lost for each in found.killed if each.name == FAIRLINE)
    return [
        *(
            at_least(claim, ours / theirs if theirs > 0 else 0.0, least, " x")
            for (claim, ours, theirs), least in zip(ratios, required.ratios, strict=True)
        ),
        at_most(start, later, required.start_over_celery_ms, " ms"),
        at_most(queue, queued, required.queue_ratio, " x"),
        at_most("jobs lost to kill -9 of the worker", lost),
        at_most("unexpected answers", sum(sample.unexpected for sample in found.samples)),
    ]


def findings(found: Measured) -> list[str]:
    """The most important in sentences, wins and losses alike."""
    accept, jobs = found.rates("accept"), found.rates("no-op end to end")
    drains, naps = found.rates("drain"), found.rates("10-ms end to end")
    starts, spent = found.start_ms(), found.job_ms()
    behind = losses(found)
    return [
        f"Through HTTP, one job per request at {found.connections[0]} connections, Fairline "
        f"accepts {accept[FAIRLINE]:,.0f} per second, {versus(accept)}.",
        f"From HTTP batches to done it runs {jobs[FAIRLINE]:,.0f} no-op jobs per second, "
        f"{versus(jobs)}; draining a full queue {drains[FAIRLINE]:,.0f}, {versus(drains)}; "
        f"of 10-ms jobs {naps[FAIRLINE]:,.0f}, {versus(naps)}.",
        f"One job on an idle stack starts {starts[FAIRLINE]:.1f} ms after it was sent "
        f"({', '.join(f'{n} {p50:.1f}' for n, p50 in starts.items() if n != FAIRLINE)}).",
        f"In all processes together {COST_JOBS} takes {spent[FAIRLINE]:.2f} ms of processor time "
        f"({', '.join(f'{n} {ms:.2f}' for n, ms in spent.items() if n != FAIRLINE)}).",
        "Lost when the worker is killed -9: "
        + ", ".join(f"{k.name} {k.survival.lost} of {k.survival.promised}" for k in found.killed)
        + ".",
        *([f"Where Fairline is behind: {'; '.join(behind)}."] if behind else []),
    ]


def versus(rates: Mapping[str, float]) -> str:
    return "compared with " + ", ".join(
        f"{rate:,.0f} of {name}" for name, rate in rates.items() if name != FAIRLINE
    )


def losses(found: Measured) -> list[str]:
    """Every figure in which some peer is ahead."""
    behind = []
    for what, values, form, sign in (
        ("submissions", found.rates("accept"), "{:,.0f}/s", 1),
        ("no-op jobs end to end", found.rates("no-op end to end"), "{:,.0f}/s", 1),
        ("no-op jobs from a full queue", found.rates("drain"), "{:,.0f}/s", 1),
        ("10-ms jobs", found.rates("10-ms end to end"), "{:,.0f}/s", 1),
        # Of these, less is better.
        ("submit to start", found.start_ms(), "{:.1f} ms", -1),
        ("memory", found.megabytes(), "{:.0f} MB", -1),
        (f"processor time of {COST_JOBS}", found.job_ms(), "{:.2f} ms", -1),
    ):
        ours = values[FAIRLINE]
        ahead = {name: value for name, value in values.items() if sign * value > sign * ours}
        if ahead:
            peers = ", ".join(f"{name} {form.format(value)}" for name, value in ahead.items())
            behind.append(f"{what} ({peers} against {form.format(ours)})")
    return behind


#: By contender; those that are a variant of one take its colour.
BASES = (FAIRLINE, "plain Celery", "Dramatiq", "Procrastinate")
MORE = "jobs per second, more is better"
LESS_MS = "milliseconds, less is better"
LESS_MB = "megabytes, less is better"
#: How strong the colour of each part is.
PARTS = {"API": 1.0, "scheduler": 0.7, "workers": 0.45}


def colour(name: str) -> str:
    pairs = zip(BASES, COLOURS, strict=True)
    return next((shade for base, shade in pairs if name.startswith(base)), IDEAL)


def paler(shade: str, strength: float) -> tuple[float, ...]:
    """The colour on white paper; unlike a transparent one it hides the grid behind it."""
    parts = (int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(1 - strength * (1 - part) for part in parts)


def draw(found: Measured, folder: Path) -> list[Picture]:
    draw_overview(found, folder / "peers.png")
    draw_jobs(found, folder / "jobs.png")
    draw_starts(found, folder / "starts.png")
    draw_memory(found, folder / "memory.png")
    return [
        Picture("peers.png", "Accept rate, jobs per second, latency and memory at a glance"),
        Picture("jobs.png", "Jobs per second: end to end, from a full queue, and of 10 ms each"),
        Picture("starts.png", "From submission to start of one job on an idle stack"),
        Picture("memory.png", "Memory of all processes after the run"),
    ]


def draw_bars(
    axes: Any, values: Mapping[str, float], title: str, unit: str, form: str = ",.0f"
) -> None:
    """Horizontal bars, the first on top, each with its value."""
    names = list(values)
    places = range(len(names))
    colours = [paler(colour(name), 0.55 if ", " in name else 1.0) for name in names]
    drawn = axes.barh(places, values.values(), color=colours, height=0.66)
    axes.bar_label(drawn, labels=[f"{value:{form}}" for value in values.values()], padding=4)
    finish(axes, names, title, unit, max(values.values(), default=1.0))


def finish(axes: Any, names: Sequence[str], title: str, unit: str, most: float) -> None:
    """What all bar charts have in common."""
    axes.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit, xlim=(0, 1.18 * most or 1.0))
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_color("#9ca3af")


def draw_overview(found: Measured, file: Path) -> None:
    accept = found.rates("accept")
    accept["empty route"] = found.rate("empty Flask route @few")
    jobs = found.rates("no-op end to end")
    with picture(file, rows=2, columns=2, inches_high=6.4) as axes:
        requests = MORE.replace("jobs", "requests")
        draw_bars(axes[0][0], accept, "Accepted through HTTP, one by one", requests)
        draw_bars(axes[0][1], jobs, "No-op jobs, HTTP batch to done", MORE)
        draw_bars(axes[1][0], found.start_ms(), "Submission to start, idle, p50", LESS_MS, ".1f")
        draw_bars(axes[1][1], found.megabytes(), "Memory of all its processes", LESS_MB)


def draw_jobs(found: Measured, file: Path) -> None:
    with picture(file, rows=3, inches_high=7.6) as axes:
        for each, (kind, title) in zip(axes, JOB_KINDS.items(), strict=True):
            draw_bars(each, found.rates(kind), title, MORE)


def draw_starts(found: Measured, file: Path) -> None:
    p50, p99 = found.start_ms(), found.start_ms(0.99)
    names = list(p50)
    most = max(p99.values(), default=1.0)
    with picture(file, inches_high=1.4 + 0.72 * len(names)) as axes:
        for place, name in enumerate(names):
            for offset, value, strength, label in (
                (-0.19, p50[name], 1.0, "p50"),
                (0.19, p99[name], 0.45, "p99"),
            ):
                drawn = axes.barh(place + offset, value, 0.34, color=paler(colour(name), strength))
                axes.bar_label(drawn, labels=[f"{label} {value:.1f}"], padding=4)
        finish(axes, names, "Submission to start of one job on an idle stack", LESS_MS, most)


def draw_memory(found: Measured, file: Path) -> None:
    names = list(found.memory)
    most = max(found.megabytes().values(), default=1.0)
    with picture(file, inches_high=1.6 + 0.6 * len(names)) as axes:
        for place, (name, parts) in enumerate(found.memory.items()):
            left = 0.0
            for part, megabytes in parts.items():
                shade = paler(colour(name), PARTS[part])
                drawn = axes.barh(place, megabytes, 0.66, left, color=shade)
                text = [f"{part}\n{megabytes:.0f}"]
                dark = "white" if PARTS[part] > 0.6 else "black"
                axes.bar_label(drawn, text, label_type="center", fontsize=8, color=dark)
                left += megabytes
            axes.text(left + 0.01 * most, place, f"{left:.0f}", va="center")
        finish(axes, names, "Memory after the run, shared pages counted once", LESS_MB, most)
