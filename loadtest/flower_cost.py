"""What Flower costs: processor time per job of Flower, the worker and the broker.

``python -m loadtest.flower_cost``. One worker of ten slots empties a line of short ``sleep`` jobs,
in turns with every task shown in Flower, with the default, where most are counted, and with none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from loadtest.accept import MIDDLE_RATE, watch
from loadtest.figures import Sample, medians
from loadtest.fleet import TENANT, Fairline, admit, fleet, tenant_id
from loadtest.report import options
from models.jobs.ids import new_id

POOL, SECONDS_EACH = "medium", 0.05
#: Tasks per second that Flower shows; None is the default.
WAYS = {"every task": "1e9", "default": None, "none": "0"}
PARTS = ("flower", f"worker-{POOL}-1", "rabbitmq", "scheduler", "postgres")
RATE = "FAIRLINE_FLOWER_TASKS_PER_SECOND"


@contextmanager
def processes(fairline: Fairline, rate: str | None) -> Iterator[None]:
    """Flower, a worker and a scheduler."""
    fairline.env.pop(RATE, None)
    fairline.env |= {} if rate is None else {RATE: rate}
    fairline.start_flower()
    worker = fairline.start_worker(POOL)
    fairline.start_scheduler()
    try:
        yield
    finally:
        fairline.fleet.kill(worker, "scheduler", "flower")


def drain(fairline: Fairline, way: str, jobs: int) -> Sample:
    """Cores in use while most of the jobs run."""
    with fairline.engine() as engine:
        mine = f"id >= '{new_id()}' AND type = 'sleep'"
        payloads = ({"seconds": SECONDS_EACH} for _ in range(jobs))
        admit(engine, tenant_id(engine, TENANT), "sleep", POOL, payloads)
        with processes(fairline, WAYS[way]):
            return watch(way, engine, "jobs", mine, MIDDLE_RATE, fairline.fleet.pids(), jobs)


def line(sample: Sample) -> str:
    parts = "   ".join(
        f"{part.removesuffix('-1')} {1000 * sample.cores[part] / sample.rate:.2f}" for part in PARTS
    )
    return f"{sample.name:<12}{sample.rate:>6,.0f}/s   ms per job: {parts}"


def main() -> int:
    asked = options(
        *("python -m loadtest.flower_cost", __doc__),
        ("--rounds", 3, "turns of each"),
        ("--jobs", 2000, "of each turn"),
    )
    console, found = Console(), []
    with fleet("flower") as started:
        fairline = Fairline(started, served_pools=POOL)
        for turn in range(1, asked.rounds + 1):
            for way in WAYS:
                found.append(sample := drain(fairline, way, asked.jobs))
                console.print(f"round {turn}: {line(sample)}", highlight=False)
    for sample in medians(found).values():
        console.print(line(sample), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
