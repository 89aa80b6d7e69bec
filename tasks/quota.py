"""PURE: what a dependency says about its own limits, as a job reports it.

See ``JobContext.report_quota``. How fast jobs may flow is decided elsewhere, from many of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: The limits that a reading may tell of.
KINDS = ("requests", "tokens_in", "tokens_out", "tokens")


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit, as an answer told of it."""

    #: A minute.
    limit: float
    #: What is left of it.
    remaining: float
    #: From the answer until all of it is there again.
    reset_seconds: float = 60.0

    def __post_init__(self) -> None:
        for number in (self.limit, self.remaining, self.reset_seconds):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise TypeError(f"not a number: {number!r:.80}")
            if not math.isfinite(number):
                raise ValueError(f"not a finite number: {number!r}")
        if self.limit <= 0:
            raise ValueError(f"a limit is more than nothing: {self.limit!r}")


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """What one answer of a dependency told."""

    requests: Allowance | None = None
    tokens_in: Allowance | None = None
    tokens_out: Allowance | None = None
    #: Of both kinds together.
    tokens: Allowance | None = None
    #: Tokens of this call as far as they count towards the quota.
    used_in: int = 0
    used_out: int = 0

    def allowances(self) -> dict[str, Allowance]:
        """Those that were told, by kind."""
        told = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: allowance for kind, allowance in told.items() if allowance is not None}


#: Where a reading goes.
Report = Callable[[QuotaReading], None]


def nobody(reading: QuotaReading) -> None:
    """A report that nobody hears."""
