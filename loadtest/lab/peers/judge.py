"""The comparison's report: sentences, bars and pictures from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.figures import Sample
from loadtest.lab.experiment import Size
from loadtest.lab.peers.tables import (
    CELERY,
    FAIRLINE,
    GUARANTEES,
    Measured,
    Quantiles,
    accept_table,
    jobs_table,
    kill_table,
    memory_table,
    poll_table,
    start_table,
)
from loadtest.lab.pictures import COLOURS, IDEAL, picture
from loadtest.report import Bar, Picture, Report, Table

TITLE = "Fairline and its peers"


@dataclass(frozen=True, slots=True)
class Required:
    """What Fairline must reach."""

    accept_of_celery: float
    accept_of_empty: float
    poll_of_empty: float
    jobs_of_best: float
    jobs_of_celery: float
    start_over_celery_ms: float
    line_ratio: float


REQUIRED = {
    Size.FULL: Required(5.5, 0.75, 0.8, 1.0, 5.0, 5.0, 1.3),
    # One short round each: half the distance is lost in noise.
    Size.QUICK: Required(4.0, 0.6, 0.65, 0.8, 3.5, 10.0, 1.8),
}
#: A miniature is too short for rates; it still must not lose anything.
REQUIRED[Size.MINI] = Required(0.0, 0.0, 0.0, 0.0, 0.0, 1e9, 1e9)


NOTES = (
    "All contenders ran on one machine, on the same PostgreSQL and RabbitMQ, one after the "
    "other in turns, each alone, with two front-door processes. While the accept rate of a "
    "peer is taken its workers do not run; Fairline's scheduler and worker do.",
    "The peers and the empty Flask route are served by gunicorn's own gevent worker, Fairline "
    "by the worker class that its gunicorn.conf.py names. Where these differ the empty route "
    "is no ceiling for Fairline, and part of its lead in requests a second is the server's, "
    "not the queue's.",
    "In a closed loop a green server may serve some connections far more often than others: "
    "where p50 is far below connections divided by rate, it is that of the favoured ones.",
    "Dramatiq keeps no record of a job: it is counted when its function returns, before the "
    "message is acknowledged. All others are counted by their own committed rows.",
    "For the kill, Fairline's lease and Procrastinate's heartbeat were shortened to 4 s so "
    "that one can watch; their defaults are 10 s and 30 s.",
)


def judge(found: Measured, size: Size) -> Report:
    """What was measured, in words, tables and bars."""
    return Report(
        *("peers", TITLE),
        findings=findings(found),
        tables=[
            *(make(found) for make in (accept_table, poll_table, jobs_table, start_table)),
            *(kill_table(found), memory_table(found), GUARANTEES),
            Table("How each was set up", ("", "settings"), list(found.tuning.items())),
        ],
        bars=bars(found, REQUIRED[size]),
        notes=list(NOTES),
        data=dict(found.data()),
    )


def bars(found: Measured, required: Required) -> list[Bar]:
    """What must be shown."""
    accept, jobs = found.rates("accept", " @few"), found.rates("no-op end to end")
    best = max(sample.rate for name, sample in jobs.items() if name != FAIRLINE)
    starts = found.start_quantiles()
    few, many = found.connections
    empty, empty_at_many = (found.sample(f"empty Flask route @{at}").rate for at in ("few", "many"))
    lost = next(each.survival.lost for each in found.killed if each.name == FAIRLINE)
    line = Quantiles.of(found.lined_ms).p95 / max(1e-9, Quantiles.of(found.idle_ms).p95)
    ours, own_jobs = accept[FAIRLINE].rate, jobs[FAIRLINE].rate
    at_many = found.sample(f"accept: {FAIRLINE} @many").rate
    done, beyond = "no-op jobs, HTTP batch to done, of", starts[FAIRLINE].p50 - starts[CELERY].p50
    ratios = (
        (
            f"accept rate at {few} connections, of plain Celery's",
            *(ours, accept[CELERY].rate, required.accept_of_celery),
        ),
        (
            f"accept rate at {many} connections, of the empty route's",
            *(at_many, empty_at_many, required.accept_of_empty),
        ),
        *(
            (
                f"polls, {kind}, of the empty route at {few} connections",
                *(found.sample(f"poll: {kind} @few").rate, empty, required.poll_of_empty),
            )
            for kind in ("304", "terminal")
        ),
        (f"{done} the best peer's", own_jobs, best, required.jobs_of_best),
        (f"{done} plain Celery's", own_jobs, jobs[CELERY].rate, required.jobs_of_celery),
    )
    return [
        *(
            Bar(claim, ratio(mine, other), ">=", least, " x")
            for claim, mine, other, least in ratios
        ),
        Bar(
            "submit to start when idle, p50, beyond plain Celery's",
            *(beyond, "<=", required.start_over_celery_ms, " ms"),
        ),
        Bar(
            f"front-door p95 with {found.waiting:,} jobs waiting, of the idle one",
            *(line, "<=", required.line_ratio, " x"),
        ),
        Bar("jobs lost to kill -9 of the worker", lost, "<=", 0),
        Bar("unexpected answers", sum(s.unexpected for s in found.samples), "<=", 0),
    ]


def ratio(ours: float, theirs: float) -> float:
    """How many times theirs; 0 if there is nothing to compare with."""
    return ours / theirs if theirs > 0 else 0.0


def findings(found: Measured) -> list[str]:
    """The most important in sentences, wins and losses alike."""
    accept, jobs = found.rates("accept", " @few"), found.rates("no-op end to end")
    drains, naps = found.rates("drain"), found.rates("10-ms end to end")
    starts = found.start_quantiles()
    sentences = [
        f"Through HTTP, one job a request at {found.connections[0]} connections, Fairline accepts "
        f"{accept[FAIRLINE].rate:,.0f} a second, {versus(accept)}.",
        f"From HTTP batches to done it runs {jobs[FAIRLINE].rate:,.0f} no-op jobs a second, "
        f"{versus(jobs)}; draining a full line {drains[FAIRLINE].rate:,.0f}, {versus(drains)}; "
        f"of 10-ms jobs {naps[FAIRLINE].rate:,.0f}, {versus(naps)}.",
        f"One job on an idle stack starts {starts[FAIRLINE].p50:.1f} ms after it was sent "
        f"({', '.join(f'{n} {q.p50:.1f}' for n, q in starts.items() if n != FAIRLINE)}).",
        "Lost when the worker is killed -9: "
        + ", ".join(f"{k.name} {k.survival.lost} of {k.survival.promised}" for k in found.killed)
        + ".",
    ]
    behind = losses(found)
    if behind:
        sentences.append(f"Where Fairline is behind: {'; '.join(behind)}.")
    return sentences


def versus(rates: dict[str, Sample]) -> str:
    """The others' figures in words."""
    return "against " + ", ".join(
        f"{sample.rate:,.0f} of {name}" for name, sample in rates.items() if name != FAIRLINE
    )


