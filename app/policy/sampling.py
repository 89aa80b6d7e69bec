"""How often something that may go on for ever is recorded: less and less, while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

#: Pauses after a record: the first, and the longest.
FIRST_SECONDS = 1.0
MOST_SECONDS = 900.0


@dataclass(slots=True)
class SampledCount:
    """Occurrences of one kind since the last record, and when the next record is due."""

    count: int = 0
    #: When it was last recorded.
    recorded_at: float = float("-inf")
    pause_seconds: float = FIRST_SECONDS

    def add(self) -> bool:
        """Count one; whether it is the first since the last record."""
        self.count += 1
        return self.count == 1

    def is_due(self, now: float) -> bool:
        """Whether there is something to record, and the pause is over."""
        return self.count > 0 and now >= self.recorded_at + self.pause_seconds

    def record(self, now: float, recorded: int) -> None:
        """So many were recorded: the pause doubles, or begins anew if the last one was long ago."""
        goes_on = now < self.recorded_at + 3 * self.pause_seconds
        doubled = min(MOST_SECONDS, 2 * self.pause_seconds)
        self.pause_seconds = doubled if goes_on else FIRST_SECONDS
        self.recorded_at = now
        self.count -= recorded
