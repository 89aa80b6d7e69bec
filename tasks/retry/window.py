"""A count over a stretch of time: how many, and how many of them bad."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Calls or runs of one stretch of time."""

    total: int
    bad: int

    @property
    def bad_share(self) -> float:
        """Share of the bad ones; 0 of nothing is 0."""
        return self.bad / self.total if self.total else 0.0
