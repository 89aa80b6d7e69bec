"""Confirms: how long a publisher waits for the broker to confirm its messages. Pure.

A confirm that is late is not a message that was lost. Where confirms are quick, waiting for them
shows at once what was refused. Where they take longer than the publisher may wait, it does not wait
at all: it would stand still without learning anything, and reads them when they come.
"""

from __future__ import annotations

#: Weight of a measurement that is below the expected latency.
FALLING_WEIGHT = 0.5
#: A broker that has confirmed nothing for so many times the longest wait is unavailable.
SILENT_WAITS = 10.0


def expected_latency(expected: float, measured: float) -> float:
    """Seconds that the next confirms should take: follows a rise at once, a fall step by step."""
    if measured >= expected:
        return measured
    return expected + (measured - expected) * FALLING_WEIGHT


def patience(expected: float, longest: float) -> float:
    """Seconds to wait for confirms that should take ``expected``; none if that is in vain."""
    return longest if expected <= longest else 0.0
