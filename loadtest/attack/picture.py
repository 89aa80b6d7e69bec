"""The picture of an attack: memory of the API and the victim's latency over time, by round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from loadtest.attack.judge import MOST_MEMORY, Measured
from loadtest.attack.victim import Timed, without_stalls
from loadtest.figures import percentile
from loadtest.lab.pictures import IDEAL, bound, filled, picture

BUCKET_SECONDS = 1.0


def tails(timed: Sequence[Timed], began: float) -> list[tuple[float, float]]:
    """The victim's p99 of each second since the beginning."""
    buckets: dict[int, list[float]] = defaultdict(list)
    for one in without_stalls(timed):
        if one.at >= began:
            buckets[int((one.at - began) / BUCKET_SECONDS)].append(one.milliseconds)
    return [
        (number * BUCKET_SECONDS, percentile(values, 0.99))
        for number, values in sorted(buckets.items())
    ]


def draw(
    file: Path,
    measured: Measured,
    memory: Sequence[tuple[float, float]],
    timed: Sequence[Timed],
    began: float,
) -> None:
    """Two panels above each other, with the rounds as bands."""
    with picture(file, 2, 1, inches_high=6.4, sharex=True) as (upper, lower):
        upper.set_title("Memory of the API's processes, MB")
        filled(upper, [at - began for at, _ in memory], [mb for _, mb in memory])
        bound(upper, measured.idle_mb * MOST_MEMORY, "1.3 × idle")
        upper.set_ylim(0)
        lower.set_title("The victim's p99 of each second, ms")
        points = tails(timed, began)
        filled(lower, [at for at, _ in points], [value for _, value in points])
        bound(lower, measured.allowed_p99_ms, "most allowed in a round")
        lower.set_ylim(0)
        lower.set_xlabel("seconds")
        for number, one in enumerate(measured.rounds):
            for axis in (upper, lower):
                axis.axvspan(
                    one.began - began, one.ended - began, color=IDEAL, alpha=0.08, linewidth=0
                )
            upper.annotate(
                str(number + 1),
                ((one.began + one.ended) / 2 - began, 0.02),
                xycoords=("data", "axes fraction"),
                ha="center",
                fontsize=8,
                color=IDEAL,
            )
        for axis in (upper, lower):
            axis.legend(loc="upper left", fontsize=8.5)
