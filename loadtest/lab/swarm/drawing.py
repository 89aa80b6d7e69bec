"""The pictures of the swarm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture
from loadtest.lab.swarm.analysis import GENERATOR, OTHERS, PARTS, Second

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
#: A part this small gets no figure of its own.
LEGIBLE_CORES = 0.09
#: Good answers' colour is Fairline's; errors must stand out.
WRONG = COLOURS[3]


@dataclass(frozen=True, slots=True)
class Drawn:
    """One stage as it is drawn; all times count from the beginning of the stage."""

    name: str
    seconds: Sequence[Second]
    #: Clients that there should be, at the beginning of each second and at the end of the last.
    clients: Sequence[float]
    #: When connections were counted, and how many there were.
    counted_at: Sequence[float]
    connections: Sequence[float]
    #: From, to: the seconds that the report's figures are about.
    judged: tuple[float, float]


def draw_seconds(file: Path, stages: Sequence[Drawn], p95_bar_ms: float) -> None:
    """Clients, requests and latency over time, the stages side by side on one clock."""
    with picture(file, rows=3, inches_high=7.6, sharex=True) as axes:
        holders, answers, latency = axes
        offset = 0.0
        for number, stage in enumerate(stages):
            first = number == 0
            at = [offset + each.number + 0.5 for each in stage.seconds]
            clock = [offset + second for second in range(len(stage.clients))]
            draw_clients(holders, stage, clock, offset, named=first)
            draw_answers(answers, stage, at, named=first)
            draw_latency(latency, stage, at, named=first)
            for each in axes:
                begin, end = stage.judged
                each.axvspan(offset + begin, offset + end, color=FAIRLINE, alpha=0.08, linewidth=0)
                if not first:
                    each.axvline(offset, color=IDEAL, linewidth=0.8)
            holders.annotate(
                stage.name,
                (offset, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, -4),
                textcoords="offset points",
                va="top",
                color=IDEAL,
                fontsize=9,
            )
            offset += len(stage.seconds)
        latency.axhline(
            p95_bar_ms,
            color=IDEAL,
            linestyle=":",
            linewidth=1.4,
            label=f"bar for p95\nat half: {p95_bar_ms:.0f} ms",
        )
        finish(axes, offset)


def draw_clients(
    axis: Any, stage: Drawn, clock: list[float], offset: float, *, named: bool
) -> None:
    """Those that there should be, and the connections that the API held."""
    counted = [offset + at for at in stage.counted_at]
    axis.plot(clock, stage.clients, ":", color=IDEAL, label="clients" if named else None)
    axis.plot(
        counted, stage.connections, color=COLOURS[2], label="open connections" if named else None
    )


def draw_answers(axis: Any, stage: Drawn, at: list[float], *, named: bool) -> None:
    """What clients came for, and errors if there were any."""
    good = [each.good for each in stage.seconds]
    errors = [each.errors for each in stage.seconds]
    axis.plot(at, good, color=FAIRLINE, label="answered" if named else None)
    if any(errors):
        axis.plot(at, errors, color=WRONG, linewidth=1.2, label=f"errors, {stage.name}")


def draw_latency(axis: Any, stage: Drawn, at: list[float], *, named: bool) -> None:
    """Seconds without an answer leave a gap."""
    for label, colour, values in (
        ("p95", COLOURS[1], [each.p95_ms or float("nan") for each in stage.seconds]),
        ("p50", FAIRLINE, [each.p50_ms or float("nan") for each in stage.seconds]),
    ):
        axis.plot(at, values, color=colour, label=label if named else None)


def finish(axes: Any, seconds: float) -> None:
    """Titles, units, scales."""
    holders, answers, latency = axes
    holders.set_title("Clients, and the connections that the API held")
    answers.set_title("Requests answered each second; shaded: the seconds that are judged")
    latency.set_title("Latency of the answers, logarithmic")
    holders.set_ylabel("connections")
    answers.set_ylabel("requests/s")
    latency.set_ylabel("ms")
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
            axis.barh(
                names,
                widths,
                left=left,
                height=0.55,
                color=PART_COLOURS[part],
                edgecolor="white",
                linewidth=0.8,
                label=PART_NAMES.get(part, part),
            )
            for place, (start, width) in enumerate(zip(left, widths, strict=True)):
                if width >= LEGIBLE_CORES:
                    dark = part not in (OTHERS, GENERATOR, "postgres")
                    axis.text(
                        start + width / 2,
                        place,
                        f"{width:.2f}",
                        ha="center",
                        va="center",
                        fontsize=9,
                        color="white" if dark else "#111827",
                    )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axis.axvline(cores, color=IDEAL, linestyle=":", linewidth=1.4)
        axis.annotate(
            f"all {cores} cores",
            (cores, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color=IDEAL,
        )
        axis.invert_yaxis()
        axis.margins(y=0.25)
        axis.grid(visible=False, axis="y")
        axis.grid(visible=True, axis="x")
        axis.set_xlim(0, cores * 1.03)
        axis.set_xlabel("cores in use")
        axis.set_title("Who used the cores: the server, the generator, the rest of the machine")
        axis.legend(
            ncols=len(PARTS),
            loc="upper center",
            bbox_to_anchor=(0.46, -0.32),
            fontsize=8.5,
            columnspacing=1.1,
            handlelength=1.0,
        )
