"""Confirms: how long a publisher waits for the broker to confirm its messages. Pure.

A confirm that is late is not a message that was lost. Where confirms are quick, waiting for them
shows at once what was refused. Where they take longer than the publisher may wait, it does not wait
at all: it would stand still without learning anything, and reads them when they come.
"""

from __future__ import annotations

#: Weight of a measurement that is below the expected latency.
FALLING_WEIGHT = 0.5
#: A broker that has confirmed nothing for so many times the longest wait is unavailable; one whose
#: confirms are known to be late, for so many times their latency, within bounds.
SILENT_WAITS = 10.0
LATE_TIMES = 3.0
MOST_SILENT_SECONDS = 60.0
MOST_OPENING_SECONDS = 30.0


def expected_latency(expected: float, measured: float) -> float:
    """Seconds that the next confirms should take: follows a rise at once, a fall step by step."""
    if measured >= expected:
        return measured
    return expected + (measured - expected) * FALLING_WEIGHT


def patience(expected: float, longest: float) -> float:
    """Seconds to wait for confirms that should take ``expected``; none if that is in vain."""
    return longest if expected <= longest else 0.0


def silence(longest: float, measured: float) -> float:
    """Seconds after which a broker is unavailable that confirmed after ``measured`` and is silent
    now."""
    return max(longest * SILENT_WAITS, min(measured * LATE_TIMES, MOST_SILENT_SECONDS))


def opening_seconds(usual: float, measured: float) -> float:
    """Seconds that a step of opening a connection may take: the latency is a new one's, too."""
    return max(usual, min(measured * LATE_TIMES, MOST_OPENING_SECONDS))
