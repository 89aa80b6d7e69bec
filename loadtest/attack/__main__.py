"""``python -m loadtest.attack``: a hostile client against a fresh stack on this machine.

Starts its own stack with keys required and two tenants: the victim, whose latencies are measured,
and the hostile one. Rounds of floods, slow readers and writers, event streams, hostile bodies,
forged keys and sessions, forms of other sites and smuggled requests follow. It attacks loopback
addresses alone. The exit status is that of the bars.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from rich.console import Console

from loadtest.attack.rounds import FAMILIES
from loadtest.attack.run import FULL, QUICK, attack
from loadtest.fleet import fleet
from loadtest.report import RESULTS, Report, Screen, command


def run(asked: argparse.Namespace, console: Console) -> Report:
    size = QUICK if asked.quick else FULL
    if asked.only:
        size = replace(size, families=(asked.only,))
    steps = len(size.rounds)
    with Screen(console) as screen, fleet("attack") as started:
        advance = screen.task("a hostile client", steps)

        def progress(name: str, number: int) -> None:
            advance(number)
            console.print(f"  {number:>2}/{steps}  {name}", highlight=False)

        report = attack(started, RESULTS / "attack", size, progress)
        advance(steps)
    report.data["size"] = "quick" if asked.quick else "full"
    return report


FLAGS = (
    ("--quick", False, "shorter rounds with half the connections"),
    ("--only", tuple(FAMILIES), "one family of rounds"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.attack", __doc__, run, *FLAGS))
