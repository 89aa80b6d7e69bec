"""Pictures of shares over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COLOURS = ("#0f766e", "#b45309", "#4338ca", "#be123c")


def draw_shares(
    file: Path,
    seconds: Sequence[float],
    now: Mapping[str, Sequence[float]],
    so_far: Mapping[str, Sequence[float]],
    fair: Mapping[str, float],
    described: Mapping[str, str],
) -> None:
    """What each tenant got in every stretch of time, and up to it, against its weight."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update(
        {
            "font.family": "sans-serif",
            "font.size": 10,
            "svg.fonttype": "none",
            "svg.hashsalt": "fairline",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    figure, axes = plt.subplots(figsize=(8.4, 4.2))
    figure.patch.set_facecolor("white")
    for (name, shares), colour in zip(now.items(), COLOURS, strict=False):
        axes.plot(seconds, shares, color=colour, alpha=0.35, linewidth=1)
        axes.plot(
            seconds, so_far[name], color=colour, linewidth=2.2, label=f"{name} ({described[name]})"
        )
        axes.axhline(fair[name], color=colour, linewidth=0.9, linestyle=(0, (2, 3)))
    axes.set_xlabel("seconds of contention")
    axes.set_ylabel("share of slot time, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, max(seconds))
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="center right", frameon=False)
    title = "Slot time by tenant. Thick: so far. Thin: at the moment. Dotted: its weight."
    axes.set_title(title, loc="left", fontsize=11)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
