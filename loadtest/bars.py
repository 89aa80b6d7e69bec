"""Bars: what a measurement must show, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """One claim with the value that was measured."""

    claim: str
    measured: float
    relation: Literal[">=", "<="]
    required: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the measured value is on the right side."""
        if self.relation == ">=":
            return self.measured >= self.required
        return self.measured <= self.required

    def cells(self) -> tuple[str, str, str, str]:
        """The bar as a row of a table."""
        return (
            self.claim,
            f"{self.measured:.2f}{self.unit}",
            f"{self.relation} {self.required:.2f}{self.unit}",
            "pass" if self.passed else "FAIL",
        )
