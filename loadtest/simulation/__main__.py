"""``make simulation``: two billion jobs in a day of virtual time, scheduled by Fairline's policies.

Some of the cells for a whole day, then what breaks first. ``--quick``: two cells around the peak.
The same seed gives the same numbers: ``simulation.json`` beside the report is equal to the byte.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from loadtest.report import RESULTS, Report, command
from loadtest.simulation.breaking import around_peak, fullest, ladders, saturated
from loadtest.simulation.document import document
from loadtest.simulation.drawing import draw
from loadtest.simulation.outcome import simulate
from loadtest.simulation.report import Found, judge
from loadtest.simulation.world import Scenario, build

DOCS = Path(__file__).parents[2] / "docs"


def run(asked: argparse.Namespace, console: Console) -> Report:
    scenario = Scenario(seed=asked.seed)
    folder = RESULTS / "simulation"
    folder.mkdir(parents=True, exist_ok=True)
    if asked.quick:
        world = build(scenario)
        found = Found(simulate(around_peak(scenario), sorted({world.fullest, world.lost})))
        (folder / "simulation.json").write_text(found.day.text())
        return judge(found)
    cells = build(scenario).sample(asked.cells)
    console.print(f"a day of {len(cells)} cells …", highlight=False)
    found = Found(simulate(scenario, cells))
    console.print("the autoscaler as shipped, a saturated cell, what breaks first …")
    found.shipped = fullest(replace(scenario, scale_policy={}))
    found.crowded = saturated(scenario)
    found.ladders = ladders(scenario)
    report = judge(found)
    report.pictures = draw(found.day, found.crowded, found.ladders, folder)
    (folder / "simulation.json").write_text(found.day.text())
    if asked.docs:
        draw(found.day, found.crowded, found.ladders, DOCS / "images")
        (DOCS / "simulation.md").write_text(document(found))
    return report


FLAGS = (
    ("--quick", False, "two cells around the peak"),
    ("--docs", False, "also write docs/simulation.md and its pictures"),
    ("--seed", 1, "of all chances"),
    ("--cells", 4, "that are simulated, of thirty"),
)

if __name__ == "__main__":
    sys.exit(command("python -m loadtest.simulation", __doc__, run, *FLAGS))
