"""``python -m loadtest.fairness``: fair share on a stack of its own, and the picture of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from loadtest.fairness import crowding, weights


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fairness", description=__doc__)
    parser.add_argument(
        "experiment",
        nargs="?",
        choices=("weights", "flood", "free"),
        default="weights",
        help="weights: three tenants saturate a pool; flood: one submits 100,000 jobs; "
        "free: a thousand free accounts do (weights)",
    )
    parser.add_argument("--seconds", type=float, help="of each measurement (300, 60, 60)")
    parser.add_argument("--jobs", type=int, default=crowding.FLOOD, help="of the flood (100000)")
    parser.add_argument("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.experiment == "weights":
        report = weights.run(asked.seconds or 300.0, console)
    elif asked.experiment == "flood":
        report = crowding.flood(asked.seconds or 60.0, asked.jobs, console)
    else:
        report = crowding.free_accounts(asked.seconds or 60.0, console)
    report.show(console)
    console.print(f"written to {report.write()}")
    return 0 if report.passed or asked.no_fail else 1


if __name__ == "__main__":
    sys.exit(main())
