"""The rate of a steady stream of events. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def steady_rate(moments: Sequence[float], begin: float, end: float) -> float:
    """Events a second between two moments: the slope of their running count.

    Slots that started together end together. Counting such bursts in a window is wrong by up
    to one burst; a line fitted through all of them is not.
    """
    inside = sorted(moment for moment in moments if begin <= moment <= end)
    count = len(inside)
    if count < 2 or inside[-1] == inside[0]:
        return 0.0
    mean_time = sum(inside) / count
    mean_number = (count - 1) / 2
    covariance = sum(
        (moment - mean_time) * (number - mean_number) for number, moment in enumerate(inside)
    )
    return covariance / sum((moment - mean_time) ** 2 for moment in inside)
