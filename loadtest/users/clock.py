"""A clock of intended starts: who asks gets the next one, whoever was late before. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from loadtest.shapes import Stretch, arrival_times


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
        """Whether every time was dealt out."""
        return self._next is None

    def take(self) -> float | None:
        """The next intended start, on the clock that ``begin`` was read from; none at the end."""
        taken = self._next
        if taken is None:
            return None
        self._next = next(self._times, None)
        return self._begin + taken

    def missed(self, now: float) -> Iterator[float]:
        """The starts that should have been by now and that nobody took."""
        while self._next is not None and self._begin + self._next <= now:
            taken = self.take()
            assert taken is not None
            yield taken
