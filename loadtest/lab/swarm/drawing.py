"""The pictures of the swarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, beside, bound, picture
from loadtest.lab.swarm.analysis import GENERATOR, OTHERS, PARTS
from loadtest.lab.swarm.stage import Found

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
#: What the stages are called in the picture.
NAMES = ("ramp", "half of the peak")
#: A part this small gets no figure of its own.
LEGIBLE_CORES = 0.09
#: Good answers' colour is Fairline's; errors must stand out.
WRONG = COLOURS[3]


def draw_seconds(file: Path, stages: Sequence[Found], p95_bar_ms: float) -> None:
    """Clients, requests and latency over time, the stages side by side on one clock."""
    with picture(file, rows=3, inches_high=7.6, sharex=True) as axes:
        holders, answers, latency = axes
        offset = 0.0
        for number, stage in enumerate(stages):
            first = number == 0
            at = [offset + each.number + 0.5 for each in stage.seconds]
            clock = [offset + second for second in range(len(stage.seconds) + 1)]
            draw_clients(holders, stage, clock, offset, named=first)
            draw_answers(answers, stage, at, named=first)
            draw_latency(latency, stage, at, named=first)
            for each in axes:
                begin, end = stage.summary.begin, min(stage.summary.end, len(stage.seconds))
                each.axvspan(offset + begin, offset + end, color=FAIRLINE, alpha=0.08, linewidth=0)
                if not first:
                    each.axvline(offset, color=IDEAL, linewidth=0.8)
            corner = {"xycoords": ("data", "axes fraction"), "va": "top", "fontsize": 9}
            beside(holders, NAMES[number], (offset, 1.0), (4, -4), IDEAL, **corner)
            offset += len(stage.seconds)
        bound(latency, p95_bar_ms, f"bar for p95\nat half: {p95_bar_ms:.0f} ms")
        finish(axes, offset)


def draw_clients(
    axis: Any, stage: Found, clock: list[float], offset: float, *, named: bool
) -> None:
    """Those that there should be, and the connections that the API held."""
    labels = ("clients", "open connections") if named else (None, None)
    counted, connections = zip(*stage.counted(), strict=True)
    axis.plot(clock, stage.clients(), ":", color=IDEAL, label=labels[0])
    axis.plot([offset + at for at in counted], connections, color=COLOURS[2], label=labels[1])


def draw_answers(axis: Any, stage: Found, at: list[float], *, named: bool) -> None:
    """What clients came for, and errors if there were any."""
    good = [each.good for each in stage.seconds]
    errors = [each.errors for each in stage.seconds]
    axis.plot(at, good, color=FAIRLINE, label="answered" if named else None)
    if any(errors):
        axis.plot(at, errors, color=WRONG, linewidth=1.2, label=f"errors, {stage.name}")


def draw_latency(axis: Any, stage: Found, at: list[float], *, named: bool) -> None:
    """Seconds without an answer leave a gap."""
    for label, colour, values in (
        ("p95", COLOURS[1], [each.p95_ms or float("nan") for each in stage.seconds]),
        ("p50", FAIRLINE, [each.p50_ms or float("nan") for each in stage.seconds]),
    ):
        axis.plot(at, values, color=colour, label=label if named else None)


def finish(axes: Any, seconds: float) -> None:
    """Titles, units, scales."""
    holders, answers, latency = axes
    for axis, title, unit in (
        (holders, "Clients, and the connections that the API held", "connections"),
        (
            answers,
            "Requests answered each second; shaded: the seconds that are judged",
            "requests/s",
        ),
        (latency, "Latency of the answers, logarithmic", "ms"),
    ):
        axis.set(title=title, ylabel=unit)
    latency.set_xlabel("seconds under load")
    latency.set_yscale("log")
    latency.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for each in (holders, answers):
        each.set_ylim(bottom=0)
        each.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        low, high = each.get_ylim()
        each.set_ylim(low, high * 1.12)
    for each in axes:
        each.set_xlim(0, seconds)
        each.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_cores(file: Path, splits: Mapping[str, Mapping[str, float]], cores: int) -> None:
    """Who used the cores, a bar for each stage."""
    with picture(file, inches_high=1.4 + 0.7 * len(splits)) as axis:
        names = list(splits)
        left = [0.0] * len(names)
        for part in PARTS:
            # Two clocks never agree to the hundredth: nobody used more than there is.
            widths = [
                min(splits[name].get(part, 0.0), max(0.0, cores - start))
                for name, start in zip(names, left, strict=True)
            ]
            style = {"height": 0.55, "edgecolor": "white", "linewidth": 0.8}
            label = PART_NAMES.get(part, part)
            axis.barh(names, widths, left=left, color=PART_COLOURS[part], label=label, **style)
            for place, (start, width) in enumerate(zip(left, widths, strict=True)):
                if width >= LEGIBLE_CORES:
                    dark = part not in (OTHERS, GENERATOR, "postgres")
                    style = {"ha": "center", "va": "center", "fontsize": 9}
                    style["color"] = "white" if dark else "#111827"
                    axis.text(start + width / 2, place, f"{width:.2f}", **style)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axis.axvline(cores, color=IDEAL, linestyle=":", linewidth=1.4)
        corner = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top", "fontsize": 9}
        beside(axis, f"all {cores} cores", (cores, 1.0), (-4, -2), IDEAL, **corner)
        axis.invert_yaxis()
        axis.margins(y=0.25)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x")
        title = "Who used the cores: the server, the generator, the rest of the machine"
        axis.set(xlim=(0, cores * 1.03), xlabel="cores in use", title=title)
        axis.legend(
            ncols=len(PARTS),
            loc="upper center",
            bbox_to_anchor=(0.46, -0.32),
            fontsize=8.5,
            columnspacing=1.1,
            handlelength=1.0,
        )
