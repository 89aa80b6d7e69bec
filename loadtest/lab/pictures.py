"""How every picture of the lab looks. The experiments say what is on them."""

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
    """Axes to draw on, one or an array of them; written as PNG when the block ends."""
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
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(rows, columns, figsize=(INCHES_WIDE, inches_high), **options)
        try:
            yield axes
            figure.tight_layout()
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, metadata={"Software": None})
        finally:
            plt.close(figure)
