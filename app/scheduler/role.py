"""A role and how often it is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Role(Protocol):
    """Something the scheduler does again and again."""

    def run_once(self, now: float) -> int:
        """Do it; how many rows were touched."""


@dataclass(slots=True)
class TimedRole:
    """A role with its interval and the time of its next call."""

    role: Role
    every_seconds: float
    #: Called by standbys too.
    always: bool = False
    due: float = field(default=0.0)
