"""``python -m loadtest.lab [--quick] [NAME …]``: run experiments and report on them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from loadtest.fleet import fleet
from loadtest.lab.catalogue import NAMES, experiment
from loadtest.lab.experiment import Desk, Experiment, Size
from loadtest.lab.live import LiveLine
from loadtest.lab.sampling import write_csv
from loadtest.lab.summary import write_summary
from loadtest.report import RESULTS, Report

#: Columns of a table that nobody looks at in a terminal.
WIDE = 160
#: As a shell says that Ctrl-C ended a program.
INTERRUPTED = 130


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What may be asked for."""
    known = ", ".join(NAMES)
    parser = argparse.ArgumentParser(prog="python -m loadtest.lab", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"{known}; all of them unless named")
    add("--quick", action="store_true", help="all in ten minutes, with wider margins")
    add("--no-fail", action="store_true", help="exit 0 even if a bar is missed")
    add("--list", action="store_true", help="say what there is and how long it takes")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"no experiment named {', '.join(unknown)}; there are {known}")
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, one after the other."""
    asked = options(arguments)
    # In a file a table is as wide as it needs to be.
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    size = Size.QUICK if asked.quick else Size.FULL
    chosen = [experiment(name) for name in asked.names or NAMES]
    if asked.list:
        for each in chosen:
            minutes = each.seconds(size) / 60
            console.print(
                f"{each.name:<9}{minutes:>5.1f} min  {each.question}",
                highlight=False,
                soft_wrap=True,
            )
        return 0
    try:
        reports = [run(each, size, console) for each in chosen]
    except KeyboardInterrupt:
        console.print("Stopped. Everything that it started has ended; no report was written.")
        return INTERRUPTED
    console.print(f"every experiment that was run, on one page: {write_summary(RESULTS)}")
    return 0 if asked.no_fail or all(report.passed for report in reports) else 1


def run(chosen: Experiment, size: Size, console: Console) -> Report:
    """One experiment on services of its own, shown while it runs."""
    folder = RESULTS / chosen.name
    began = time.monotonic()
    with LiveLine(console, chosen.title, chosen.seconds(size)) as line:
        line.step("starting a private PostgreSQL and RabbitMQ")
        with fleet(f"lab-{chosen.name}") as started:
            desk = Desk(started, folder, size, on_step=line.step, on_figures=line.figures)
            report = chosen.run(desk)
    report.data["question"] = chosen.question
    report.data["size"] = size.value
    report.data["took_seconds"] = round(time.monotonic() - began)
    if size is not Size.FULL:
        report.notes.append("A quick run: shorter steps, wider margins than a full one.")
    write_csv(folder / "seconds.csv", desk.seconds)
    report.show(console)
    console.print(f"written to {report.write(folder)}\n")
    return report


if __name__ == "__main__":
    sys.exit(main())
