"""Shapes of load over time: steps, ramp, spike and soak, as stretches. Pure.

In a stretch the level moves in a straight line from one value to another: arrivals per second, or
the number of clients. As text it is ``level:seconds`` or ``from-to:seconds``, joined by commas:
``2:20,0-8:30``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice

NUMBER = r"\d+(?:\.\d+)?"
STRETCH = re.compile(rf"({NUMBER})(?:-({NUMBER}))?:({NUMBER})")


class BadShape(ValueError):
    """A text that is no shape; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some seconds, from one level to another."""

    #: May be infinite if the level does not change.
    seconds: float
    begin: float
    end: float

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise BadShape(f"a stretch lasts longer than {self.seconds:g} s")
        if not (0 <= self.begin < math.inf and 0 <= self.end < math.inf):
            raise BadShape(f"no level can be {min(self.begin, self.end):g}")
        if math.isinf(self.seconds) and self.begin != self.end:
            raise BadShape("a stretch without an end cannot change its level")

    @property
    def area(self) -> float:
        """The level added up over the seconds: the arrivals, if the level is a rate."""
        return 0.0 if self.end == self.begin == 0 else self.seconds * (self.begin + self.end) / 2

    def level(self, second: float) -> float:
        """The level so far into the stretch."""
        if self.begin == self.end:
            return self.begin
        return self.begin + (self.end - self.begin) * second / self.seconds

    def second(self, area: float) -> float:
        """When so much has been added up."""
        slope = (self.end - self.begin) / self.seconds if self.begin != self.end else 0.0
        # The root that loses no digits when the slope is small.
        root = math.sqrt(max(0.0, self.begin**2 + 2 * slope * area))
        if self.begin + root == 0:
            return 0.0
        return min(self.seconds, 2 * area / (self.begin + root))


def soak(level: float, seconds: float) -> list[Stretch]:
    return [Stretch(seconds, level, level)]


def forever(level: float) -> list[Stretch]:
    return soak(level, math.inf)


def steps(levels: Sequence[float], seconds: float) -> list[Stretch]:
    """One level after the other, each for so long."""
    return [Stretch(seconds, level, level) for level in levels]


def ramp(begin: float, end: float, seconds: float) -> list[Stretch]:
    return [Stretch(seconds, begin, end)]


def spike(base: float, peak: float, calm_seconds: float, peak_seconds: float) -> list[Stretch]:
    """A peak, with a base level before and after it."""
    calm = soak(base, calm_seconds)
    return [*calm, *soak(peak, peak_seconds), *calm]


#: Shapes for a run by hand, up to a level.
NAMED: dict[str, Callable[[float], list[Stretch]]] = {
    "steps": lambda level: steps([level * share for share in (0.25, 0.5, 0.75, 1.0)], 30),
    "ramp": lambda level: ramp(0, level, 120),
    "spike": lambda level: spike(level / 5, level, 45, 15),
    "soak": lambda level: soak(0.7 * level, 1800),
}
NAMES = tuple(NAMED)


def parse(text: str) -> list[Stretch]:
    """The stretches of a text such as ``2:20,0-8:30``."""
    stretches = []
    for part in text.split(","):
        found = STRETCH.fullmatch(part.strip())
        if found is None:
            raise BadShape(
                f"{part!r} is no stretch: level:seconds or from-to:seconds, as in 2:20,0-8:30; "
                f"by hand also {', '.join(NAMES)}"
            )
        begin, end, seconds = found.groups()
        stretches.append(Stretch(float(seconds), float(begin), float(end or begin)))
    return stretches


def written(stretches: Sequence[Stretch]) -> str:
    return ",".join(
        "-".join(digits(level) for level in dict.fromkeys((each.begin, each.end)))
        + f":{digits(each.seconds)}"
        for each in stretches
    )


def digits(number: float) -> str:
    """A number with all its digits and no exponent, whose minus would look like a ramp's."""
    if math.isinf(number):
        raise BadShape("a shape without an end has no text")
    text = format(Decimal(repr(float(number))), "f")
    return text.removesuffix(".0")


def total_seconds(stretches: Sequence[Stretch]) -> float:
    return math.fsum(each.seconds for each in stretches)


def highest(stretches: Sequence[Stretch]) -> float:
    return max((max(each.begin, each.end) for each in stretches), default=0.0)


def level_at(stretches: Sequence[Stretch], second: float) -> float:
    """The level at a moment; where one stretch ends, the next one's. 0 outside all of them."""
    if second < 0:
        return 0.0
    for each in stretches:
        if second < each.seconds:
            return each.level(second)
        second -= each.seconds
    return 0.0


def share(level: float, part: int, parts: int) -> int:
    """One part's whole number of a level; all parts together are exactly the level, rounded."""
    whole = round(level)
    return whole // parts + (part < whole % parts)


def arrival_times(stretches: Sequence[Stretch]) -> Iterator[float]:
    """When each arrival is due, in seconds from the beginning, if the level is a rate.

    The arrivals of a steady rate lie in the middle of equal parts, so that their count is the
    area, rounded, and none is due at the very end.
    """
    began = 0.0
    #: What the next arrival lacks.
    lacking = 0.5
    for each in stretches:
        area = each.area
        number = 0
        while lacking + number <= area:
            yield began + each.second(lacking + number)
            number += 1
        lacking += number - area
        began += each.seconds


class ArrivalClock:
    """Deals out the times of a shape, once each.

    Several processes share a shape without talking: the clock of each deals every ``parts``-th.
    """

    def __init__(
        self, stretches: Sequence[Stretch], begin: float, part: int = 0, parts: int = 1
    ) -> None:
        if not 0 <= part < parts:
            raise ValueError(f"part {part} of {parts}")
        self._begin = begin
        self._times = islice(arrival_times(stretches), part, None, parts)
        self._next = next(self._times, None)

    @property
    def is_over(self) -> bool:
        return self._next is None

    def take(self) -> float | None:
        """The next intended start, on the clock that ``begin`` was read from; none at the end."""
        if self._next is None:
            return None
        due, self._next = self._begin + self._next, next(self._times, None)
        return due

    def missed(self, now: float) -> Iterator[float]:
        """The starts that are due by now and were not taken."""
        while self._next is not None and self._begin + self._next <= now:
            due = self.take()
            assert due is not None
            yield due
