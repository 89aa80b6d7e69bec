"""``python -m loadtest.cells [--quick] [NAME]``: experiments with several cells on one machine.

cost    processor time per job of two cells against one Fairline, under the same load
killed  one cell's PostgreSQL is killed under load: what the other tenants notice
moves   50 moves of tenants under load while schedulers are killed: nothing lost or doubled
spread  a tenant over three cells: its leaderboard, with one cell killed and back
region  a region is away for five minutes, comes back, is lost and another one promoted

Without a name, all of them. Needs RabbitMQ; takes half an hour, with --quick ten minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.cells.experiment_run import Run
from loadtest.lab.experiment import Size
from loadtest.report import RESULTS, Report, Screen

NAMES = ("cost", "killed", "moves", "spread", "region")


def experiment(name: str) -> Any:
    """The module of an experiment: ``TITLE``, ``PLANS`` by size, and ``run``."""
    return import_module(f"loadtest.cells.{name}")


def run(name: str, size: Size, folder: Path, console: Console) -> Report:
    """One experiment with processes of its own; pictures go to the folder."""
    began = time.monotonic()
    with Screen(console) as screen:
        report: Report = experiment(name).run(Run(size, folder, screen, console))
    report.data["size"] = size.value
    report.data["took_seconds"] = round(time.monotonic() - began)
    if size is not Size.FULL:
        report.notes.append(f"A {size.value} run: shorter steps than a full one.")
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.cells",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all unless named")
    add("--quick", action="store_true", help="shorter, with fewer moves")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    console, reports = Console(), []
    size = Size.QUICK if given.quick else Size.FULL
    for name in given.names or NAMES:
        console.print(f"[bold]{experiment(name).TITLE}[/]", highlight=False)
        reports.append(run(name, size, RESULTS / f"cells-{name}", console))
        reports[-1].show(console)
        console.print(f"written to {reports[-1].write()}\n")
    return 0 if given.no_fail or all(report.passed for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
