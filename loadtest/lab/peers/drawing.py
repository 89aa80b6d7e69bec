"""The comparison's pictures: bars with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.peers.measured import FAIRLINE, Measured
from loadtest.lab.pictures import COLOURS, IDEAL, picture
from loadtest.report import Picture

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


def bars(axes: Any, values: Mapping[str, float], title: str, unit: str, form: str = ",.0f") -> None:
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
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.set_xlim(0, 1.18 * most or 1.0)
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
        bars(
            axes[0][0],
            accept,
            "Accepted through HTTP, one by one",
            MORE.replace("jobs", "requests"),
        )
        bars(axes[0][1], jobs, "No-op jobs, HTTP batch to done", MORE)
        bars(axes[1][0], starts, "Submission to start, idle, p50", LESS_MS, ".1f")
        bars(axes[1][1], memory, "Memory of all its processes", LESS_MB)


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
            bars(each, rates, title, MORE)


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
