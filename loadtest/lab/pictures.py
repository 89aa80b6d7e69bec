"""How every picture looks. The experiments say what is on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Fairline first; then those it is held against, in the order of the reports.
FAIRLINE = "#0f766e"
COLOURS = (FAIRLINE, "#b45309", "#4338ca", "#be123c")
#: Ideals, capacities and bounds.
IDEAL = "#6b7280"
INCHES_WIDE = 8.4


@contextmanager
def picture(
    file: Path, rows: int = 1, columns: int = 1, inches_high: float = 4.2, **options: Any
) -> Iterator[Any]:
    """Axes to draw on, one or an array of them; written as PNG or SVG when the block ends."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.use("agg")
    from matplotlib import pyplot as plt

    style: Any = {
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": "#e5e7eb",
        "grid.linewidth": 0.8,
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "legend.frameon": False,
        "figure.facecolor": "white",
        "savefig.dpi": 130,
        "svg.fonttype": "none",
        "svg.hashsalt": "fairline",
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(rows, columns, figsize=(INCHES_WIDE, inches_high), **options)
        try:
            yield axes
            figure.tight_layout()
            file.parent.mkdir(parents=True, exist_ok=True)
            # Nothing in the file that changes from run to run.
            figure.savefig(file, metadata={"Date" if file.suffix == ".svg" else "Software": None})
        finally:
            plt.close(figure)


def bound(axis: Any, level: float, label: str = "", style: str = ":") -> None:
    """A line across for an ideal, a capacity or a bar."""
    axis.axhline(level, ls=style, color=IDEAL, lw=1.5, label=label or None)


def filled(axis: Any, across: Any, up: Any, marks: str = "-", colour: str = FAIRLINE) -> None:
    """A curve with the area below it."""
    axis.fill_between(across, up, color=colour, alpha=0.15, linewidth=0)
    axis.plot(across, up, marks, color=colour)


def beside(
    axis: Any, text: str, at: Any, shift: tuple[float, float], colour: str = FAIRLINE, **more: Any
) -> None:
    """A word at a place, moved by some points."""
    where = {"xytext": shift, "textcoords": "offset points", "color": colour, **more}
    axis.annotate(text, at, **where)
