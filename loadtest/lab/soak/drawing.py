"""The picture of a soak: six curves that should be flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.lab.pictures import COLOURS, FAIRLINE, IDEAL, picture
from loadtest.lab.soak.flatness import Point, tail_by_bucket
from loadtest.lab.soak.verdict import Soak

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
        panel.lines(
            axes[2][0],
            f"Submit to scored, s ({tail})",
            {
                "p99": tail_by_bucket(soak.scored, soak.bucket_seconds, 0.99),
                "p50": tail_by_bucket(soak.scored, soak.bucket_seconds, 0.5),
            },
        )
        door = [(at, 1000 * seconds) for at, seconds in soak.door]
        panel.lines(
            axes[2][1],
            f"Front door, ms ({tail})",
            {
                "p99": tail_by_bucket(door, soak.bucket_seconds, 0.99),
                "p50": tail_by_bucket(door, soak.bucket_seconds, 0.5),
            },
        )
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

    def lines(
        self,
        axis: Any,
        title: str,
        curves: Mapping[str, Sequence[Point]],
    ) -> None:
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
