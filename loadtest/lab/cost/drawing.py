"""The pictures of what a job costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.cost.verdict import BAR_MS, Grown, Measured
from loadtest.lab.cost.waits import WAIT_KINDS
from loadtest.lab.peers.costs import KINDS, Cost
from loadtest.lab.peers.judge import draw_bars, finish
from loadtest.lab.pictures import picture
from loadtest.report import Picture

#: By kind of process, and by what a backend waits for.
SHADES = ("#0f766e", "#4338ca", "#b45309", "#9ca3af", "#be123c", "#0369a1")
WAIT_SHADES = ("#0f766e", "#0369a1", "#b45309", "#be123c", "#9ca3af")
LESS_MS = "processor milliseconds per job, less is better"


def draw(found: Measured, folder: Path) -> list[Picture]:
    pictures = []
    for rate in reversed(found.rates):
        file = f"cost-{rate:g}.png"
        draw_costs(found, rate, folder / file)
        caption = f"Processor time per job at {rate:g} jobs per second, by kind of process"
        pictures.append(Picture(file, caption))
    draw_wal(found, folder / "wal.png")
    draw_growth(found, folder / "growth.png")
    return [
        *pictures,
        Picture("growth.png", "Processor time per job and waits as processes are added"),
        Picture("wal.png", f"Bytes of WAL of a {BAR_MS}-ms job"),
    ]


def draw_costs(found: Measured, rate: float, file: Path) -> None:
    """A panel for each length, a bar for each contender, a part for each kind of process."""
    lengths = found.lengths
    most = max(cost.total for ms in lengths for cost in found.at(rate, ms).values())
    high = 1.1 + 1.45 * len(lengths)
    with picture(file, rows=len(lengths), inches_high=high, sharex=True, squeeze=False) as axes:
        for (panel,), ms in zip(axes, lengths, strict=True):
            stacked(panel, found.at(rate, ms), f"{rate:g} jobs of {ms} ms per second", most)
            if ms != lengths[-1]:
                panel.set_xlabel("")
        where = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.2)}
        axes[0][0].legend(**where, ncols=len(KINDS), columnspacing=1.2)


def stacked(panel: Any, costs: Mapping[str, Cost], title: str, most: float) -> None:
    for place, cost in enumerate(costs.values()):
        left = 0.0
        for kind, shade in zip(KINDS, SHADES, strict=True):
            name = "" if place else kind
            panel.barh(place, cost.of(kind), 0.7, left, color=shade, label=name or None)
            left += cost.of(kind)
        panel.text(left + 0.01 * most, place, f"{left:.2f}", va="center")
    finish(panel, list(costs), title, LESS_MS, most)


def draw_wal(found: Measured, file: Path) -> None:
    costs = found.at(found.rates[-1], BAR_MS)
    with picture(file, inches_high=2.6) as axes:
        values = {name: cost.wal for name, cost in costs.items()}
        title = f"WAL of a {BAR_MS}-ms job, submission to end, {found.rates[-1]:g}/s"
        draw_bars(axes, values, title, "bytes per job, less is better")


def draw_growth(found: Measured, file: Path) -> None:
    """Left workers, right API processes; above what a job takes, below what backends wait for."""
    with picture(file, rows=2, columns=2, inches_high=7.0) as axes:
        sides = (("worker processes", found.workers), ("API processes", found.apis))
        for column, (name, grown) in enumerate(sides):
            spent = [[each.cost.of(kind) for each in grown] for kind in KINDS]
            waited = [[each.waited.by_kind()[kind] for each in grown] for kind in WAIT_KINDS]
            above, below = axes[0][column], axes[1][column]
            verb = "From a full queue" if column == 0 else "Accepting"
            columns(above, grown, name, zip(KINDS, SHADES, spent, strict=True))
            above.set(title=f"{verb}: time per job", ylabel="milliseconds")
            columns(below, grown, name, zip(WAIT_KINDS, WAIT_SHADES, waited, strict=True))
            below.set(title="PostgreSQL's backends, on average", ylabel="backends")


def columns(
    panel: Any,
    grown: Sequence[Grown],
    name: str,
    parts: Iterable[tuple[str, str, Sequence[float]]],
) -> None:
    """A column for each number of processes, with the sum and the rate."""
    places, bottom = range(len(grown)), [0.0] * len(grown)
    for part, shade, heights in parts:
        if any(heights):
            panel.bar(places, heights, 0.6, bottom, color=shade, label=part)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for place, top in enumerate(bottom):
        panel.annotate(f"{top:.2f}", (place, top), (0, 3), textcoords="offset points", ha="center")
    panel.set_xticks(places, [f"{each.processes}\n{each.cost.rate:,.0f}/s" for each in grown])
    panel.set(xlabel=f"{name}, and jobs per second", ylim=(0, 1.45 * max(bottom) or 1.0))
    panel.legend(loc="upper left", ncols=3, fontsize=8)
