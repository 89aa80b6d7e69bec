"""PURE: how long to wait before a process that died is started again."""

from __future__ import annotations

from dataclasses import dataclass

#: A process that lived this long was healthy: its death starts a new count.
SETTLED_SECONDS = 10.0
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """When to start again, and the deaths in a row counted so far."""

    delay_seconds: float
    deaths_in_a_row: int


def decide_restart(lived_seconds: float, deaths_in_a_row: int) -> RestartDecision:
    """At once after a healthy life; after early deaths 0.5 s, doubling up to 30 s."""
    if lived_seconds >= SETTLED_SECONDS or deaths_in_a_row == 0:
        return RestartDecision(FIRST_DELAY_SECONDS, 1)
    # The exponent is capped too: a process that dies for weeks must not overflow a float.
    delay = 0.5 * 2 ** min(deaths_in_a_row - 1, 10)
    return RestartDecision(min(delay, LONGEST_DELAY_SECONDS), deaths_in_a_row + 1)
