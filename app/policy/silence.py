"""Silence: which workers gave no sign of life while somebody listened. Pure.

The age of a timestamp cannot say so: after a pause of the database or of the listener all of them
are old at once, although the workers live. So silence is counted by the listener, from look to
look, and a look after a pause counts less than any other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

#: The listener looks every second. A longer gap than this was a pause of somebody, and counts
#: little: the worker may have had no time to give a sign since.
LONGEST_GAP_SECONDS = 1.5
PAUSE_COUNTS_SECONDS = 0.5


class Heard(NamedTuple):
    """A worker as it was last heard."""

    #: Its last sign of life: another one whenever it gives one.
    sign: Hashable
    silent_seconds: float = 0.0


class Silence:
    """Listens to workers."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._looked: float | None = None
        self._heard: dict[str, Heard] = {}

    def look(self, now: float, signs: Mapping[str, Hashable]) -> frozenset[str]:
        """Workers that have been silent for the limit; ``signs`` has the last of each."""
        gap = 0.0 if self._looked is None else max(0.0, now - self._looked)
        counted = gap if gap <= LONGEST_GAP_SECONDS else PAUSE_COUNTS_SECONDS
        self._looked = now
        before = self._heard
        self._heard = {
            name: Heard(sign, known.silent_seconds + counted)
            if (known := before.get(name)) is not None and known.sign == sign
            else Heard(sign)
            for name, sign in signs.items()
        }
        return frozenset(
            name for name, heard in self._heard.items() if heard.silent_seconds >= self._limit
        )

    def excuse(self, names: Iterable[str]) -> None:
        """Count their silence from the next look on: until now they could not give a sign."""
        for name in names:
            self._heard.pop(name, None)
