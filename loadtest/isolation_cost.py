"""What roles and row-level security cost: rates with them, and as the owner of the tables.

``python -m loadtest.isolation_cost``. The same processes take turns on one database: as they are,
and without a role, so that they are the owner, whom policies do not bind.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from rich.console import Console

from app.stack.spec import PROJECT_ROOT
from loadtest.accept import WARM_SECONDS, drain_fairline, measure
from loadtest.bench import BAR_CONNECTIONS, Rounds, ratio
from loadtest.closed_loop import Load, applications
from loadtest.figures import Sample, medians
from loadtest.fleet import Fairline, fleet
from loadtest.report import Report, command, table

#: Of the owner's rates.
LEAST_RATIO = 0.95
ROLES, OWNER = "roles", "owner"
#: Python imports it as a process starts, before the connection.
WITHOUT_ROLES = """
from models.store import roles

roles.role_option = lambda role: ""
roles.limit_statements = lambda engine: None
roles.set_tenant = lambda tenant_id: None
"""


def owner_environment(folder: Path) -> dict[str, str]:
    """Variables of a process that takes on no role."""
    (folder / "sitecustomize.py").write_text(WITHOUT_ROLES)
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(PROJECT_ROOT)))}


def measure_both(way: str, fairline: Fairline, asked: argparse.Namespace) -> list[Sample]:
    """Rates of submissions, and of no-op jobs through one worker."""
    bodies = applications(500)
    load = Load(fairline.port, BAR_CONNECTIONS, WARM_SECONDS, asked.seconds, bodies, 202)
    with fairline.running("medium"):
        accepted = measure(fairline.fleet, f"accept: {way}", load)
    drained = drain_fairline(fairline, asked.jobs)
    return [accepted, replace(drained, name=f"no-op: {way}")]


def run(asked: argparse.Namespace, console: Console) -> Report:
    rounds = Rounds(console, asked.rounds)
    with fleet("isolation") as started:
        usual = Fairline(started, served_pools="medium")
        as_owner = copy.copy(usual)
        as_owner.env = usual.env | owner_environment(started.home)
        turns = [(ROLES, usual), (OWNER, as_owner)]
        # Tables grow: none is always the second.
        orders = cycle((turns, turns[::-1]))
        rounds.run(
            "roles and owner",
            lambda: [each for turn in next(orders) for each in measure_both(*turn, asked)],
        )
    title = "What roles and row-level security cost"
    report = Report("isolation_cost", title, notes=rounds.notes)
    compare(report, medians(rounds.samples), (ROLES, OWNER), LEAST_RATIO)
    return report


def compare(report: Report, middle: dict[str, Sample], ways: tuple[str, str], least: float) -> None:
    """Add the rates, and those of the first way as parts of the second's."""
    columns = {
        "medians": "{.name}",
        "per second": "{.rate:,.0f}",
        "per core-second": "{.per_core_second:,.0f}",
    }
    report.tables.append(table("Rates", columns, middle.values()))
    way, other = ways
    for kind in ("accept", "no-op"):
        sample, base = middle[f"{kind}: {way}"], middle[f"{kind}: {other}"]
        report.bars.append(ratio(f"{kind} rate, {way} of {other}", sample, base, least))
        # On a busy machine rates vary with what is left of it, processor time per request less.
        by_time = sample.per_core_second / (base.per_core_second or 1.0)
        report.findings.append(f"{kind}: by processor time {by_time:.1%} of {other}.")


FLAGS = (
    ("--rounds", 5, "turns of each"),
    ("--seconds", 6.0, "of each measurement of submissions"),
    ("--jobs", 20_000, "no-op jobs"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.isolation_cost", __doc__, run, *FLAGS))
