"""A dependency's rate limits as a job reports them: see ``JobContext.report_quota``. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: The limits that a reading may have.
KINDS = ("requests", "tokens_in", "tokens_out", "tokens")


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit."""

    #: Per minute.
    limit: float
    remaining: float
    #: From the response until all of it is available again.
    reset_seconds: float = 60.0

    def __post_init__(self) -> None:
        for number in (self.limit, self.remaining, self.reset_seconds):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise TypeError(f"not a number: {number!r:.80}")
            if not math.isfinite(number):
                raise ValueError(f"not a finite number: {number!r}")
        if self.limit <= 0:
            raise ValueError(f"a limit must be positive: {self.limit!r}")


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """What one response of a dependency said about its limits."""

    requests: Allowance | None = None
    tokens_in: Allowance | None = None
    tokens_out: Allowance | None = None
    #: Both kinds together.
    tokens: Allowance | None = None
    #: Tokens of this call that count towards the quota.
    used_in: int = 0
    used_out: int = 0

    def allowances(self) -> dict[str, Allowance]:
        """The known limits by kind."""
        limits = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: limit for kind, limit in limits.items() if limit is not None}


Report = Callable[[QuotaReading], None]


def ignore_reading(reading: QuotaReading) -> None:
    """Ignores a reading."""
