"""Bins in which run times are counted. Pure, and cheap: every run is counted.

Four bins to an octave, from a millisecond up: no bin is wider than a quarter of its lower
end. Integers throughout, so that a boundary is one and the same everywhere.
"""

from __future__ import annotations

MICROSECONDS = 1_000_000
#: Everything below about a millisecond is one bin, as is everything above about 25 days.
LEAST = 1 << 10
MOST = (1 << 41) - 1
#: Marks the runs that were longer than the bound of their pool.
OVER = "!"


def bin_of(microseconds: int) -> int:
    """The number of the bin; longer runs have higher ones."""
    value = min(max(microseconds, LEAST), MOST)
    octave = value.bit_length()
    return (octave - LEAST.bit_length()) * 4 + (value >> (octave - 3) & 3)


def run_name(pool: str, job_type: str, microseconds: int, over: bool) -> str:
    """Under which name a run is counted: its pool, bin and type. None of them has a colon."""
    return f"{pool}:{bin_of(microseconds)}{OVER if over else ''}:{job_type}"


def parse_run_name(name: str) -> tuple[str, str, int, bool]:
    """Type, pool, bin, and whether the runs were over their pool's bound."""
    pool, number, job_type = name.split(":", 2)
    return job_type, pool, int(number.removesuffix(OVER)), number.endswith(OVER)