def losses(found: Measured) -> list[str]:
    """Every figure in which some peer is ahead."""
    behind = []
    for what, words in (
        ("accept", "submissions"),
        ("no-op end to end", "no-op jobs end to end"),
        ("drain", "no-op jobs from a full line"),
        ("10-ms end to end", "10-ms jobs"),
    ):
        rates = found.rates(what, " @few" if what == "accept" else "")
        ours = rates[FAIRLINE].rate
        ahead = [f"{name} {each.rate:,.0f}/s" for name, each in rates.items() if each.rate > ours]
        if ahead:
            behind.append(f"{words} ({', '.join(ahead)} against {ours:,.0f}/s)")
    starts = {name: each.p50 for name, each in found.start_quantiles().items()}
    sooner = [f"{name} {p50:.1f} ms" for name, p50 in starts.items() if p50 < starts[FAIRLINE]]
    if sooner:
        behind.append(f"submit to start ({', '.join(sooner)} against {starts[FAIRLINE]:.1f} ms)")
    weights = {name: sum(parts.values()) for name, parts in found.memory.items()}
    lighter = [f"{name} {mb:.0f} MB" for name, mb in weights.items() if mb < weights[FAIRLINE]]
    if lighter:
        behind.append(f"memory ({', '.join(lighter)} against {weights[FAIRLINE]:.0f} MB)")
    return behind


#: By contender; those that are a variant of one take its colour.
BASES = (FAIRLINE, "plain Celery", "Dramatiq", "Procrastinate")
MORE = "jobs a second, more is better"
LESS_MS = "milliseconds, less is better"
LESS_MB = "megabytes, less is better"
PARTS = {"front door": 1.0, "scheduler": 0.7, "workers": 0.45}


