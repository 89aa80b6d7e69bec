"""The picture of an attack: memory of the API and the victim's p99 in each round."""

from __future__ import annotations

from pathlib import Path

from loadtest.attack.judge import Measured
from loadtest.lab.pictures import FAIRLINE, IDEAL, picture


def draw(file: Path, measured: Measured) -> None:
    """Two panels beside each other, a bar for each round in both."""
    rounds = [measured.before, *measured.rounds]
    names = [one.name for one in rounds]
    memory = [one.memory_mb for one in rounds], measured.allowed_mb
    tails = [one.p99_ms for one in rounds], measured.allowed_p99_ms
    high = 1.6 + 0.24 * len(rounds)
    with picture(file, 1, 2, inches_high=high, sharey=True) as (left, right):
        left.set_title("Memory of the API, MB, and most allowed")
        right.set_title("The victim's p99, ms, and most allowed")
        for axis, (values, most) in ((left, memory), (right, tails)):
            axis.barh(names, values, color=[IDEAL, *[FAIRLINE] * len(measured.rounds)])
            axis.axvline(most, ls=":", color=IDEAL, lw=1.5)
        left.invert_yaxis()
