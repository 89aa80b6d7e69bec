"""Every experiment of the load lab in miniature: it runs, counts right and leaves its files.

Seconds of load on a machine with other things to do say nothing about speed, so of all bars only
those are held that allow nothing at all: jobs lost, submissions refused, unexpected answers. Who
is short of a processor also waits for a connection now and then, so waiters are not counted here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from loadtest.fleet import Fleet
from loadtest.lab.cost import PLANS as COSTS
from loadtest.lab.experiment import NAMES, RunContext, Size, experiment, write_csv
from loadtest.lab.knee.verdict import PLANS as STAIRCASES
from loadtest.lab.scaling import PLANS as SCALES

#: Some start a dozen processes, which on a busy machine takes its time.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PNG = b"\x89PNG\r\n\x1a\n"
PNG_END = b"IEND\xaeB`\x82"


def knee_is_right(data: Mapping[str, Any]) -> None:
    plan = STAIRCASES[Size.MINI]
    assert [step["jobs"] for step in data["steps"]] == [
        rate * plan.step_seconds for rate in plan.rates
    ]
    assert data["submitted"] == sum(stretch.area for stretch in plan.stretches)
    assert data["steps"][-1]["depth"] > data["steps"][0]["depth"], "the last is beyond the knee"


def scaling_is_right(data: Mapping[str, Any]) -> None:
    plan = SCALES[Size.MINI]
    assert [count["workers"] for count in data["counts"]] == list(plan.workers)
    assert all(count["per_second"] > 0 for count in data["counts"])
    assert data["submitted"] == plan.jobs


def pool_is_right(data: Mapping[str, Any]) -> None:
    small, large, fairline = data["sides"]
    assert small["connections_a_worker"] < large["connections_a_worker"]
    assert fairline["connections_a_worker"] == 2
    assert small["submitted"] == large["submitted"] == fairline["submitted"] > 0
    assert fairline["scored"] == fairline["submitted"]


def soak_is_right(data: Mapping[str, Any]) -> None:
    assert data["scored"] == round(data["seconds"] * data["per_second"])


def swarm_is_right(data: Mapping[str, Any]) -> None:
    assert data["connections"] == data["clients"] > 0
    assert data["requests"] == data["submits"] + data["polls"]
    assert data["submits"] >= 3 * data["clients"] and data["polls"] > 0 < data["rounds"]


def peers_are_right(data: Mapping[str, Any]) -> None:
    rates = {sample["name"]: sample["rate"] for sample in data["medians"]}
    assert {"Fairline", "plain Celery", "Dramatiq", "Procrastinate"} <= data["start_ms"].keys()
    assert rates and not [name for name, rate in rates.items() if rate <= 0]
    assert all(len(starts) > 0 for starts in data["start_ms"].values())
    assert all(megabytes for megabytes in data["memory_mb"].values())
    assert all(cost["rate"] > 0 and cost["lost"] == 0 for cost in data["costs"])
    assert {each["name"]: each["survival"]["done"] for each in data["killed"]}["Fairline"] > 0


def cost_is_right(data: Mapping[str, Any]) -> None:
    plan = COSTS[Size.MINI]
    assert len(data["steady"]) == 4 * len(plan.rates) * len(plan.lengths_ms)
    for cost in data["steady"]:
        assert cost["rate"] == pytest.approx(cost["offered"], rel=0.5), cost
        assert cost["lost"] == 0 < cost["ms_per_job"]["workers"]
    durable = [cost for cost in data["steady"] if not cost["name"].startswith("Dramatiq")]
    assert all(cost["wal"] > 0 for cost in durable)
    assert [each["processes"] for each in data["workers"]] == list(plan.workers)
    assert [each["processes"] for each in data["apis"]] == list(plan.apis)
    every = (*data["workers"], data["simulated"], *data["apis"])
    for grown in every:
        assert grown["rate"] > 0 < grown["ms_per_job"]["PostgreSQL"]
        assert grown["looks"] > 5
    # With little work a short time may see none of it.
    assert sum(sum(grown["backends"].values()) for grown in every) > 0


#: What an experiment must have counted, on top of what holds for all.
RIGHT: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "knee": knee_is_right,
    "scaling": scaling_is_right,
    "pool": pool_is_right,
    "swarm": swarm_is_right,
    "peers": peers_are_right,
    "cost": cost_is_right,
    "soak": soak_is_right,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_miniature_of_the_experiment_counts_right_and_leaves_its_files(
    lab_fleet: Fleet, tmp_path: Path, name: str
) -> None:
    chosen = experiment(name)
    steps: list[str] = []
    context = RunContext(lab_fleet, tmp_path, Size.MINI, step=steps.append)

    report = chosen.run(context)

    assert lab_fleet.children == {}, "whatever it started was ended"
    assert (report.name, report.title) == (name, chosen.TITLE)
    none_allowed = [
        bar
        for bar in report.bars
        if bar.relation == "<=" and bar.required == 0 and "waiters" not in bar.claim
    ]
    assert none_allowed
    assert [bar for bar in none_allowed if not bar.passed] == []
    RIGHT[name](report.data)

    page = report.write(tmp_path).read_text()
    assert report.pictures and report.tables
    assert report.findings and all(finding in page for finding in report.findings)
    for picture in report.pictures:
        drawn = (tmp_path / picture.file).read_bytes()
        assert drawn.startswith(PNG) and drawn.endswith(PNG_END)
        assert f"![{picture.caption}]({picture.file})" in page

    assert len(steps) >= 2
    write_csv(tmp_path / "seconds.csv", context.seconds)
    with (tmp_path / "seconds.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert rows and all(row["step"] and row["second"] and row["at"] for row in rows)