def colour(name: str) -> str:
    """The contender's."""
    return next(
        (COLOURS[place] for place, base in enumerate(BASES) if name.startswith(base)), IDEAL
    )


def paler(shade: str, strength: float) -> tuple[float, ...]:
    """The colour on white paper; unlike a transparent one it hides the grid behind it."""
    parts = (int(shade[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return tuple(1 - strength * (1 - part) for part in parts)


def draw(found: Measured, folder: Path) -> list[Picture]:
    """All of them, the overview first."""
    draw_overview(found, folder / "peers.png")
    draw_jobs(found, folder / "jobs.png")
    draw_starts(found, folder / "starts.png")
    draw_memory(found, folder / "memory.png")
    return [
        Picture("peers.png", "Accept rate, jobs a second, latency and memory at a glance"),
        Picture("jobs.png", "Jobs a second: end to end, from a full line, and of 10 ms each"),
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
    """Four figures on one page."""
    accept = {name: sample.rate for name, sample in found.rates("accept", " @few").items()}
    accept["empty route"] = found.sample("empty Flask route @few").rate
    jobs = {name: sample.rate for name, sample in found.rates("no-op end to end").items()}
    starts = {name: each.p50 for name, each in found.start_quantiles().items()}
    memory = {name: sum(parts.values()) for name, parts in found.memory.items()}
    with picture(file, rows=2, columns=2, inches_high=6.4) as axes:
        requests = MORE.replace("jobs", "requests")
        draw_bars(axes[0][0], accept, "Accepted through HTTP, one by one", requests)
        draw_bars(axes[0][1], jobs, "No-op jobs, HTTP batch to done", MORE)
        draw_bars(axes[1][0], starts, "Submission to start, idle, p50", LESS_MS, ".1f")
        draw_bars(axes[1][1], memory, "Memory of all its processes", LESS_MB)


def draw_jobs(found: Measured, file: Path) -> None:
    """Three ways to count jobs."""
    kinds = (
        ("no-op end to end", "No-op, from HTTP batches to done"),
        ("drain", "No-op, from a full line"),
        ("10-ms end to end", "10-ms jobs, from HTTP batches to done"),
    )
    with picture(file, rows=3, inches_high=7.6) as axes:
        for each, (kind, title) in zip(axes, kinds, strict=True):
            rates = {name: sample.rate for name, sample in found.rates(kind).items()}
            draw_bars(each, rates, title, MORE)


def draw_starts(found: Measured, file: Path) -> None:
    """Half of the jobs, and nearly all of them."""
    quantiles = found.start_quantiles()
    names = list(quantiles)
    most = max((each.p99 for each in quantiles.values()), default=1.0)
    with picture(file, inches_high=1.4 + 0.72 * len(names)) as axes:
        for place, (name, each) in enumerate(quantiles.items()):
            for offset, value, strength, label in (
                (-0.19, each.p50, 1.0, "p50"),
                (0.19, each.p99, 0.45, "p99"),
            ):
                drawn = axes.barh(place + offset, value, 0.34, color=paler(colour(name), strength))
                axes.bar_label(drawn, labels=[f"{label} {value:.1f}"], padding=4)
        finish(axes, names, "Submission to start of one job on an idle stack", LESS_MS, most)


def draw_memory(found: Measured, file: Path) -> None:
    """The parts behind each other."""
    names = list(found.memory)
    most = max((sum(parts.values()) for parts in found.memory.values()), default=1.0)
    with picture(file, inches_high=1.6 + 0.6 * len(names)) as axes:
        for place, (name, parts) in enumerate(found.memory.items()):
            left = 0.0
            for part, megabytes in parts.items():
                drawn = axes.barh(
                    *(place, megabytes, 0.66, left), color=paler(colour(name), PARTS[part])
                )
                axes.bar_label(
                    drawn,
                    [f"{part}\n{megabytes:.0f}"],
                    label_type="center",
                    fontsize=8,
                    color="white" if PARTS[part] > 0.6 else "black",
                )
                left += megabytes
            axes.text(left + 0.01 * most, place, f"{left:.0f}", va="center")
        finish(axes, names, "Memory after the run, shared pages counted once", LESS_MB, most)
