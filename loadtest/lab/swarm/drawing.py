"""The pictures of the swarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, beside, bound, picture
from loadtest.lab.swarm.analysis import GENERATOR, OTHERS, PARTS, Stage

#: The server in one family of colours, what is not the server in greys.
PART_COLOURS = {
    "api": FAIRLINE,
    "postgres": "#2dd4bf",
    "worker": COLOURS[2],
    "scheduler": "#818cf8",
    "rabbitmq": COLOURS[1],
    GENERATOR: "#9ca3af",
    OTHERS: "#e5e7eb",
}
PART_NAMES = {"api": "API", "postgres": "PostgreSQL", "rabbitmq": "RabbitMQ", OTHERS: "the rest"}
#: Labels of the stages in the picture.
NAMES = ("ramp", "half of the peak")
#: A part this small gets no figure.
LEGIBLE_CORES = 0.09


def draw_seconds(file: Path, stages: Sequence[Stage], p95_bar_ms: float) -> None:
    """Clients, requests and latency over time, one stage after the other."""
    with picture(file, rows=3, inches_high=7.6, sharex=True) as axes:
        clients, _, latency = axes
        offset = 0.0
        for number, stage in enumerate(stages):
            draw_stage(axes, stage, offset, named=number == 0)
            begin, end = stage.judged[0], min(stage.judged[1], len(stage.seconds))
            for each in axes:
                each.axvspan(offset + begin, offset + end, color=FAIRLINE, alpha=0.08, linewidth=0)
                if number:
                    each.axvline(offset, color=IDEAL, linewidth=0.8)
            corner = {"xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 9}
            beside(clients, NAMES[number], (offset, 1.0), (4, -4), IDEAL, **corner)
            offset += len(stage.seconds)
        bound(latency, p95_bar_ms, f"bar for p95\nat half: {p95_bar_ms:.0f} ms")
        finish(axes, offset)


def draw_stage(axes: Any, stage: Stage, offset: float, *, named: bool) -> None:
    """One stage's curves; those of the first one are named."""
    clients, responses, latency = axes
    clock = [offset + second for second in range(len(stage.seconds) + 1)]
    at = [second + 0.5 for second in clock[:-1]]
    counted, held = zip(*stage.connections_by_second(), strict=True)
    held_at = [offset + second for second in counted]
    # Seconds without a response leave a gap.
    p95 = [each.p95_ms or float("nan") for each in stage.seconds]
    p50 = [each.p50_ms or float("nan") for each in stage.seconds]
    good = [each.good for each in stage.seconds]
    for axis, across, up, colour, line, label in (
        (clients, clock, stage.clients_by_second(), IDEAL, ":", "clients"),
        (clients, held_at, held, COLOURS[2], "-", "open connections"),
        (responses, at, good, FAIRLINE, "-", "answered"),
        (latency, at, p95, COLOURS[1], "-", "p95"),
        (latency, at, p50, FAIRLINE, "-", "p50"),
    ):
        axis.plot(across, up, line, color=colour, label=label if named else None)
    errors = [each.errors for each in stage.seconds]
    if any(errors):
        responses.plot(at, errors, color=COLOURS[3], lw=1.2, label=f"errors, {stage.name}")


def finish(axes: Any, seconds: float) -> None:
    clients, responses, latency = axes
    for axis, title, unit in (
        (clients, "Clients, and the connections that the API held", "connections"),
        (responses, "Requests answered per second; the judged part is shaded", "requests/s"),
        (latency, "Latency of the responses, logarithmic", "ms"),
    ):
        axis.set(title=title, ylabel=unit)
    latency.set_xlabel("seconds under load")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for each in (clients, responses):
        each.set_ylim(bottom=0)
        each.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        low, high = each.get_ylim()
        each.set_ylim(low, high * 1.12)
    for each in axes:
        each.set_xlim(0, seconds)
        each.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_cores(file: Path, splits: Mapping[str, Mapping[str, float]], cores: int) -> None:
    """Cores in use by part, a bar for each stage."""
    with picture(file, inches_high=1.4 + 0.7 * len(splits)) as axis:
        names = list(splits)
        left = [0.0] * len(names)
        for part in PARTS:
            # Two clocks never agree to the hundredth: no part used more than there is.
            widths = [
                min(splits[name].get(part, 0.0), max(0.0, cores - start))
                for name, start in zip(names, left, strict=True)
            ]
            style = {"height": 0.55, "edgecolor": "white", "linewidth": 0.8}
            label, colour = PART_NAMES.get(part, part), PART_COLOURS[part]
            drawn = axis.barh(names, widths, left=left, color=colour, label=label, **style)
            texts = [f"{width:.2f}" if width >= LEGIBLE_CORES else "" for width in widths]
            ink = "#111827" if part in (OTHERS, GENERATOR, "postgres") else "white"
            axis.bar_label(drawn, texts, label_type="center", fontsize=9, color=ink)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axis.axvline(cores, color=IDEAL, linestyle=":", linewidth=1.4)
        corner = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top", "fontsize": 9}
        beside(axis, f"all {cores} cores", (cores, 1.0), (-4, -2), IDEAL, **corner)
        axis.invert_yaxis()
        axis.margins(y=0.25)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x")
        title = "Cores in use: the server, the generator, the rest of the machine"
        axis.set(xlim=(0, cores * 1.03), xlabel="cores in use", title=title)
        style = {"fontsize": 8.5, "columnspacing": 1.1, "handlelength": 1.0}
        place = {"loc": "upper center", "bbox_to_anchor": (0.46, -0.32)}
        axis.legend(ncols=len(PARTS), **place, **style)
