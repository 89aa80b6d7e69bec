"""Effective weights: shares in proportion to weights, between floors and ceilings. Pure.

A share is ``clamp(weight / total, floor, ceiling)``, and the total is the one at which all shares
add up to 1 (water filling). Claims that neither bound touches keep their own weight: so a change
among the waiting changes as few weights as possible.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from app.policy.fairshare.tiers import Entitlement

#: Floors never take more of a pool than this. The whole pool was rejected: a hundred floors of 1 %
#: would starve everybody else.
FLOORS_MOST = 0.9

K = TypeVar("K", bound=Hashable)
#: weight, floor, ceiling, how many of it wait
Claim = tuple[float, float, float, int]


def effective_weights(entitlements: Mapping[K, tuple[Entitlement, int]]) -> dict[K, float]:
    """Weight of one member of each class, given its entitlement and how many of it wait."""
    waiting = [(e.weight, e.floor, e.ceiling, n) for e, n in entitlements.values() if n > 0]
    floors = math.fsum(sorted(n * floor for _, floor, _, n in waiting))
    scale = min(1.0, FLOORS_MOST / floors) if floors > 0 else 1.0
    total = _total([(w, floor * scale, ceiling, n) for w, floor, ceiling, n in waiting])
    return {
        key: min(max(e.weight, e.floor * scale * total), e.ceiling * total) if n > 0 else e.weight
        for key, (e, n) in entitlements.items()
    }


def _total(claims: list[Claim]) -> float:
    """The total weight at which the clamped shares add up to 1.

    The sum of the shares falls as the total rises and bends where a claim leaves its ceiling
    or reaches its floor. Between two bends it is solved directly.
    """
    ceilings = math.fsum(sorted(n * ceiling for _, _, ceiling, n in claims))
    weights = math.fsum(sorted(w * n for w, _, _, n in claims))
    if ceilings <= 1.0:  # nobody else takes the rest: ceilings are relative to each other
        return weights / ceilings if ceilings > 0 else 0.0
    bends = sorted(
        {w / ceiling for w, _, ceiling, _ in claims} | {w / f for w, f, _, _ in claims if f > 0}
    )
    # The first bend at which the shares add up to no more than 1.
    low = bisect_left(bends, True, key=lambda total: _shares(claims, total) <= 1.0)
    below = bends[low - 1] if low > 0 else 0.0
    above = bends[low] if low < len(bends) else 2.0 * below
    between = (below + above) / 2.0
    free, bound = [], []
    for w, floor, ceiling, n in claims:
        if w > ceiling * between:
            bound.append(n * ceiling)
        elif w < floor * between:
            bound.append(n * floor)
        else:
            free.append(n * w)
    rest = 1.0 - math.fsum(sorted(bound))
    return math.fsum(sorted(free)) / rest if free and rest > 0 else above


def _shares(claims: Iterable[Claim], total: float) -> float:
    return math.fsum(sorted(n * min(max(w / total, f), c) for w, f, c, n in claims))
